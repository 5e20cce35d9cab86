// moe_combine: out[t, :] = sum_j weights[t, j] * x[t * TOP_K + j, :], j ascending
//
// Grid: x: tokens, y: groups of THREADS quads. A thread owns a quad, four neighbouring elements of `out`, and adds its experts up in
// a register.
// Threadgroup memory: none. Bytes that must move: rows * (TOP_K + 1) * hidden * 4 + rows * TOP_K * 4.

constant uint HIDDEN [[function_constant(0)]];
constant uint TOP_K [[function_constant(1)]];
constant uint THREADS [[function_constant(2)]];

kernel void moe_combine(device const float* x [[buffer(0)]], device const float* weights [[buffer(1)]],
                        device float* out [[buffer(2)]], uint2 position [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]]) {
  uint quad = position.y * THREADS + thread_index;
  if (quad >= (HIDDEN + 3) / 4) return;
  ulong first = ulong(position.x) * TOP_K;
  float4 sum = float4(0.0f);
  for (uint j = 0; j < TOP_K; j++) {
    sum = fma(float4(weights[first + j]), load_quad(x + (first + j) * HIDDEN, quad, HIDDEN), sum);
  }
  store_quad(out + ulong(position.x) * HIDDEN, quad, HIDDEN, sum);
}
