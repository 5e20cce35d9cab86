// embedding: out[t, k] = table[ids[t], k] * scale, in f32
//
// Grid: one threadgroup per token. Thread i owns 16 bytes of the row, from element i * V on, V = 16 / sizeof(T), then the next.
// Threadgroup memory: none. Bytes that must move: rows * K * (sizeof(T) + 4) + rows * 4.

// Elements 4 * quad to 4 * quad + 3 of 16 bytes.
template <typename T>
struct Quad {
  static INLINE float4 of(uint4 bits, uint quad) {
    float2 low = Pack<T>::unpack(bits[2 * quad]), high = Pack<T>::unpack(bits[2 * quad + 1]);
    return float4(low.x, low.y, high.x, high.y);
  }
};
template <>
struct Quad<float> {
  static INLINE float4 of(uint4 bits, uint) { return as_type<float4>(bits); }
};

template <typename T>
kernel void embedding(device const uint* ids [[buffer(0)]], device const T* table0 [[buffer(1)]], device const T* table1 [[buffer(2)]],
                      device const T* table2 [[buffer(3)]], device float* out [[buffer(4)]], constant float& scale [[buffer(5)]],
                      uint token [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                      uint threads [[threads_per_threadgroup]]) {
  constexpr uint V = 16 / sizeof(T);
  Weights<T> table = {table0, table1, table2};
  device const T* from = weight_row(table, ids[token]);
  device float* to = out + ulong(token) * K;
  for (uint k = thread_index * V; k < K; k += threads * V) {
    uint4 bits = load16(from, k, K % V == 0);
#pragma unroll
    for (uint quad = 0; quad < V / 4; quad++) {
      if (k + quad * 4 < K) store_quad(to, k / 4 + quad, K, Quad<T>::of(bits, quad) * scale);
    }
  }
}

#define INSTANTIATE(name, T)                                                                                              \
  template [[host_name(name)]] kernel void embedding<T>(device const uint*, device const T*, device const T*, device const T*, \
                                                        device float*, constant float&, uint, uint, uint);
INSTANTIATE("embedding_f32", float)
INSTANTIATE("embedding_f16", half)
INSTANTIATE("embedding_bf16", bfloat)
