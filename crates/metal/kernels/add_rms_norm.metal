// add_rms_norm: residual[t, :] += delta[t, :], then rms_norm of residual
//
// Grid, ownership and order of the sum: those of rms_norm, so that the norm of the same residual has the same bits.
// Threadgroup memory: 128 bytes. Bytes that must move: rows * hidden * (12 + sizeof(T)) + hidden * 4.

constant uint HIDDEN [[function_constant(0)]];
constant uint THREADS [[function_constant(1)]];

// The host asks for 512 threads at most: rows of up to 8192 elements keep four quads a thread, longer ones more.
constant constexpr uint KEPT = 16;

template <typename T>
kernel void add_rms_norm(device float* residual [[buffer(0)]], device const float* delta [[buffer(1)]],
                  device const float* weight [[buffer(2)]], device T* out [[buffer(3)]], constant float& eps [[buffer(4)]],
                  uint row [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[32];
  const uint quads = (HIDDEN + 3) / 4;
  residual += ulong(row) * HIDDEN;
  delta += ulong(row) * HIDDEN;
  out += ulong(row) * HIDDEN;

  float4 kept[KEPT];
#pragma unroll
  for (uint c = 0; c < KEPT; c++) {
    uint quad = c * THREADS + thread_index;
    bool there = c * THREADS < quads && quad < quads;
    kept[c] = there ? load_quad(residual, quad, HIDDEN) + load_quad(delta, quad, HIDDEN) : float4(0.0f);
  }

  float4 squares = float4(0.0f);
#pragma unroll
  for (uint c = 0; c < KEPT; c++) squares = fma(kept[c], kept[c], squares);
  float sum = threadgroup_sum((squares.x + squares.y) + (squares.z + squares.w), partial, lane, simdgroup, THREADS / 32);
  float scale = 1.0f / sqrt(sum / float(HIDDEN) + eps);

#pragma unroll
  for (uint c = 0; c < KEPT; c++) {
    uint quad = c * THREADS + thread_index;
    if (c * THREADS < quads && quad < quads) {
      store_quad(residual, quad, HIDDEN, kept[c]);
      store_quad(out, quad, HIDDEN, kept[c] * scale * load_quad(weight, quad, HIDDEN));
    }
  }
}

#define INSTANTIATE(name, T)                                                                                     \
  template [[host_name(name)]] kernel void add_rms_norm<T>(device float*, device const float*, device const float*, \
                                                           device T*, constant float&, uint, uint, uint, uint);
INSTANTIATE("add_rms_norm_f32", float)
INSTANTIATE("add_rms_norm_f16", half)
INSTANTIATE("add_rms_norm_bf16", bfloat)
