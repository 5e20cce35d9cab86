// permute_columns: out[t, j] = x[t, order[j]]
//
// Grid: x: rows, y: groups of THREADS columns. A thread copies one element, as bits.
// Threadgroup memory: none. Bytes that must move: 2 * rows * cols * element bytes + cols * 4.

constant uint COLS [[function_constant(0)]];
constant uint THREADS [[function_constant(1)]];

template <typename Word>
kernel void permute_columns(device const Word* x [[buffer(0)]], device const uint* order [[buffer(1)]], device Word* out [[buffer(2)]],
                            uint2 position [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint column = position.y * THREADS + thread_index;
  if (column >= COLS) return;
  ulong row = ulong(position.x) * COLS;
  out[row + column] = x[row + order[column]];
}

#define INSTANTIATE(name, Word)                                                                                          \
  template [[host_name(name)]] kernel void permute_columns<Word>(device const Word*, device const uint*, device Word*, \
                                                                 uint2, uint);
INSTANTIATE("permute_columns_4", uint)
INSTANTIATE("permute_columns_2", ushort)
