// grouped_matmul: out[p, n] = sum_k x[p / PAIRS_PER_ROW, k] * weight[ids[p], n, k] + bias[ids[p], n] for pairs p of a token and an expert
// `out` begins at the first product's column, and its rows are out_cols apart.
//
// Grid: x = 16 outputs (few rows, a simdgroup per slice of K) or 64 (many rows), y = tile of pairs with the same expert, from
// group_pairs; threadgroups of tiles without pairs end at once. Without GROUPED each pair is a tile of its own: the pairs of a
// single token have different experts. See matmul_tile.metal for who owns what, and for the order of the sums, which is matmul's.
// Threadgroup memory: 4 or 16 KiB for 8 or 32 rows; 16 KiB for 64.
// Bytes that must move: (experts in use) * N * K * sizeof(T) + x + pairs * N * 4 (+ (experts in use) * N * 4 for the bias).

// An expert's weight: offsets[expert] says where its arrays of rows begin, in units of 8 bytes.
template <typename T>
INLINE Weights<T> expert_weights(device const uchar* weights, device const uint* offsets, uint expert) {
  device const uint* of_it = offsets + expert * 3;
  Weights<T> found;
  found.part0 = (device const T*)(weights + ulong(of_it[0]) * 8);
  found.part1 = (device const T*)(weights + ulong(of_it[1]) * 8);
  found.part2 = (device const T*)(weights + ulong(of_it[2]) * 8);
  return found;
}

template <typename T, int C>
kernel void grouped_matmul_few(device const T* x [[buffer(0)]], device const uchar* weights [[buffer(1)]],
                               device const uint* offsets [[buffer(2)]], device const uint* ids [[buffer(3)]],
                               device const uint4* tiles [[buffer(4)]], device const uint* order [[buffer(5)]],
                               device float* out [[buffer(6)]], device const float* bias [[buffer(7)]],
                               constant uint& out_cols [[buffer(8)]], uint3 at [[threadgroup_position_in_grid]],
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
  few_rows_tile<T, C, PairRows>(x, expert_weights<T>(weights, offsets, tile.x), bias + ulong(tile.x) * N, out, rows, partial,
                                at.x * 16, thread_index, lane, simdgroup);
}

template <typename T>
kernel void grouped_matmul_many(device const T* x [[buffer(0)]], device const uchar* weights [[buffer(1)]],
                                device const uint* offsets [[buffer(2)]], device const uint* ids [[buffer(3)]],
                                device const uint4* tiles [[buffer(4)]], device const uint* order [[buffer(5)]],
                                device float* out [[buffer(6)]], device const float* bias [[buffer(7)]],
                                constant uint& out_cols [[buffer(8)]], uint3 at [[threadgroup_position_in_grid]],
                                uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                                uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint2 staged[2 * STAGE];
  uint4 tile = tiles[at.y];
  if (tile.z == 0) return;
  PairRows rows = {order, tile.y, tile.z, out_cols};
  many_rows_tile<T, PairRows>(x, expert_weights<T>(weights, offsets, tile.x), bias + ulong(tile.x) * N, out, rows, staged,
                              at.x * TILE, thread_index, lane, simdgroup);
}

#define INSTANTIATE_FEW(name, T, C)                                                                                          \
  template [[host_name(name)]] kernel void grouped_matmul_few<T, C>(device const T*, device const uchar*, device const uint*,   \
                                                                    device const uint*, device const uint4*, device const uint*, \
                                                                    device float*, device const float*, constant uint&, uint3,    \
                                                                    uint, uint, uint);
#define INSTANTIATE_MANY(name, T)                                                                                            \
  template [[host_name(name)]] kernel void grouped_matmul_many<T>(device const T*, device const uchar*, device const uint*,     \
                                                                  device const uint*, device const uint4*, device const uint*,  \
                                                                  device float*, device const float*, constant uint&, uint3,   \
                                                                  uint, uint, uint);
INSTANTIATE_FEW("grouped_matmul_8_f32", float, 1)
INSTANTIATE_FEW("grouped_matmul_8_f16", half, 1)
INSTANTIATE_FEW("grouped_matmul_8_bf16", bfloat, 1)
INSTANTIATE_FEW("grouped_matmul_32_f32", float, 4)
INSTANTIATE_FEW("grouped_matmul_32_f16", half, 4)
INSTANTIATE_FEW("grouped_matmul_32_bf16", bfloat, 4)
INSTANTIATE_MANY("grouped_matmul_64_f32", float)
INSTANTIATE_MANY("grouped_matmul_64_f16", half)
INSTANTIATE_MANY("grouped_matmul_64_bf16", bfloat)
