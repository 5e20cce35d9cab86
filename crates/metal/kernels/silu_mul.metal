// silu_mul: out[t, i] = silu(gate_up[t, i]) * gate_up[t, INTERMEDIATE + i], silu(x) = x / (1 + e^-x)
//
// Grid: x: rows, y: groups of THREADS quads. A thread owns a quad, four neighbouring elements of `out`.
// Threadgroup memory: none. Bytes that must move: rows * intermediate * (8 + sizeof(T)).

constant uint INTERMEDIATE [[function_constant(0)]];
constant uint THREADS [[function_constant(1)]];

template <typename T>
kernel void silu_mul(device const float* gate_up [[buffer(0)]], device T* out [[buffer(1)]],
                     uint2 position [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint quad = position.y * THREADS + thread_index;
  if (quad >= (INTERMEDIATE + 3) / 4) return;
  device const float* gates = gate_up + ulong(position.x) * (2 * INTERMEDIATE);
  float4 gate = load_quad(gates, quad, INTERMEDIATE);
  float4 up = load_quad(gates + INTERMEDIATE, quad, INTERMEDIATE);
  float4 weight = float4(sigmoid(gate.x), sigmoid(gate.y), sigmoid(gate.z), sigmoid(gate.w));
  store_quad(out + ulong(position.x) * INTERMEDIATE, quad, INTERMEDIATE, gate * weight * up);
}

#define INSTANTIATE(name, T) \
  template [[host_name(name)]] kernel void silu_mul<T>(device const float*, device T*, uint2, uint);
INSTANTIATE("silu_mul_f32", float)
INSTANTIATE("silu_mul_f16", half)
INSTANTIATE("silu_mul_bf16", bfloat)
