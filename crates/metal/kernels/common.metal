// What all kernel files share. It comes before the text of each file.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

// Two elements of type T in 32 bits (in 64 for float), as loaded, in f32.
// bfloat is widened by hand: chips without native bfloat emulate the conversion slowly.
template <typename T>
struct Pack;
template <>
struct Pack<float> {
  static inline float2 unpack(uint2 bits) { return as_type<float2>(bits); }
};
template <>
struct Pack<half> {
  static inline float2 unpack(uint bits) { return float2(as_type<half2>(bits)); }
};
template <>
struct Pack<bfloat> {
  static inline float2 unpack(uint bits) { return float2(as_type<float>(bits << 16), as_type<float>(bits & 0xffff0000u)); }
};

// The sum of `value` over a threadgroup of `simdgroups` simdgroups (at most 32), in every thread: lanes first, then simdgroups,
// each by simd_sum. `partial` holds 32 floats, which must not be in use; they may be used again after the next barrier.
inline float threadgroup_sum(float value, threadgroup float* partial, uint lane, uint simdgroup, uint simdgroups) {
  value = simd_sum(value);
  if (lane == 0) partial[simdgroup] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
}
