// gather_rows: out[i, :] = x[indices[i], :]
//
// Grid: x: rows picked, y: groups of THREADS words. A thread copies one word: 16 bytes, or as many as divide a row.
// Threadgroup memory: none. Bytes that must move: 2 * rows * row bytes + rows * 4.

constant uint WORDS [[function_constant(0)]];
constant uint THREADS [[function_constant(1)]];

template <typename Word>
kernel void gather_rows(device const Word* x [[buffer(0)]], device const uint* indices [[buffer(1)]], device Word* out [[buffer(2)]],
                        uint2 position [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint word = position.y * THREADS + thread_index;
  if (word >= WORDS) return;
  out[ulong(position.x) * WORDS + word] = x[ulong(indices[position.x]) * WORDS + word];
}

#define INSTANTIATE(name, Word)                                                                                 \
  template [[host_name(name)]] kernel void gather_rows<Word>(device const Word*, device const uint*, device Word*, \
                                                             uint2, uint);
INSTANTIATE("gather_rows_16", uint4)
INSTANTIATE("gather_rows_4", uint)
INSTANTIATE("gather_rows_2", ushort)
