// embedding with a table of codes: out[t, k] = table[ids[t], k] * scale, in f32, with the elements that codes.metal makes of codes
//
// Grid: one threadgroup per token. Thread i owns pair i % 4 of piece i / 4 of the row, then the next.
// Threadgroup memory: none. Bytes that must move: rows * (a row's codes and scales + K * 4 + 4). Codes of 4 bits lie in runs of 64 bytes, so that
// lines of 128 bytes bring as much again of the next row.

kernel void codes_embedding(device const uint* ids [[buffer(0)]], device const uchar* table [[buffer(1)]],
                            device float* out [[buffer(2)]], constant float& scale [[buffer(3)]],
                            uint token [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                            uint threads [[threads_per_threadgroup]]) {
  CodeRow row = code_row(table, ids[token]);
  device float* to = out + ulong(token) * K;
  for (uint i = thread_index; i / 4 * piece_size() < K; i += threads) {
    Piece piece = load_piece(row, i / 4, i % 4);
    for (uint block = 0; block < piece_blocks(); block++) {
      uint k = i / 4 * piece_size() + block * BLOCK + i % 4 * 8;
      if (k >= K) break;
      float4 low, high;
#pragma unroll
      for (uint t = 0; t < 4; t++) {
        float2 elements = weight_pair(piece, t) * scale;
        low[t] = elements.x;
        high[t] = elements.y;
      }
      store_quad(to, k / 4, K, low);
      if (k + 4 < K) store_quad(to, k / 4 + 1, K, high);
      next_block(piece, block);
    }
  }
}
