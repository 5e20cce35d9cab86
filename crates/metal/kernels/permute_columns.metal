// permute_columns: out[t, c] = x[t, order[0, c]], or with experts out[t * top_k + j, c] = x[t, order[ids[t, j], c]]
//
// Grid: x: rows of x, y: groups of THREADS elements of what becomes of one. A thread copies one element, as bits.
// Threadgroup memory: none. Bytes that must move: (rows of x and of out) * cols * element bytes + (orders in use) * cols * 4.

constant uint COLS [[function_constant(0)]];
constant uint THREADS [[function_constant(1)]];
// Experts of a token, or 1.
constant uint TOP_K [[function_constant(2)]];
// Whether there are `ids`.
constant bool HAS_EXPERTS [[function_constant(3)]];

template <typename Word>
kernel void permute_columns(device const Word* x [[buffer(0)]], device const uint* order [[buffer(1)]],
                            device const uint* ids [[buffer(2)]], device Word* out [[buffer(3)]],
                            uint2 position [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint element = position.y * THREADS + thread_index;
  if (element >= TOP_K * COLS) return;
  uint column = element;
  ulong of_expert = 0;
  if (HAS_EXPERTS) {
    column = element % COLS;
    of_expert = ulong(ids[position.x * TOP_K + element / COLS]) * COLS;
  }
  out[ulong(position.x) * (TOP_K * COLS) + element] = x[ulong(position.x) * COLS + order[of_expert + column]];
}

#define INSTANTIATE(name, Word)                                                                                         \
  template [[host_name(name)]] kernel void permute_columns<Word>(device const Word*, device const uint*,               \
                                                                 device const uint*, device Word*, uint2, uint);
INSTANTIATE("permute_columns_4", uint)
INSTANTIATE("permute_columns_2", ushort)
