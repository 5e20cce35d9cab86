// What all kernel files share. It comes before the text of each file.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

// Functions become part of their kernels: one that was called would keep the arrays it is given in memory instead of registers.
#define INLINE inline __attribute__((always_inline))

// Two elements of type T in 32 bits (in 64 for float), as loaded, in f32.
// bfloat is widened by hand, as the upper half of a register: chips without native bfloat emulate the conversion slowly, and shift 32 bits at
// a quarter of the rate.
template <typename T>
struct Pack;
template <>
struct Pack<float> {
  static INLINE float2 unpack(uint2 bits) { return as_type<float2>(bits); }
};
template <>
struct Pack<half> {
  static INLINE float2 unpack(uint bits) { return float2(as_type<half2>(bits)); }
};
template <>
struct Pack<bfloat> {
  static INLINE float2 unpack(uint bits) {
    ushort2 elements = as_type<ushort2>(bits);
    return float2(as_type<float>(ushort2(0, elements.x)), as_type<float>(ushort2(0, elements.y)));
  }
};

// The sum of `value` over a threadgroup of `simdgroups` simdgroups (at most 32), in every thread: lanes first, then simdgroups,
// each by simd_sum. `partial` holds 32 floats, which must not be in use; they may be used again after the next barrier.
INLINE float threadgroup_sum(float value, threadgroup float* partial, uint lane, uint simdgroup, uint simdgroups) {
  value = simd_sum(value);
  if (lane == 0) partial[simdgroup] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
}

// Elements 4 * quad to 4 * quad + 3 of a row of `size` floats, zeros behind its end. `size` is a constant of the kernel, so that only
// one of the branches is compiled: rows of a multiple of 4 elements begin at a multiple of 16 bytes.
INLINE float4 load_quad(device const float* row, uint quad, uint size) {
  if (size % 4 == 0) return ((device const float4*)row)[quad];
  uint i = quad * 4;
  float4 v = float4(0.0f);
  if (i < size) v.x = row[i];
  if (i + 1 < size) v.y = row[i + 1];
  if (i + 2 < size) v.z = row[i + 2];
  if (i + 3 < size) v.w = row[i + 3];
  return v;
}

// The counterpart of load_quad: rounds once to T.
template <typename T>
INLINE void store_quad(device T* row, uint quad, uint size, float4 v) {
  if (size % 4 == 0) {
    vec<T, 4> rounded;
    rounded.x = T(v.x);
    rounded.y = T(v.y);
    rounded.z = T(v.z);
    rounded.w = T(v.w);
    ((device vec<T, 4>*)row)[quad] = rounded;
    return;
  }
  uint i = quad * 4;
  if (i < size) row[i] = T(v.x);
  if (i + 1 < size) row[i + 1] = T(v.y);
  if (i + 2 < size) row[i + 2] = T(v.z);
  if (i + 3 < size) row[i + 3] = T(v.w);
}

// e^x for x <= 0, within 2 units in the last place; 0 below -87 and of NaN. To the last bit what the ops' `exp` gives: Metal promises
// only 4 units for its own.
INLINE float exp_nonpositive(float x) {
  const float round = 12582912.0f;
  float clamped = x > -87.0f ? x : -87.0f;
  float shifted = fma(clamped, 1.44269504f, round);
  float n = shifted - round;
  float r = fma(-n, -2.12194440e-4f, fma(-n, 0.693359375f, clamped));
  float p = 1.9875691e-4f;
  p = fma(p, r, 1.3981999e-3f);
  p = fma(p, r, 8.333452e-3f);
  p = fma(p, r, 4.1665796e-2f);
  p = fma(p, r, 1.6666665e-1f);
  p = fma(p, r, 0.5f);
  float y = fma(p, r * r, r) + 1.0f;
  // Adds n to the exponent.
  return x >= -87.0f ? as_type<float>(as_type<uint>(y) + (as_type<uint>(shifted) << 23)) : 0.0f;
}

// 1 / (1 + e^-x), without overflow.
INLINE float sigmoid(float x) {
  float e = exp_nonpositive(-abs(x));
  return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

// What gates and ups become: 1 is SiLU.
constant constexpr uint GELU_TANH = 2;
constant constexpr uint CLAMPED_SWIGLU = 3;

// gate * sigmoid(y) * up; y is the gate itself (SiLU), 2 sqrt(2 / pi) (gate + 0.044715 gate^3) (the tanh approximation of GELU), or 1.702 gate,
// where gates are at most 7, and ups between -7 and 7 and larger by 1 (gpt-oss). What is no number stays none.
INLINE float gated(float gate, float up, uint activation) {
  if (activation == CLAMPED_SWIGLU) {
    gate = gate > 7.0f ? 7.0f : gate;
    up = (up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up) + 1.0f;
  }
  float y = gate;
  if (activation == GELU_TANH) y = gate * fma(gate * gate, 0.071354814f, 1.5957692f);
  if (activation == CLAMPED_SWIGLU) y = 1.702f * gate;
  return gate * sigmoid(y) * up;
}

// An unsigned integer in the order of the floats, -0 below +0; never 0.
INLINE uint ordered_key(float x) {
  uint bits = as_type<uint>(x);
  return (bits & 0x80000000u) != 0 ? max(~bits, 1u) : bits | 0x80000000u;
}

// The float of an ordered_key.
INLINE float ordered_float(uint key) { return as_type<float>((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key); }

// The two elements of pairs (x, y), rotated by the angles whose cosines and sines are c and s. The roundings are spelt out, so that
// every kernel's are the same.
INLINE float4 rotate_first(float4 x, float4 y, float4 c, float4 s) { return fma(x, c, -(y * s)); }
INLINE float4 rotate_second(float4 x, float4 y, float4 c, float4 s) { return fma(y, c, x * s); }
