// gated_activation: out[t, i] = gate * sigmoid(y) * up, gate = gate_up[t, i], up = gate_up[t, INTERMEDIATE + i]; y is the gate itself
// (SiLU), 2 sqrt(2 / pi) (gate + 0.044715 gate^3) (the tanh approximation of GELU), or 1.702 gate, of gates and ups within bounds: see `gated`
//
// Grid: x: rows, y: groups of THREADS quads. A thread owns a quad, four neighbouring elements of `out`.
// Threadgroup memory: none. Bytes that must move: rows * intermediate * (8 + sizeof(T)).

constant uint INTERMEDIATE [[function_constant(0)]];
constant uint ACTIVATION [[function_constant(1)]];
constant uint THREADS [[function_constant(2)]];

template <typename T>
kernel void gated_activation(device const float* gate_up [[buffer(0)]], device T* out [[buffer(1)]],
                             uint2 position [[threadgroup_position_in_grid]],
                             uint thread_index [[thread_index_in_threadgroup]]) {
  uint quad = position.y * THREADS + thread_index;
  if (quad >= (INTERMEDIATE + 3) / 4) return;
  device const float* gates = gate_up + ulong(position.x) * (2 * INTERMEDIATE);
  float4 gate = load_quad(gates, quad, INTERMEDIATE);
  float4 up = load_quad(gates + INTERMEDIATE, quad, INTERMEDIATE);
  float4 activated = float4(gated(gate.x, up.x, ACTIVATION), gated(gate.y, up.y, ACTIVATION), gated(gate.z, up.z, ACTIVATION),
                            gated(gate.w, up.w, ACTIVATION));
  store_quad(out + ulong(position.x) * INTERMEDIATE, quad, INTERMEDIATE, activated);
}

#define INSTANTIATE(name, T) \
  template [[host_name(name)]] kernel void gated_activation<T>(device const float*, device T*, uint2, uint);
INSTANTIATE("gated_activation_f32", float)
INSTANTIATE("gated_activation_f16", half)
INSTANTIATE("gated_activation_bf16", bfloat)
