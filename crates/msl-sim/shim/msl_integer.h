// Metal's integer functions: one overload for each type and width. It knows neither threads nor memory.
#pragma once

namespace msl {

constexpr __int128 clamp_wide(__int128 x, __int128 low, __int128 high) { return x < low ? low : x > high ? high : x; }

}  // namespace msl

namespace metal {

#define MSL_INTEGER(T, U, bits)                                                                       \
  MSL_INLINE constexpr T max(T a, T b) { return a > b ? a : b; }                                      \
  MSL_INLINE constexpr T min(T a, T b) { return b < a ? b : a; }                                      \
  MSL_INLINE constexpr T clamp(T x, T low, T high) { return min(max(x, low), high); }                 \
  MSL_INLINE constexpr T max3(T a, T b, T c) { return max(a, max(b, c)); }                            \
  MSL_INLINE constexpr T min3(T a, T b, T c) { return min(a, min(b, c)); }                            \
  MSL_INLINE constexpr T median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); }         \
  MSL_INLINE constexpr T clz(T x) { return x ? (T)(__builtin_clzll((U)x) - (64 - bits)) : (T)bits; }  \
  MSL_INLINE constexpr T ctz(T x) { return x ? (T)__builtin_ctzll((U)x) : (T)bits; }                  \
  MSL_INLINE constexpr T popcount(T x) { return (T)__builtin_popcountll((U)x); }                      \
  MSL_INLINE constexpr T abs(T x) { return x < 0 ? (T)-x : x; }                                       \
  MSL_INLINE constexpr U absdiff(T a, T b) { return a > b ? (U)a - (U)b : (U)b - (U)a; }              \
  MSL_INLINE constexpr T rotate(T x, T k) {                                                           \
    return (T)((U)((U)x << ((U)k % bits)) | (U)((U)x >> ((bits - (U)k % bits) % bits)));              \
  }                                                                                                   \
  MSL_INLINE constexpr T reverse_bits(T x) { return (T)(__builtin_bitreverse64((U)x) >> (64 - bits)); } \
  MSL_INLINE constexpr T mulhi(T a, T b) { return (T)(((__int128)a * (__int128)b) >> bits); }         \
  MSL_INLINE constexpr T mul24(T a, T b) { return (T)(a * b); }                                       \
  MSL_INLINE constexpr T mad24(T a, T b, T c) { return (T)(a * b + c); }                              \
  MSL_INLINE constexpr T madhi(T a, T b, T c) { return (T)(mulhi(a, b) + c); }                        \
  MSL_INLINE constexpr T hadd(T a, T b) { return (T)(((__int128)a + b) >> 1); }                       \
  MSL_INLINE constexpr T rhadd(T a, T b) { return (T)(((__int128)a + b + 1) >> 1); }                  \
  MSL_INLINE constexpr T addsat(T a, T b) {                                                           \
    return (T)msl::clamp_wide((__int128)a + b, _numeric_limits_impl<T>::lowest(), _numeric_limits_impl<T>::max()); \
  }                                                                                                   \
  MSL_INLINE constexpr T subsat(T a, T b) {                                                           \
    return (T)msl::clamp_wide((__int128)a - b, _numeric_limits_impl<T>::lowest(), _numeric_limits_impl<T>::max()); \
  }                                                                                                   \
  MSL_INLINE constexpr T extract_bits(T x, uint offset, uint count) {                                 \
    return count ? (T)((T)((U)x << (bits - offset - count)) >> (bits - count)) : (T)0;                \
  }                                                                                                   \
  MSL_INLINE constexpr T insert_bits(T base, T insert, uint offset, uint count) {                     \
    U mask = (U)((count >= bits ? ~0ull : (1ull << count) - 1) << offset);                            \
    return (T)(((U)base & (U)~mask) | ((U)((U)insert << offset) & mask));                             \
  }

MSL_INTEGER(char, uchar, 8)
MSL_INTEGER(uchar, uchar, 8)
MSL_INTEGER(short, ushort, 16)
MSL_INTEGER(ushort, ushort, 16)
MSL_INTEGER(int, uint, 32)
MSL_INTEGER(uint, uint, 32)
MSL_INTEGER(long, ulong, 64)
MSL_INTEGER(ulong, ulong, 64)
#undef MSL_INTEGER

#define MSL_INTEGER_WIDTHS(T)                             \
  MSL_WIDTHS2(max, T) MSL_WIDTHS2(min, T) MSL_WIDTHS3(clamp, T) MSL_WIDTHS1(abs, T) MSL_WIDTHS1(popcount, T) \
  MSL_WIDTHS1(clz, T) MSL_WIDTHS1(ctz, T) MSL_WIDTHS2(mulhi, T) MSL_WIDTHS2(rotate, T) MSL_WIDTHS1(reverse_bits, T) \
  MSL_WIDTHS3(max3, T) MSL_WIDTHS3(min3, T) MSL_WIDTHS3(median3, T)
MSL_INTEGER_WIDTHS(char)
MSL_INTEGER_WIDTHS(uchar)
MSL_INTEGER_WIDTHS(short)
MSL_INTEGER_WIDTHS(ushort)
MSL_INTEGER_WIDTHS(int)
MSL_INTEGER_WIDTHS(uint)
MSL_INTEGER_WIDTHS(long)
MSL_INTEGER_WIDTHS(ulong)
#undef MSL_INTEGER_WIDTHS

}  // namespace metal
