// rope_kv_write: with c = cos[p, i], s = sin[p, i] at the token's position p, each query and key head x becomes
// x[i] * c - x[i + HEAD_DIM / 2] * s and x[i + HEAD_DIM / 2] * c + x[i] * s. Queries are rotated in place, in f32; rotated keys and the
// values are rounded once and written to the cache at the token's slot.
//
// Grid: x: tokens, y: groups of THREADS quads. A thread owns four neighbouring elements of the first half of a query, key or value head
// and their partners in the second half.
// Cache: keys [block][head][token][HEAD_DIM], values [block][head][HEAD_DIM][token].
// Threadgroup memory: none.
// Bytes that must move: rows * HEAD_DIM * (num_heads * 8 + num_kv_heads * (8 + 2 * sizeof(T)) + 4) + rows * 8. A decode's tokens are in
// blocks of their own, where memory moves 32 bytes for each element of a value.

constant uint HEAD_DIM [[function_constant(0)]];
constant uint NUM_HEADS [[function_constant(1)]];
constant uint NUM_KV_HEADS [[function_constant(2)]];
constant uint BLOCK_SIZE [[function_constant(3)]];
constant uint THREADS [[function_constant(4)]];

template <typename T>
kernel void rope_kv_write(device float* qkv [[buffer(0)]], device const uint* positions [[buffer(1)]],
                          device const uint* slot_mapping [[buffer(2)]], device const float* cos [[buffer(3)]],
                          device const float* sin [[buffer(4)]], device T* keys [[buffer(5)]], device T* values [[buffer(6)]],
                          uint2 position [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  const uint heads = NUM_HEADS + 2 * NUM_KV_HEADS;
  const uint quads = HEAD_DIM / 8;
  uint token = position.x;
  uint item = position.y * THREADS + thread_index;
  if (item >= heads * quads) return;
  uint head = item / quads;
  uint quad = item % quads;
  device float* row = qkv + (ulong(token) * heads + head) * HEAD_DIM;
  float4 x = load_quad(row, quad, HEAD_DIM);
  float4 y = load_quad(row, quad + quads, HEAD_DIM);

  if (head < NUM_HEADS + NUM_KV_HEADS) {
    ulong angle = ulong(positions[token]) * (HEAD_DIM / 2);
    float4 c = load_quad(cos + angle, quad, HEAD_DIM / 2);
    float4 s = load_quad(sin + angle, quad, HEAD_DIM / 2);
    float4 first = rotate_first(x, y, c, s);
    y = rotate_second(x, y, c, s);
    x = first;
  }
  if (head < NUM_HEADS) {
    store_quad(row, quad, HEAD_DIM, x);
    store_quad(row, quad + quads, HEAD_DIM, y);
    return;
  }

  uint slot = slot_mapping[token];
  uint kv_head = (head - NUM_HEADS) % NUM_KV_HEADS;
  ulong at = (ulong(slot / BLOCK_SIZE) * NUM_KV_HEADS + kv_head) * (BLOCK_SIZE * HEAD_DIM);
  uint offset = slot % BLOCK_SIZE;
  if (head < NUM_HEADS + NUM_KV_HEADS) {
    device T* key = keys + at + offset * HEAD_DIM;
    store_quad(key, quad, HEAD_DIM, x);
    store_quad(key, quad + quads, HEAD_DIM, y);
    return;
  }
  device T* value = values + at + offset;
#pragma unroll
  for (uint e = 0; e < 4; e++) {
    value[(4 * quad + e) * BLOCK_SIZE] = T(x[e]);
    value[(4 * (quad + quads) + e) * BLOCK_SIZE] = T(y[e]);
  }
}

#define INSTANTIATE(name, T)                                                                                                   \
  template [[host_name(name)]] kernel void rope_kv_write<T>(device float*, device const uint*, device const uint*,             \
                                                            device const float*, device const float*, device T*, device T*, uint2, \
                                                            uint);
INSTANTIATE("rope_kv_write_f32", float)
INSTANTIATE("rope_kv_write_f16", half)
INSTANTIATE("rope_kv_write_bf16", bfloat)
