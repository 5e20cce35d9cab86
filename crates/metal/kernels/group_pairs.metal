// group_pairs: the pairs of a token and an expert, sorted by expert, and cut into tiles of pairs with the same expert
//
// order: the pairs' numbers, by expert and then ascending. tiles[i] = (expert, where its pairs begin in `order`, how many, 0); as many
// pairs as params.tile_rows in each, fewer in an expert's last; tiles behind the last have no pairs.
//
// Grid: one threadgroup. A simdgroup owns the experts simdgroup, simdgroup + simdgroups, …
// Threadgroup memory: 12 KiB. Bytes that must move: pairs * 8 + tiles * 16; the ids are read twice per expert, from the cache.

#define MAX_EXPERTS 1024

struct GroupParams {
  uint pairs;
  uint experts;
  uint tile_rows;
  uint tiles;
};

kernel void group_pairs(device const uint* ids [[buffer(0)]], device uint4* tiles [[buffer(1)]], device uint* order [[buffer(2)]],
                        constant GroupParams& params [[buffer(3)]], uint thread_index [[thread_index_in_threadgroup]],
                        uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint counts[MAX_EXPERTS];
  // Where an expert's pairs and tiles begin.
  threadgroup uint first_pair[MAX_EXPERTS];
  threadgroup uint first_tile[MAX_EXPERTS];
  threadgroup uint used[1];
  uint pairs = params.pairs, experts = params.experts, rows = params.tile_rows, simdgroups = threads / 32;

  for (uint expert = simdgroup; expert < experts; expert += simdgroups) {
    uint count = 0;
    for (uint i = lane; i < pairs; i += 32) count += ids[i] == expert ? 1 : 0;
    count = simd_sum(count);
    if (lane == 0) counts[expert] = count;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (simdgroup == 0) {
    uint pair = 0, tile = 0;
    for (uint base = 0; base < experts; base += 32) {
      uint expert = base + lane, count = expert < experts ? counts[expert] : 0, tiles_of_it = (count + rows - 1) / rows;
      uint pairs_before = simd_prefix_exclusive_sum(count), tiles_before = simd_prefix_exclusive_sum(tiles_of_it);
      if (expert < experts) {
        first_pair[expert] = pair + pairs_before;
        first_tile[expert] = tile + tiles_before;
      }
      pair += simd_sum(count);
      tile += simd_sum(tiles_of_it);
    }
    if (lane == 0) used[0] = tile;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (uint expert = simdgroup; expert < experts; expert += simdgroups) {
    uint first = first_pair[expert], tile = first_tile[expert], count = counts[expert];
    for (uint i = lane; i * rows < count; i += 32) {
      tiles[tile + i] = uint4(expert, first + i * rows, min(rows, count - i * rows), 0u);
    }
    if (count == 0) continue;
    uint at = first;
    for (uint base = 0; base < pairs; base += 32) {
      uint pair = base + lane, mine = pair < pairs && ids[min(pair, pairs - 1)] == expert ? 1 : 0;
      uint before = simd_prefix_exclusive_sum(mine);
      if (mine != 0) order[at + before] = pair;
      at += simd_sum(mine);
    }
  }
  for (uint i = used[0] + thread_index; i < params.tiles; i += threads) tiles[i] = uint4(0u, 0u, 0u, 0u);
}
