// Metal's floating-point functions: one overload for each type and width, so that a call with mixed types is ambiguous here
// as it is there. Every function computes in f32 and rounds once to its type. It knows neither threads nor memory.
#pragma once

#define MSL_WIDTHS1(name, T)                                                              \
  MSL_INLINE T##2 name(T##2 v) { return T##2{name(v.x), name(v.y)}; }                     \
  MSL_INLINE T##3 name(T##3 v) { return T##3{name(v.x), name(v.y), name(v.z)}; }          \
  MSL_INLINE T##4 name(T##4 v) { return T##4{name(v.x), name(v.y), name(v.z), name(v.w)}; }
#define MSL_WIDTHS2(name, T)                                                                              \
  MSL_INLINE T##2 name(T##2 a, T##2 b) { return T##2{name(a.x, b.x), name(a.y, b.y)}; }                   \
  MSL_INLINE T##3 name(T##3 a, T##3 b) { return T##3{name(a.x, b.x), name(a.y, b.y), name(a.z, b.z)}; }   \
  MSL_INLINE T##4 name(T##4 a, T##4 b) {                                                                  \
    return T##4{name(a.x, b.x), name(a.y, b.y), name(a.z, b.z), name(a.w, b.w)};                          \
  }
#define MSL_WIDTHS3(name, T)                                                                              \
  MSL_INLINE T##2 name(T##2 a, T##2 b, T##2 c) { return T##2{name(a.x, b.x, c.x), name(a.y, b.y, c.y)}; } \
  MSL_INLINE T##3 name(T##3 a, T##3 b, T##3 c) {                                                          \
    return T##3{name(a.x, b.x, c.x), name(a.y, b.y, c.y), name(a.z, b.z, c.z)};                           \
  }                                                                                                       \
  MSL_INLINE T##4 name(T##4 a, T##4 b, T##4 c) {                                                          \
    return T##4{name(a.x, b.x, c.x), name(a.y, b.y, c.y), name(a.z, b.z, c.z), name(a.w, b.w, c.w)};      \
  }

#define MSL_OF1(name, T, ...)                              \
  MSL_INLINE constexpr T name(T v) { float x = (float)v; return (T)(__VA_ARGS__); } \
  MSL_WIDTHS1(name, T)
#define MSL_FLOAT1(name, ...) \
  MSL_OF1(name, float, __VA_ARGS__) MSL_OF1(name, half, __VA_ARGS__) MSL_OF1(name, bfloat, __VA_ARGS__)
#define MSL_OF2(name, T, ...)                                                               \
  MSL_INLINE constexpr T name(T a, T b) { float x = (float)a, y = (float)b; return (T)(__VA_ARGS__); } \
  MSL_WIDTHS2(name, T)
#define MSL_FLOAT2(name, ...) \
  MSL_OF2(name, float, __VA_ARGS__) MSL_OF2(name, half, __VA_ARGS__) MSL_OF2(name, bfloat, __VA_ARGS__)
#define MSL_OF3(name, T, ...)                                \
  MSL_INLINE constexpr T name(T a, T b, T c) {               \
    float x = (float)a, y = (float)b, z = (float)c;          \
    return (T)(__VA_ARGS__);                                 \
  }                                                          \
  MSL_WIDTHS3(name, T)
#define MSL_FLOAT3(name, ...) \
  MSL_OF3(name, float, __VA_ARGS__) MSL_OF3(name, half, __VA_ARGS__) MSL_OF3(name, bfloat, __VA_ARGS__)

namespace msl {

// sin and cos of pi x: the argument is reduced exactly, before it is multiplied by pi.
constexpr float reduce_pi(float x) { return x - 2.0f * __builtin_roundf(0.5f * x); }
constexpr float pi = 0x1.921fb6p1f;
constexpr float smooth(float t) { return t * t * (3.0f - 2.0f * t); }

}  // namespace msl

namespace metal {

#define MSL_FUNCTIONS                                                           \
  MSL_FLOAT1(exp, __builtin_expf(x))                                            \
  MSL_FLOAT1(exp2, __builtin_exp2f(x))                                          \
  MSL_FLOAT1(exp10, __builtin_powf(10.0f, x))                                   \
  MSL_FLOAT1(log, __builtin_logf(x))                                            \
  MSL_FLOAT1(log2, __builtin_log2f(x))                                          \
  MSL_FLOAT1(log10, __builtin_log10f(x))                                        \
  MSL_FLOAT1(sqrt, __builtin_sqrtf(x))                                          \
  MSL_FLOAT1(rsqrt, 1.0f / __builtin_sqrtf(x))                                  \
  MSL_FLOAT1(sin, __builtin_sinf(x))                                            \
  MSL_FLOAT1(cos, __builtin_cosf(x))                                            \
  MSL_FLOAT1(tan, __builtin_tanf(x))                                            \
  MSL_FLOAT1(asin, __builtin_asinf(x))                                          \
  MSL_FLOAT1(acos, __builtin_acosf(x))                                          \
  MSL_FLOAT1(atan, __builtin_atanf(x))                                          \
  MSL_FLOAT1(sinh, __builtin_sinhf(x))                                          \
  MSL_FLOAT1(cosh, __builtin_coshf(x))                                          \
  MSL_FLOAT1(tanh, __builtin_tanhf(x))                                          \
  MSL_FLOAT1(asinh, __builtin_asinhf(x))                                        \
  MSL_FLOAT1(acosh, __builtin_acoshf(x))                                        \
  MSL_FLOAT1(atanh, __builtin_atanhf(x))                                        \
  MSL_FLOAT1(sinpi, __builtin_sinf(msl::pi* msl::reduce_pi(x)))                           \
  MSL_FLOAT1(cospi, __builtin_cosf(msl::pi* msl::reduce_pi(x)))                           \
  MSL_FLOAT1(tanpi, __builtin_tanf(msl::pi* msl::reduce_pi(x)))                           \
  MSL_FLOAT1(ceil, __builtin_ceilf(x))                                          \
  MSL_FLOAT1(floor, __builtin_floorf(x))                                        \
  MSL_FLOAT1(round, __builtin_roundf(x))                                        \
  MSL_FLOAT1(rint, __builtin_rintf(x))                                          \
  MSL_FLOAT1(trunc, __builtin_truncf(x))                                        \
  MSL_FLOAT1(fabs, __builtin_fabsf(x))                                          \
  MSL_FLOAT1(fract, __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f))   \
  MSL_FLOAT1(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? x : 0.0f)            \
  MSL_FLOAT1(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f))         \
  MSL_FLOAT2(pow, __builtin_powf(x, y))                                         \
  MSL_FLOAT2(powr, __builtin_powf(x, y))                                        \
  MSL_FLOAT2(atan2, __builtin_atan2f(x, y))                                     \
  MSL_FLOAT2(fmod, __builtin_fmodf(x, y))                                       \
  MSL_FLOAT2(copysign, __builtin_copysignf(x, y))                               \
  MSL_FLOAT2(fmax, __builtin_fmaxf(x, y))                                       \
  MSL_FLOAT2(fmin, __builtin_fminf(x, y))                                       \
  MSL_FLOAT2(max, __builtin_fmaxf(x, y))                                        \
  MSL_FLOAT2(min, __builtin_fminf(x, y))                                        \
  MSL_FLOAT2(fdim, __builtin_fdimf(x, y))                                       \
  MSL_FLOAT2(step, y < x ? 0.0f : 1.0f)                                         \
  MSL_FLOAT2(divide, x / y)                                                     \
  MSL_FLOAT3(fma, __builtin_fmaf(x, y, z))                                      \
  MSL_FLOAT3(fmax3, __builtin_fmaxf(x, __builtin_fmaxf(y, z)))                  \
  MSL_FLOAT3(fmin3, __builtin_fminf(x, __builtin_fminf(y, z)))                  \
  MSL_FLOAT3(fmedian3, __builtin_fmaxf(__builtin_fminf(x, y), __builtin_fminf(__builtin_fmaxf(x, y), z))) \
  MSL_FLOAT3(clamp, __builtin_fminf(__builtin_fmaxf(x, y), z))                  \
  MSL_FLOAT3(mix, x + (y - x) * z)                                              \
  MSL_FLOAT3(smoothstep, msl::smooth(__builtin_fminf(__builtin_fmaxf((z - x) / (y - x), 0.0f), 1.0f)))

MSL_FUNCTIONS
namespace fast {
MSL_FUNCTIONS
}
namespace precise {
MSL_FUNCTIONS
}

MSL_FLOAT1(abs, __builtin_fabsf(x))
MSL_FLOAT3(max3, __builtin_fmaxf(x, __builtin_fmaxf(y, z)))
MSL_FLOAT3(min3, __builtin_fminf(x, __builtin_fminf(y, z)))
MSL_FLOAT3(median3, __builtin_fmaxf(__builtin_fminf(x, y), __builtin_fminf(__builtin_fmaxf(x, y), z)))

#define MSL_CLASSIFY(name, ...)                                            \
  MSL_INLINE bool name(float x) { return __VA_ARGS__; }                    \
  MSL_INLINE bool name(half v) { float x = (float)v; return __VA_ARGS__; } \
  MSL_INLINE bool name(bfloat v) { float x = (float)v; return __VA_ARGS__; }
MSL_CLASSIFY(isnan, __builtin_isnan(x))
MSL_CLASSIFY(isinf, __builtin_isinf(x))
MSL_CLASSIFY(isfinite, __builtin_isfinite(x))
MSL_CLASSIFY(signbit, __builtin_signbit(x))
#undef MSL_CLASSIFY

#define MSL_WITH_INTEGERS(T)                                                                                   \
  MSL_INLINE T ldexp(T x, int k) { return (T)__builtin_ldexpf((float)x, k); }                                  \
  MSL_INLINE T frexp(T x, int& k) { return (T)__builtin_frexpf((float)x, &k); }                                \
  MSL_INLINE int ilogb(T x) { return __builtin_ilogbf((float)x); }                                             \
  MSL_INLINE T modf(T x, T& whole) { float w; float f = __builtin_modff((float)x, &w); whole = (T)w; return (T)f; } \
  MSL_INLINE T sincos(T x, T& c) { c = cos(x); return sin(x); }
MSL_WITH_INTEGERS(float)
MSL_WITH_INTEGERS(half)
#undef MSL_WITH_INTEGERS
namespace fast {
MSL_INLINE float sincos(float x, float& c) { return metal::sincos(x, c); }
}
namespace precise {
MSL_INLINE float sincos(float x, float& c) { return metal::sincos(x, c); }
}

#undef MSL_FUNCTIONS

}  // namespace metal
