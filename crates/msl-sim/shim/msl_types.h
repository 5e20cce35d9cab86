// Scalars, vectors and type traits of Metal. It knows no function of the library.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;

#define MSL_IN_DEVICE __attribute__((address_space(1)))
#define MSL_IN_CONSTANT __attribute__((address_space(2)))
#define MSL_IN_THREADGROUP __attribute__((address_space(3)))
// Accepts an object of any address space: only for copies, which read it whole.
#define MSL_ANY __attribute__((opencl_generic))
#define MSL_INLINE inline __attribute__((always_inline))
// The shim's own bookkeeping is no access of a kernel.
#define MSL_UNCHECKED __attribute__((no_sanitize("thread")))

namespace metal {

template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;

template <class T, T v> struct integral_constant {
  static constexpr const MSL_IN_CONSTANT T value = v;
  typedef T value_type;
  typedef integral_constant type;
  constexpr operator T() const { return v; }
  constexpr T operator()() const { return v; }
};
template <bool b> using bool_constant = integral_constant<bool, b>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <class T> using remove_cv_t = __remove_cv(T);
template <class T> struct remove_cv { typedef __remove_cv(T) type; };
template <class T> using remove_const_t = __remove_const(T);
template <class T> struct remove_const { typedef __remove_const(T) type; };
template <class T> using remove_volatile_t = __remove_volatile(T);
template <class T> using remove_reference_t = __remove_reference_t(T);
template <class T> struct remove_reference { typedef __remove_reference_t(T) type; };
template <class T> using remove_pointer_t = __remove_pointer(T);
template <class T> struct remove_pointer { typedef __remove_pointer(T) type; };
template <class T> using decay_t = __decay(T);
template <class T> struct decay { typedef __decay(T) type; };
template <class T> using make_unsigned_t = __make_unsigned(T);
template <class T> struct make_unsigned { typedef __make_unsigned(T) type; };
template <class T> using make_signed_t = __make_signed(T);
template <class T> struct make_signed { typedef __make_signed(T) type; };

#define MSL_TRAIT(name, ...)                                              \
  template <class T> constexpr MSL_IN_CONSTANT bool name##_v = __VA_ARGS__; \
  template <class T> struct name : bool_constant<(__VA_ARGS__)> {};
template <class A, class B> constexpr MSL_IN_CONSTANT bool is_same_v = __is_same(A, B);
template <class A, class B> struct is_same : bool_constant<__is_same(A, B)> {};
template <class A, class B> constexpr MSL_IN_CONSTANT bool is_convertible_v = __is_convertible_to(A, B);
template <class A, class B> struct is_convertible : bool_constant<__is_convertible_to(A, B)> {};
template <class A, class B> constexpr MSL_IN_CONSTANT bool is_base_of_v = __is_base_of(A, B);
template <class A, class B> struct is_base_of : bool_constant<__is_base_of(A, B)> {};
MSL_TRAIT(is_integral, __is_integral(T))
MSL_TRAIT(is_floating_point,
          __is_floating_point(T) || __is_same(__remove_cv(T), half) || __is_same(__remove_cv(T), bfloat))
MSL_TRAIT(is_arithmetic, is_integral_v<T> || is_floating_point_v<T>)
MSL_TRAIT(is_signed, __is_signed(T) || is_floating_point_v<T>)
MSL_TRAIT(is_unsigned, __is_unsigned(T))
MSL_TRAIT(is_scalar, __is_scalar(T))
MSL_TRAIT(is_pointer, __is_pointer(T))
MSL_TRAIT(is_reference, __is_reference(T))
MSL_TRAIT(is_class, __is_class(T))
MSL_TRAIT(is_enum, __is_enum(T))
MSL_TRAIT(is_const, __is_const(T))
MSL_TRAIT(is_void, __is_void(T))
MSL_TRAIT(is_empty, __is_empty(T))
MSL_TRAIT(is_trivially_copyable, __is_trivially_copyable(T))
#undef MSL_TRAIT

template <class T> T&& declval();

template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));

}  // namespace metal

#define MSL_VECTORS(T)             \
  typedef metal::vec<T, 2> T##2; \
  typedef metal::vec<T, 3> T##3; \
  typedef metal::vec<T, 4> T##4;
MSL_VECTORS(float)
MSL_VECTORS(half)
MSL_VECTORS(bfloat)
MSL_VECTORS(char)
MSL_VECTORS(uchar)
MSL_VECTORS(short)
MSL_VECTORS(ushort)
MSL_VECTORS(int)
MSL_VECTORS(uint)
MSL_VECTORS(long)
MSL_VECTORS(ulong)
#undef MSL_VECTORS

// The shim's own helpers: `using namespace metal` must not bring names that Metal has not.
namespace msl {

using namespace metal;

// What a vector is made of; a scalar is a vector of one.
template <class X> struct vector_traits {
  static constexpr int count = 1;
  typedef X element;
};
template <class T, int N> struct vector_traits<vec<T, N>> {
  static constexpr int count = N;
  typedef T element;
};
template <class X> using element_of = typename vector_traits<__remove_cv(X)>::element;
template <class X> constexpr int count_of = vector_traits<__remove_cv(X)>::count;
// What simdgroup functions accept: scalars and vectors of at most 32 bits an element, neither bool nor structs.
template <class T>
constexpr bool is_simd_type =
    is_arithmetic_v<element_of<T>> && sizeof(element_of<T>) <= 4 && !__is_same(element_of<T>, bool);

}  // namespace msl

namespace metal {

template <class T> struct vec_elements : integral_constant<int, msl::count_of<T>> {};
template <class T> struct make_scalar { typedef msl::element_of<T> type; };
template <class T> using make_scalar_t = msl::element_of<T>;
template <class T> struct __is_valid_simdgroup_type : bool_constant<msl::is_simd_type<T>> {};

template <class T> struct _numeric_limits_impl {};
#define MSL_INTEGER_LIMITS(T, low, high, bits, is_sign)                  \
  template <> struct _numeric_limits_impl<T> {                           \
    static constexpr const MSL_IN_CONSTANT bool is_specialized = true;      \
    static constexpr const MSL_IN_CONSTANT bool is_integer = true;          \
    static constexpr const MSL_IN_CONSTANT bool is_signed = is_sign;        \
    static constexpr const MSL_IN_CONSTANT bool has_infinity = false;       \
    static constexpr const MSL_IN_CONSTANT int digits = bits;               \
    static constexpr T min() { return (T)(low); }                        \
    static constexpr T lowest() { return (T)(low); }                     \
    static constexpr T max() { return (T)(high); }                       \
    static constexpr T epsilon() { return 0; }                           \
    static constexpr T infinity() { return 0; }                          \
    static constexpr T quiet_NaN() { return 0; }                         \
  };
MSL_INTEGER_LIMITS(bool, 0, 1, 1, false)
MSL_INTEGER_LIMITS(char, -128, 127, 7, true)
MSL_INTEGER_LIMITS(signed char, -128, 127, 7, true)
MSL_INTEGER_LIMITS(uchar, 0, 255, 8, false)
MSL_INTEGER_LIMITS(short, -32768, 32767, 15, true)
MSL_INTEGER_LIMITS(ushort, 0, 65535, 16, false)
MSL_INTEGER_LIMITS(int, -2147483647 - 1, 2147483647, 31, true)
MSL_INTEGER_LIMITS(uint, 0, 4294967295u, 32, false)
MSL_INTEGER_LIMITS(long, -9223372036854775807l - 1, 9223372036854775807l, 63, true)
MSL_INTEGER_LIMITS(ulong, 0, 18446744073709551615ul, 64, false)
#undef MSL_INTEGER_LIMITS
#define MSL_FLOAT_LIMITS(T, smallest, largest, eps, denormal, bits)      \
  template <> struct _numeric_limits_impl<T> {                           \
    static constexpr const MSL_IN_CONSTANT bool is_specialized = true;      \
    static constexpr const MSL_IN_CONSTANT bool is_integer = false;         \
    static constexpr const MSL_IN_CONSTANT bool is_signed = true;           \
    static constexpr const MSL_IN_CONSTANT bool has_infinity = true;        \
    static constexpr const MSL_IN_CONSTANT int digits = bits;               \
    static constexpr T min() { return (T)smallest; }                     \
    static constexpr T lowest() { return (T)-largest; }                  \
    static constexpr T max() { return (T)largest; }                      \
    static constexpr T epsilon() { return (T)eps; }                      \
    static constexpr T denorm_min() { return (T)denormal; }              \
    static constexpr T infinity() { return (T)__builtin_inff(); }        \
    static constexpr T quiet_NaN() { return (T)__builtin_nanf(""); }     \
    static constexpr T signaling_NaN() { return (T)__builtin_nanf(""); } \
  };
MSL_FLOAT_LIMITS(float, 0x1p-126f, 0x1.fffffep127f, 0x1p-23f, 0x1p-149f, 24)
MSL_FLOAT_LIMITS(half, 0x1p-14f, 65504.0f, 0x1p-10f, 0x1p-24f, 11)
MSL_FLOAT_LIMITS(bfloat, 0x1p-126f, 0x1.fep127f, 0x1p-7f, 0x1p-133f, 8)
#undef MSL_FLOAT_LIMITS
template <class T> struct numeric_limits : _numeric_limits_impl<__remove_cv(T)> {};

}  // namespace metal
