// rope: with c = cos[p, i], s = sin[p, i] at the token's position p, each query head x becomes x[i] * c - x[i + HALF] * s and
// x[i + HALF] * c + x[i] * s. The rounding is that of rope_kv_write.
//
// Grid: x: tokens, y: groups of THREADS quads. A thread owns four neighbouring elements of the first half of a head and their partners
// in the second half.
// Threadgroup memory: none. Bytes that must move: rows * (num_heads * head_dim * 8 + HALF * 8 + 4).

constant uint HALF [[function_constant(0)]];
constant uint NUM_HEADS [[function_constant(1)]];
constant uint THREADS [[function_constant(2)]];

kernel void rope(device float* q [[buffer(0)]], device const uint* positions [[buffer(1)]], device const float* cos [[buffer(2)]],
                 device const float* sin [[buffer(3)]], uint2 position [[threadgroup_position_in_grid]],
                 uint thread_index [[thread_index_in_threadgroup]]) {
  const uint quads = (HALF + 3) / 4;
  uint item = position.y * THREADS + thread_index;
  if (item >= NUM_HEADS * quads) return;
  uint head = item / quads;
  uint quad = item % quads;
  ulong angle = ulong(positions[position.x]) * HALF;
  float4 c = load_quad(cos + angle, quad, HALF);
  float4 s = load_quad(sin + angle, quad, HALF);
  device float* first = q + (ulong(position.x) * NUM_HEADS + head) * (2 * HALF);
  device float* second = first + HALF;
  float4 x = load_quad(first, quad, HALF);
  float4 y = load_quad(second, quad, HALF);
  store_quad(first, quad, HALF, rotate_first(x, y, c, s));
  store_quad(second, quad, HALF, rotate_second(x, y, c, s));
}
