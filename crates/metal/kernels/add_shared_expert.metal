// add_shared_expert: out[t, :] += x[t, :] / (1 + e^-gate[t])
//
// Grid: x: tokens, y: groups of THREADS quads. A thread owns a quad, four neighbouring elements of `out`.
// Threadgroup memory: none. Bytes that must move: rows * hidden * 12 + rows * 4.

constant uint HIDDEN [[function_constant(0)]];
constant uint THREADS [[function_constant(1)]];

kernel void add_shared_expert(device const float* x [[buffer(0)]], device const float* gate [[buffer(1)]],
                              device float* out [[buffer(2)]], uint2 position [[threadgroup_position_in_grid]],
                              uint thread_index [[thread_index_in_threadgroup]]) {
  uint quad = position.y * THREADS + thread_index;
  if (quad >= (HIDDEN + 3) / 4) return;
  ulong row = ulong(position.x) * HIDDEN;
  float weight = sigmoid(gate[position.x]);
  float4 sum = fma(float4(weight), load_quad(x + row, quad, HIDDEN), load_quad(out + row, quad, HIDDEN));
  store_quad(out + row, quad, HIDDEN, sum);
}
