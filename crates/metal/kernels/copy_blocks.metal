// copy_blocks: block pairs[2 * p + 1] of keys and values becomes block pairs[2 * p]
//
// Grid: x: pairs, y: groups of THREADS words of 16 bytes. A thread copies a word of the keys and the one of the same place of the
// values. No block is both read and written.
// Threadgroup memory: none. Bytes that must move: 4 * pairs * block bytes of keys + pairs * 8.

constant uint BLOCK_WORDS [[function_constant(0)]];
constant uint THREADS [[function_constant(1)]];

kernel void copy_blocks(device const uint* pairs [[buffer(0)]], device uint4* keys [[buffer(1)]], device uint4* values [[buffer(2)]],
                        uint2 position [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint word = position.y * THREADS + thread_index;
  if (word >= BLOCK_WORDS) return;
  ulong from = ulong(pairs[2 * position.x]) * BLOCK_WORDS + word;
  ulong to = ulong(pairs[2 * position.x + 1]) * BLOCK_WORDS + word;
  uint4 key = keys[from];
  uint4 value = values[from];
  keys[to] = key;
  values[to] = value;
}
