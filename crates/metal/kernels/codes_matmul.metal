// matmul and gated_matmul with weights of codes: what matmul.metal computes, with the elements that codes.metal makes of codes
//
// Grid: that of matmul.metal. See codes_tile.metal for the order of the sums, which is the same in all of these kernels.
// Threadgroup memory: 4, 8, 16 KiB for 8, 16, 32 rows; 16 KiB for 64.
// Bytes that must move: the weight's codes and scales + rows * K * sizeof(T) + rows * N * 4 (+ N * 4 for the bias).

template <typename T, int C>
kernel void codes_matmul_few(device const T* x [[buffer(0)]], device const uchar* weights [[buffer(1)]],
                             device const float* bias [[buffer(2)]], device float* out [[buffer(3)]],
                             constant MatmulParams& params [[buffer(4)]], uint3 tile [[threadgroup_position_in_grid]],
                             uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[MAX_SLICES * 16 * 8 * C];
  uint first = tile.x * 8 * C;
  DenseRows rows = {first, min(params.rows - first, uint(8 * C)), params.out_cols};
  uint first_output = params.first_output + tile.y * (GATED != 0 ? 8 : 16);
  few_rows_codes<T, C, DenseRows>(x, weights, bias, out, rows, partial, first_output, thread_index, lane, simdgroup);
}

template <typename T>
kernel void codes_matmul_many(device const T* x [[buffer(0)]], device const uchar* weights [[buffer(1)]],
                              device const float* bias [[buffer(2)]], device float* out [[buffer(3)]],
                              constant MatmulParams& params [[buffer(4)]], uint3 tile [[threadgroup_position_in_grid]],
                              uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                              uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint2 staged[2 * CODES_STAGE];
  uint first = (tile.z * 8 + tile.x) * TILE;
  if (first >= params.rows) return;
  DenseRows rows = {first, min(params.rows - first, uint(TILE)), params.out_cols};
  many_rows_codes<T, DenseRows>(x, weights, bias, out, rows, staged, params.first_output + tile.y * TILE, thread_index, lane, simdgroup);
}

#define INSTANTIATE_FEW(name, T, C)                                                                                            \
  template [[host_name(name)]] kernel void codes_matmul_few<T, C>(device const T*, device const uchar*, device const float*,     \
                                                                  device float*, constant MatmulParams&, uint3, uint, uint, uint);
#define INSTANTIATE_MANY(name, T)                                                                                              \
  template [[host_name(name)]] kernel void codes_matmul_many<T>(device const T*, device const uchar*, device const float*,       \
                                                                device float*, constant MatmulParams&, uint3, uint, uint, uint);
INSTANTIATE_FEW("codes_matmul_8_f32", float, 1)
INSTANTIATE_FEW("codes_matmul_8_f16", half, 1)
INSTANTIATE_FEW("codes_matmul_8_bf16", bfloat, 1)
INSTANTIATE_FEW("codes_matmul_16_f32", float, 2)
INSTANTIATE_FEW("codes_matmul_16_f16", half, 2)
INSTANTIATE_FEW("codes_matmul_16_bf16", bfloat, 2)
INSTANTIATE_FEW("codes_matmul_32_f32", float, 4)
INSTANTIATE_FEW("codes_matmul_32_f16", half, 4)
INSTANTIATE_FEW("codes_matmul_32_bf16", bfloat, 4)
INSTANTIATE_MANY("codes_matmul_64_f32", float)
INSTANTIATE_MANY("codes_matmul_64_f16", half)
INSTANTIATE_MANY("codes_matmul_64_bf16", bfloat)
