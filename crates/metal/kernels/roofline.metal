// What a GPU can do at most: read_bandwidth reads memory, peak_flops multiplies matrices in registers. Speeds of kernels are stated as
// fractions of these.

constant constexpr uint LOADS = 16;
constant constexpr uint THREADS = 256;
constant constexpr uint CHAINS = 8;

// Grid: a threadgroup per LOADS * THREADS elements of x. out[simdgroup]: all its bits, xor-ed, so that no load can be left out.
// Threadgroup memory: none. Bytes that must move: those of x.
kernel void read_bandwidth(device const uint4* x [[buffer(0)]], device uint* out [[buffer(1)]],
                           uint tile [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  uint4 loaded[LOADS];
#pragma unroll
  for (uint i = 0; i < LOADS; i++) loaded[i] = x[(ulong(tile) * LOADS + i) * THREADS + thread_index];
  // Keeps the compiler from moving loads to their uses.
  simdgroup_barrier(mem_flags::mem_none);
  uint4 bits = uint4(0u);
#pragma unroll
  for (uint i = 0; i < LOADS; i++) bits ^= loaded[i];
  uint all = simd_xor(bits.x ^ bits.y ^ bits.z ^ bits.w);
  if (lane == 0) out[tile * (THREADS / 32) + simdgroup] = all;
}

struct PeakParams {
  uint rounds;
};

// Grid: any number of threadgroups. CHAINS sums of products of 8x8 matrices of f32, as all kernels multiply, each added to `rounds` times.
// Threadgroup memory: none. Bytes that must move: none.
kernel void peak_flops(device float* out [[buffer(0)]], constant PeakParams& params [[buffer(1)]],
                       uint tile [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  Matrix left = Matrix(1.0f), right = Matrix(0.5f);
  Matrix sums[CHAINS];
#pragma unroll
  for (uint i = 0; i < CHAINS; i++) sums[i] = Matrix(float(i));
  for (uint round = 0; round < params.rounds; round++) {
#pragma unroll
    for (uint i = 0; i < CHAINS; i++) simdgroup_multiply_accumulate(sums[i], left, right, sums[i]);
  }
  float2 total = float2(0.0f);
#pragma unroll
  for (uint i = 0; i < CHAINS; i++) total += get_elements(sums[i]);
  out[tile * THREADS + thread_index] = total.x + total.y;
}
