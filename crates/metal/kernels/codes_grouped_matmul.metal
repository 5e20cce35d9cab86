// grouped_matmul with weights of codes: what grouped_matmul.metal computes, with the elements that codes.metal makes of codes
//
// Grid: that of grouped_matmul.metal; an expert's weight follows that of the one before. See codes_tile.metal for the order of the sums, which is
// codes_matmul's.
// Threadgroup memory: 4 or 16 KiB for 8 or 32 rows; 16 KiB for 64.
// Bytes that must move: the codes and scales of experts in use + x + pairs * N * 4 (+ (experts in use) * N * 4 for the bias).

INLINE device const uchar* expert_codes(device const uchar* weights, uint expert) {
  return weights + ulong(expert) * ((N + 7) / 8) * tile_bytes();
}

template <typename T, int C>
kernel void codes_grouped_matmul_few(device const T* x [[buffer(0)]], device const uchar* weights [[buffer(1)]],
                                     device const uint* ids [[buffer(2)]], device const uint4* tiles [[buffer(3)]],
                                     device const uint* order [[buffer(4)]], device float* out [[buffer(5)]],
                                     device const float* bias [[buffer(6)]], constant uint& out_cols [[buffer(7)]],
                                     uint3 at [[threadgroup_position_in_grid]],
                                     uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                                     uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[MAX_SLICES * 16 * 8 * C];
  uint4 tile = uint4(0u, at.y, 1u, 0u);
  if (GROUPED) {
    tile = tiles[at.y];
  } else {
    tile.x = ids[at.y];
  }
  if (tile.z == 0) return;
  PairRows rows = {order, tile.y, tile.z, out_cols};
  few_rows_codes<T, C, PairRows>(x, expert_codes(weights, tile.x), bias + ulong(tile.x) * N, out, rows, partial, at.x * 16,
                                 thread_index, lane, simdgroup);
}

template <typename T>
kernel void codes_grouped_matmul_many(device const T* x [[buffer(0)]], device const uchar* weights [[buffer(1)]],
                                      device const uint* ids [[buffer(2)]], device const uint4* tiles [[buffer(3)]],
                                      device const uint* order [[buffer(4)]], device float* out [[buffer(5)]],
                                      device const float* bias [[buffer(6)]], constant uint& out_cols [[buffer(7)]],
                                      uint3 at [[threadgroup_position_in_grid]],
                                      uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                                      uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint2 staged[2 * CODES_STAGE];
  uint4 tile = tiles[at.y];
  if (tile.z == 0) return;
  PairRows rows = {order, tile.y, tile.z, out_cols};
  many_rows_codes<T, PairRows>(x, expert_codes(weights, tile.x), bias + ulong(tile.x) * N, out, rows, staged, at.x * TILE,
                               thread_index, lane, simdgroup);
}

#define INSTANTIATE_FEW(name, T, C)                                                                                                \
  template [[host_name(name)]] kernel void codes_grouped_matmul_few<T, C>(device const T*, device const uchar*, device const uint*, \
                                                                          device const uint4*, device const uint*, device float*,   \
                                                                          device const float*, constant uint&, uint3, uint, uint, uint);
#define INSTANTIATE_MANY(name, T)                                                                                                \
  template [[host_name(name)]] kernel void codes_grouped_matmul_many<T>(device const T*, device const uchar*, device const uint*, \
                                                                        device const uint4*, device const uint*, device float*,   \
                                                                        device const float*, constant uint&, uint3, uint, uint, uint);
INSTANTIATE_FEW("codes_grouped_matmul_8_f32", float, 1)
INSTANTIATE_FEW("codes_grouped_matmul_8_f16", half, 1)
INSTANTIATE_FEW("codes_grouped_matmul_8_bf16", bfloat, 1)
INSTANTIATE_FEW("codes_grouped_matmul_32_f32", float, 4)
INSTANTIATE_FEW("codes_grouped_matmul_32_f16", half, 4)
INSTANTIATE_FEW("codes_grouped_matmul_32_bf16", bfloat, 4)
INSTANTIATE_MANY("codes_grouped_matmul_64_f32", float)
INSTANTIATE_MANY("codes_grouped_matmul_64_f16", half)
INSTANTIATE_MANY("codes_grouped_matmul_64_bf16", bfloat)
