// Conversions as Metal writes them: float4(half4), (half4)x, static_cast, as_type, and packed vectors.
// The front end translates constructors and casts of vectors to these, because clang reads them as bit casts.
#pragma once

namespace msl {

// What fills or becomes a packed vector of N elements T, other than a vector of T.
template <class U, class T, int N>
constexpr bool converts_to =
    is_arithmetic_v<element_of<U>> && (count_of<U> == 1 || (count_of<U> == N && !__is_same(element_of<U>, T)));

}  // namespace msl

namespace metal {

// Vectors without padding: how they lie in a buffer.
template <class T, int N> struct packed_vec;
#define MSL_PACKED_BODY(N)                                       \
  packed_vec() = default;                                        \
  packed_vec(const MSL_ANY packed_vec&) = default;               \
  constexpr packed_vec(vec<T, N> v);                             \
  template <class U, class = enable_if_t<msl::converts_to<U, T, N>>> constexpr explicit packed_vec(U value); \
  template <class A, class B, class... C> constexpr packed_vec(A a, B b, C... c);                            \
  constexpr operator vec<T, N>() const;                          \
  T& operator[](size_t i) { return ((T(&)[N])x)[i]; }            \
  const T& operator[](size_t i) const { return ((const T(&)[N])x)[i]; }
template <class T> struct packed_vec<T, 2> {
  T x, y;
  MSL_PACKED_BODY(2)
};
template <class T> struct packed_vec<T, 3> {
  T x, y, z;
  MSL_PACKED_BODY(3)
};
template <class T> struct packed_vec<T, 4> {
  T x, y, z, w;
  MSL_PACKED_BODY(4)
};
#undef MSL_PACKED_BODY
template <class T> constexpr packed_vec<T, 2>::packed_vec(vec<T, 2> v) : x(v.x), y(v.y) {}
template <class T> constexpr packed_vec<T, 3>::packed_vec(vec<T, 3> v) : x(v.x), y(v.y), z(v.z) {}
template <class T> constexpr packed_vec<T, 4>::packed_vec(vec<T, 4> v) : x(v.x), y(v.y), z(v.z), w(v.w) {}
template <class T> constexpr packed_vec<T, 2>::operator vec<T, 2>() const { return vec<T, 2>{x, y}; }
template <class T> constexpr packed_vec<T, 3>::operator vec<T, 3>() const { return vec<T, 3>{x, y, z}; }
template <class T> constexpr packed_vec<T, 4>::operator vec<T, 4>() const { return vec<T, 4>{x, y, z, w}; }
}  // namespace metal

namespace msl {

template <class X> struct unpacked { typedef X type; };
template <class T, int N> struct unpacked<packed_vec<T, N>> { typedef vec<T, N> type; };

}  // namespace msl

namespace metal {

// bool2, bool3, bool4: also what a comparison of vectors gives, whose elements clang makes 0 or -1.
template <int N> struct bool_vec;
// What a vector of integers becomes.
template <class V, int N>
using from_integers = enable_if_t<msl::count_of<V> == N && is_integral_v<msl::element_of<V>>>;
#define MSL_BOOL_OPERATOR(N, op)                              \
  friend bool_vec operator op(bool_vec a, bool_vec b) {       \
    for (int i = 0; i < N; i++) a[i] = (a[i] op b[i]) != 0;   \
    return a;                                                 \
  }
#define MSL_BOOL_BODY(N)                                              \
  bool_vec() = default;                                               \
  bool_vec(const MSL_ANY bool_vec&) = default;                        \
  bool& operator[](size_t i) { return ((bool(&)[N])x)[i]; }           \
  const bool& operator[](size_t i) const { return ((const bool(&)[N])x)[i]; } \
  friend bool_vec operator!(bool_vec a) { return a == bool_vec(false); } \
  MSL_BOOL_OPERATOR(N, &&)                                            \
  MSL_BOOL_OPERATOR(N, ||)                                            \
  MSL_BOOL_OPERATOR(N, &)                                             \
  MSL_BOOL_OPERATOR(N, |)                                             \
  MSL_BOOL_OPERATOR(N, ^)                                             \
  MSL_BOOL_OPERATOR(N, ==)                                            \
  MSL_BOOL_OPERATOR(N, !=)
template <> struct bool_vec<2> {
  bool x, y;
  constexpr bool_vec(bool x, bool y) : x(x), y(y) {}
  constexpr bool_vec(bool b) : bool_vec(b, b) {}
  template <class V, class = from_integers<V, 2>> constexpr bool_vec(V v) : bool_vec(v[0] != 0, v[1] != 0) {}
  MSL_BOOL_BODY(2)
};
template <> struct bool_vec<3> {
  bool x, y, z;
  constexpr bool_vec(bool x, bool y, bool z) : x(x), y(y), z(z) {}
  constexpr bool_vec(bool b) : bool_vec(b, b, b) {}
  template <class V, class = from_integers<V, 3>> constexpr bool_vec(V v) : bool_vec(v[0] != 0, v[1] != 0, v[2] != 0) {}
  MSL_BOOL_BODY(3)
};
template <> struct bool_vec<4> {
  bool x, y, z, w;
  constexpr bool_vec(bool x, bool y, bool z, bool w) : x(x), y(y), z(z), w(w) {}
  constexpr bool_vec(bool b) : bool_vec(b, b, b, b) {}
  template <class V, class = from_integers<V, 4>>
  constexpr bool_vec(V v) : bool_vec(v[0] != 0, v[1] != 0, v[2] != 0, v[3] != 0) {}
  MSL_BOOL_BODY(4)
};
#undef MSL_BOOL_BODY
#undef MSL_BOOL_OPERATOR
template <int N> MSL_INLINE bool any(bool_vec<N> v) {
  bool result = false;
  for (int i = 0; i < N; i++) result |= v[i];
  return result;
}
template <int N> MSL_INLINE bool all(bool_vec<N> v) {
  bool result = true;
  for (int i = 0; i < N; i++) result &= v[i];
  return result;
}

}  // namespace metal

namespace msl {

// One element to another type. clang converts half to bfloat and back only through float, which is exact one way and the
// single rounding the other way.
template <class T, class U> MSL_INLINE constexpr T convert_element(U u) {
  if constexpr ((__is_same(T, half) && __is_same(U, bfloat)) || (__is_same(T, bfloat) && __is_same(U, half)))
    return (T)(float)u;
  else
    return (T)u;
}

template <class T, class U> MSL_INLINE constexpr T convert_vector(U u) {
  static_assert(count_of<T> == count_of<U>, "a vector converts only to a vector with as many elements");
  typedef element_of<T> E;
  if constexpr (__is_same(T, U))
    return u;
  else if constexpr (count_of<T> == 2)
    return T{convert_element<E>(u.x), convert_element<E>(u.y)};
  else if constexpr (count_of<T> == 3)
    return T{convert_element<E>(u.x), convert_element<E>(u.y), convert_element<E>(u.z)};
  else if constexpr (count_of<T> == 4)
    return T{convert_element<E>(u.x), convert_element<E>(u.y), convert_element<E>(u.z), convert_element<E>(u.w)};
}

template <class T, class U> MSL_INLINE constexpr void append(T& result, int& at, U u) {
  if constexpr (count_of<U> == 1)
    result[at++] = convert_element<element_of<T>>(u);
  else
    for (int i = 0; i < count_of<U>; i++) result[at++] = convert_element<element_of<T>>(u[i]);
}

template <class U> MSL_INLINE constexpr auto unpack(U u) { return (typename unpacked<U>::type)u; }

// T(a, b, ...): a scalar fills a vector; otherwise the elements of the arguments are T's elements, in order.
template <class T> MSL_INLINE constexpr T vector_from() { return T(0); }
template <class T, class U> MSL_INLINE constexpr T vector_from(U u) {
  if constexpr (count_of<U> == 1) {
    auto e = convert_element<element_of<T>>(u);
    if constexpr (count_of<T> == 2) return T{e, e};
    if constexpr (count_of<T> == 3) return T{e, e, e};
    if constexpr (count_of<T> == 4) return T{e, e, e, e};
  } else {
    return convert_vector<T>(u);
  }
}
template <class T, class U, class V, class... W> MSL_INLINE constexpr T vector_from(U u, V v, W... w) {
  static_assert((count_of<U> + count_of<V> + (0 + ... + count_of<W>)) == count_of<T>,
                "a vector takes as many values as it has elements");
  if constexpr (sizeof...(W) + 2 == count_of<T>) {
    typedef element_of<T> E;
    return T{convert_element<E>(u), convert_element<E>(v), convert_element<E>(w)...};
  } else {
    T result;
    int at = 0;
    append(result, at, u);
    append(result, at, v);
    (append(result, at, w), ...);
    return result;
  }
}

}  // namespace msl

namespace metal {

// As those of vectors.
#define MSL_PACKED_FROM(N)                                                                                     \
  template <class T> template <class U, class> constexpr packed_vec<T, N>::packed_vec(U value)                 \
      : packed_vec(msl::vector_from<vec<T, N>>(value)) {}                                                      \
  template <class T> template <class A, class B, class... C> constexpr packed_vec<T, N>::packed_vec(A a, B b, C... c) \
      : packed_vec(msl::vector_from<vec<T, N>>(msl::unpack(a), msl::unpack(b), msl::unpack(c)...)) {}
MSL_PACKED_FROM(2)
MSL_PACKED_FROM(3)
MSL_PACKED_FROM(4)
#undef MSL_PACKED_FROM

}  // namespace metal

namespace msl {

template <class T> constexpr bool is_number = is_arithmetic_v<T>;

// Arguments come by value: that leaves their address space behind, and an element of a vector has no reference.
template <class T, class... U> MSL_INLINE constexpr T make(U... u) {
  if constexpr (count_of<T> > 1)
    return vector_from<T>(unpack(u)...);
  else if constexpr (is_number<T> && sizeof...(U) == 1)
    return (convert_element<T>(u), ...);
  else
    return T(u...);
}

template <class T, class U> MSL_INLINE constexpr T cast(U u) {
  typedef __remove_cv(T) V;
  if constexpr (count_of<V> > 1)
    return vector_from<V>(unpack(u));
  else if constexpr (is_number<V> && is_number<U>)
    return convert_element<V>(u);
  else
    return static_cast<T>(u);
}

// An assignment of a struct to memory of another address space, of which C++ has none. The front end writes it where clang
// finds no other. The cast changes nothing: the address is the same.
template <class T, class U> MSL_INLINE void store(MSL_IN_DEVICE T& to, U from) { *(T*)&to = from; }
template <class T, class U> MSL_INLINE void store(MSL_IN_THREADGROUP T& to, U from) { *(T*)&to = from; }
// A packed vector, in memory or not, as a vector; anything else as it is.
template <class T> MSL_INLINE T load(T v) { return v; }
template <class T, int N> MSL_INLINE vec<T, N> load(packed_vec<T, N> v) { return v; }

// (T)x is written caster<T>()->*x: the operator binds as tightly as a cast to what follows it.
struct nothing_first {};
template <class T, class First = nothing_first> struct caster {
  First first;
  bool negate = false;
};
template <class T> constexpr auto apply(nothing_first, T value) { return value; }
template <class T, class U> MSL_INLINE constexpr T operator->*(caster<T>, U u) {
  return cast<T>(u);
}
template <class T, class S> MSL_INLINE constexpr auto operator->*(caster<T>, caster<S>) {
  return caster<T, caster<S>>{};
}
template <class T, class S, class F, class U> MSL_INLINE constexpr auto operator->*(caster<T, caster<S, F>> c, U u) {
  return cast<T>(c.first->*u);
}
// -(T)x and the like: the operator is applied after the cast.
template <class T, char op> struct then_apply {};
template <class T> constexpr then_apply<T, '-'> operator-(caster<T>) { return {}; }
template <class T> constexpr then_apply<T, '!'> operator!(caster<T>) { return {}; }
template <class T> constexpr then_apply<T, '~'> operator~(caster<T>) { return {}; }
template <class T, class U> MSL_INLINE constexpr auto operator->*(then_apply<T, '-'>, U u) {
  return -cast<T>(u);
}
template <class T, class U> MSL_INLINE constexpr auto operator->*(then_apply<T, '!'>, U u) {
  return !cast<T>(u);
}
template <class T, class U> MSL_INLINE constexpr auto operator->*(then_apply<T, '~'>, U u) {
  return ~cast<T>(u);
}

}  // namespace msl

template <class T, class U> MSL_INLINE T as_type(U u) {
  static_assert(sizeof(T) == sizeof(U), "as_type needs types of the same size");
  if constexpr (sizeof(T) == sizeof(U)) return __builtin_bit_cast(T, u);
}

#define MSL_PACKED(T)                            \
  typedef metal::packed_vec<T, 2> packed_##T##2; \
  typedef metal::packed_vec<T, 3> packed_##T##3; \
  typedef metal::packed_vec<T, 4> packed_##T##4;
MSL_PACKED(float)
MSL_PACKED(half)
MSL_PACKED(bfloat)
MSL_PACKED(char)
MSL_PACKED(uchar)
MSL_PACKED(short)
MSL_PACKED(ushort)
MSL_PACKED(int)
MSL_PACKED(uint)
MSL_PACKED(long)
MSL_PACKED(ulong)
#undef MSL_PACKED
typedef metal::bool_vec<2> bool2;
typedef metal::bool_vec<3> bool3;
typedef metal::bool_vec<4> bool4;
namespace metal {
using ::as_type;
}
