// permute_columns: out[t, c] = x[t, order[0, c]], or with experts out[t * top_k + j, c] = x[t, order[ids[t, j], c]]
//
// Grid: x: rows of out, y: groups of THREADS columns. A thread copies one element, as bits.
// Threadgroup memory: none. Bytes that must move: (rows of x and of out) * cols * element bytes + (orders in use) * cols * 4.

constant uint COLS [[function_constant(0)]];
constant uint THREADS [[function_constant(1)]];
// Experts of a token; 0: there are none, and no `ids`.
constant uint TOP_K [[function_constant(2)]];

template <typename Word>
kernel void permute_columns(device const Word* x [[buffer(0)]], device const uint* order [[buffer(1)]], device Word* out [[buffer(2)]],
                            device const uint* ids [[buffer(3)]], uint2 position [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint column = position.y * THREADS + thread_index;
  if (column >= COLS) return;
  uint from = position.x;
  ulong expert = 0;
  if (TOP_K != 0) {
    expert = ids[position.x];
    from /= TOP_K;
  }
  out[ulong(position.x) * COLS + column] = x[ulong(from) * COLS + order[expert * COLS + column]];
}

#define INSTANTIATE(name, Word)                                                                                          \
  template [[host_name(name)]] kernel void permute_columns<Word>(device const Word*, device const uint*, device Word*, \
                                                                 device const uint*, uint2, uint);
INSTANTIATE("permute_columns_4", uint)
INSTANTIATE("permute_columns_2", ushort)
