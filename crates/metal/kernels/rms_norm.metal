// rms_norm: out[t, i] = x[t, i] / sqrt(mean_i(x[t, i]^2) + eps) * weight[i]
//
// Grid: one threadgroup per row. A quad is four neighbouring elements. Thread t owns the quads t, t + THREADS, …, at most KEPT: it
// reads them once, keeps them in registers and writes them.
// Order of the sum: each thread its own quads in ascending order, by component; the four components; then threadgroup_sum. It depends
// on `hidden` alone, because the host derives the number of threads from `hidden` alone. add_rms_norm has the same order.
// Threadgroup memory: 128 bytes. Bytes that must move: rows * hidden * (4 + sizeof(T)) + hidden * 4.

constant uint HIDDEN [[function_constant(0)]];
constant uint THREADS [[function_constant(1)]];

// The host asks for 512 threads at most: rows of up to 8192 elements keep four quads a thread, longer ones more.
constant constexpr uint KEPT = 16;

template <typename T>
kernel void rms_norm(device const float* x [[buffer(0)]], device const float* weight [[buffer(1)]], device T* out [[buffer(2)]],
              constant float& eps [[buffer(3)]], uint row [[threadgroup_position_in_grid]],
              uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
              uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[32];
  const uint quads = (HIDDEN + 3) / 4;
  x += ulong(row) * HIDDEN;
  out += ulong(row) * HIDDEN;

  float4 kept[KEPT];
#pragma unroll
  for (uint c = 0; c < KEPT; c++) {
    uint quad = c * THREADS + thread_index;
    kept[c] = c * THREADS < quads && quad < quads ? load_quad(x, quad, HIDDEN) : float4(0.0f);
  }

  float4 squares = float4(0.0f);
#pragma unroll
  for (uint c = 0; c < KEPT; c++) squares = fma(kept[c], kept[c], squares);
  float sum = threadgroup_sum((squares.x + squares.y) + (squares.z + squares.w), partial, lane, simdgroup, THREADS / 32);
  float scale = 1.0f / sqrt(sum / float(HIDDEN) + eps);

#pragma unroll
  for (uint c = 0; c < KEPT; c++) {
    uint quad = c * THREADS + thread_index;
    if (c * THREADS < quads && quad < quads) store_quad(out, quad, HIDDEN, kept[c] * scale * load_quad(weight, quad, HIDDEN));
  }
}

#define INSTANTIATE(name, T)                                                                                       \
  template [[host_name(name)]] kernel void rms_norm<T>(device const float*, device const float*, device T*,        \
                                                       constant float&, uint, uint, uint, uint);
INSTANTIATE("rms_norm_f32", float)
INSTANTIATE("rms_norm_f16", half)
INSTANTIATE("rms_norm_bf16", bfloat)
