// matmul: out[t, n] = sum_k x[t, k] * weight[n, k] + bias[n]; where GATED, of few rows, gated_matmul: out[t, n] = activation of gate n, times
// up n, of type T
//
// Grid: few rows: x = 8, 16 or 32 of them, y = 16 outputs, or 8 where GATED, a simdgroup per slice of K. Many rows: x = up to 8 tiles of 64 rows, y = 64
// outputs, z = the next such 8 row tiles, so that the threadgroups which run together share both weights and activations. See
// matmul_tile.metal for who owns what, and for the order of the sums, which is the same in all of these kernels.
// Threadgroup memory: 4, 8, 16 KiB for 8, 16, 32 rows; 16 KiB for 64.
// Bytes that must move: N * K * sizeof(T) + rows * K * sizeof(T) + rows * N * 4 (+ N * 4 for the bias).

template <typename T, int C>
kernel void matmul_few(device const T* x [[buffer(0)]], device const T* weight0 [[buffer(1)]], device const T* weight1 [[buffer(2)]],
                       device const T* weight2 [[buffer(3)]], device const float* bias [[buffer(4)]],
                       device float* out [[buffer(5)]], constant MatmulParams& params [[buffer(6)]],
                       uint3 tile [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[MAX_SLICES * 16 * 8 * C];
  uint first = tile.x * 8 * C;
  Weights<T> weights = {weight0, weight1, weight2};
  DenseRows rows = {first, min(params.rows - first, uint(8 * C)), params.out_cols};
  uint first_output = params.first_output + tile.y * (GATED != 0 ? 8 : 16);
  few_rows_tile<T, C, DenseRows>(x, weights, bias, out, rows, partial, first_output, thread_index, lane, simdgroup);
}

template <typename T>
kernel void matmul_many(device const T* x [[buffer(0)]], device const T* weight0 [[buffer(1)]], device const T* weight1 [[buffer(2)]],
                        device const T* weight2 [[buffer(3)]], device const float* bias [[buffer(4)]],
                        device float* out [[buffer(5)]], constant MatmulParams& params [[buffer(6)]],
                        uint3 tile [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint2 staged[2 * STAGE];
  uint first = (tile.z * 8 + tile.x) * TILE;
  if (first >= params.rows) return;
  Weights<T> weights = {weight0, weight1, weight2};
  DenseRows rows = {first, min(params.rows - first, uint(TILE)), params.out_cols};
  many_rows_tile<T, DenseRows>(x, weights, bias, out, rows, staged, params.first_output + tile.y * TILE, thread_index, lane, simdgroup);
}

// Whether the lanes of a simdgroup hold 8x8 matrices as matrix.metal says: element i of `matrix` must come back at out[i].
// Grid: one simdgroup.
kernel void matrix_layout(device const float* matrix [[buffer(0)]], device float* out [[buffer(1)]],
                          uint lane [[thread_index_in_simdgroup]]) {
  Matrix loaded;
  simdgroup_load(loaded, matrix, 8);
  float2 elements = get_elements(loaded);
  uint at = lane_row(lane) * 8 + lane_column(lane);
  out[at] = elements.x;
  out[at + 1] = elements.y;
}

#define INSTANTIATE_FEW(name, T, C)                                                                                         \
  template [[host_name(name)]] kernel void matmul_few<T, C>(device const T*, device const T*, device const T*,               \
                                                            device const T*, device const float*, device float*,             \
                                                            constant MatmulParams&, uint3, uint, uint, uint);
#define INSTANTIATE_MANY(name, T)                                                                                           \
  template [[host_name(name)]] kernel void matmul_many<T>(device const T*, device const T*, device const T*, device const T*, \
                                                          device const float*, device float*, constant MatmulParams&, uint3,  \
                                                          uint, uint, uint);
INSTANTIATE_FEW("matmul_8_f32", float, 1)
INSTANTIATE_FEW("matmul_8_f16", half, 1)
INSTANTIATE_FEW("matmul_8_bf16", bfloat, 1)
INSTANTIATE_FEW("matmul_16_f32", float, 2)
INSTANTIATE_FEW("matmul_16_f16", half, 2)
INSTANTIATE_FEW("matmul_16_bf16", bfloat, 2)
INSTANTIATE_FEW("matmul_32_f32", float, 4)
INSTANTIATE_FEW("matmul_32_f16", half, 4)
INSTANTIATE_FEW("matmul_32_bf16", bfloat, 4)
INSTANTIATE_MANY("matmul_64_f32", float)
INSTANTIATE_MANY("matmul_64_f16", half)
INSTANTIATE_MANY("matmul_64_bf16", bfloat)
