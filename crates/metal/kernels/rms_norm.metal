// rms_norm: out[t, i] = x[t, i] / sqrt(mean_i(x[t, i]^2) + eps) * weight[i]
//
// Grid: one threadgroup per row. Thread t owns the elements t, t + THREADS, …: it reads them twice (the second time from the
// cache) and writes them.
// Order of the sum: each thread its own elements in ascending order, then threadgroup_sum. It depends on `hidden` alone, because
// the host derives the number of threads from `hidden` alone.
// Threadgroup memory: 32 floats. Bytes that must move: rows * hidden * (4 + sizeof(T)) + hidden * 4.

constant uint HIDDEN [[function_constant(0)]];
constant uint THREADS [[function_constant(1)]];

struct RmsNormParams {
  float eps;
};

template <typename T>
kernel void rms_norm(device const float* x [[buffer(0)]], device const float* weight [[buffer(1)]], device T* out [[buffer(2)]],
                     constant RmsNormParams& params [[buffer(3)]], uint row [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[32];
  x += ulong(row) * HIDDEN;
  out += ulong(row) * HIDDEN;
  float sum = 0.0f;
  for (uint i = thread_index; i < HIDDEN; i += THREADS) sum = fma(x[i], x[i], sum);
  sum = threadgroup_sum(sum, partial, lane, simdgroup, THREADS / 32);
  float scale = 1.0f / sqrt(sum / float(HIDDEN) + params.eps);
  for (uint i = thread_index; i < HIDDEN; i += THREADS) out[i] = T(x[i] * scale * weight[i]);
}

#define INSTANTIATE(name, T)                                                                                      \
  template [[host_name(name)]] kernel void rms_norm<T>(device const float*, device const float*, device T*,       \
                                                       constant RmsNormParams&, uint, uint, uint, uint);
INSTANTIATE("rms_norm_f32", float)
INSTANTIATE("rms_norm_f16", half)
INSTANTIATE("rms_norm_bf16", bfloat)
