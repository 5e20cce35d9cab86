// Arithmetic of packed vectors, in whatever memory they are: that of the vectors that they hold. It knows neither threads nor where
// memory is: operands come by value, which leaves their address space behind.
#pragma once

namespace msl {

template <class X> constexpr bool is_packed = false;
template <class T, int N> constexpr bool is_packed<packed_vec<T, N>> = true;
// What may stand beside a packed vector: a number or a vector, packed or not.
template <class X> constexpr bool is_operand = is_packed<X> || is_arithmetic_v<element_of<X>>;
template <class X> using operand = typename unpacked<enable_if_t<is_operand<X>, X>>::type;
template <class... X> using any_packed = enable_if_t<(is_packed<X> || ...)>;

template <class To, class V> MSL_INLINE To& assign(To& to, V v) {
  for (int i = 0; i < count_of<V>; i++) (&to.x)[i] = v[i];
  return to;
}

}  // namespace msl

namespace metal {

#define MSL_PACKED_OPERATOR(op)                                                                                 \
  template <class A, class B, class = msl::any_packed<A, B>>                                                    \
  MSL_INLINE auto operator op(A a, B b) -> decltype(declval<msl::operand<A>>() op declval<msl::operand<B>>()) { \
    return msl::unpack(a) op msl::unpack(b);                                                                    \
  }
MSL_PACKED_OPERATOR(+)
MSL_PACKED_OPERATOR(-)
MSL_PACKED_OPERATOR(*)
MSL_PACKED_OPERATOR(/)
MSL_PACKED_OPERATOR(%)
MSL_PACKED_OPERATOR(&)
MSL_PACKED_OPERATOR(|)
MSL_PACKED_OPERATOR(^)
MSL_PACKED_OPERATOR(<<)
MSL_PACKED_OPERATOR(>>)
MSL_PACKED_OPERATOR(==)
MSL_PACKED_OPERATOR(!=)
MSL_PACKED_OPERATOR(<)
MSL_PACKED_OPERATOR(>)
MSL_PACKED_OPERATOR(<=)
MSL_PACKED_OPERATOR(>=)
MSL_PACKED_OPERATOR(&&)
MSL_PACKED_OPERATOR(||)
#undef MSL_PACKED_OPERATOR

#define MSL_PACKED_SIGN(op)                                                                             \
  template <class T, int N> MSL_INLINE auto operator op(packed_vec<T, N> v) -> decltype(op declval<vec<T, N>>()) { \
    return op msl::unpack(v);                                                                           \
  }
MSL_PACKED_SIGN(-)
MSL_PACKED_SIGN(+)
MSL_PACKED_SIGN(~)
MSL_PACKED_SIGN(!)
#undef MSL_PACKED_SIGN

#define MSL_PACKED_ASSIGNMENT_IN(Space, op)                                                              \
  template <class T, int N, class B>                                                                     \
  MSL_INLINE auto operator op##=(Space packed_vec<T, N>& a, B b)                                         \
      -> enable_if_t<__is_same(decltype(declval<vec<T, N>>() op declval<msl::operand<B>>()), vec<T, N>), \
                     Space packed_vec<T, N>&> {                                                          \
    return msl::assign(a, packed_vec<T, N>(a) op b);                                                     \
  }
#define MSL_PACKED_ASSIGNMENT(op)                 \
  MSL_PACKED_ASSIGNMENT_IN(, op)                  \
  MSL_PACKED_ASSIGNMENT_IN(MSL_IN_DEVICE, op)     \
  MSL_PACKED_ASSIGNMENT_IN(MSL_IN_THREADGROUP, op)
MSL_PACKED_ASSIGNMENT(+)
MSL_PACKED_ASSIGNMENT(-)
MSL_PACKED_ASSIGNMENT(*)
MSL_PACKED_ASSIGNMENT(/)
MSL_PACKED_ASSIGNMENT(%)
MSL_PACKED_ASSIGNMENT(&)
MSL_PACKED_ASSIGNMENT(|)
MSL_PACKED_ASSIGNMENT(^)
MSL_PACKED_ASSIGNMENT(<<)
MSL_PACKED_ASSIGNMENT(>>)
#undef MSL_PACKED_ASSIGNMENT
#undef MSL_PACKED_ASSIGNMENT_IN

// Functions that are templates of vectors; the others take packed vectors of a thread because they convert.
#define MSL_PACKED_FUNCTION1(name) \
  template <class T, int N> MSL_INLINE auto name(packed_vec<T, N> v) { return name(msl::unpack(v)); }
#define MSL_PACKED_FUNCTION2(name)                                                                                   \
  template <class A, class B, class = msl::any_packed<A, B>>                                                         \
  MSL_INLINE auto name(A a, B b) -> decltype(name(declval<msl::operand<A>>(), declval<msl::operand<B>>())) {         \
    return name(msl::unpack(a), msl::unpack(b));                                                                     \
  }
MSL_PACKED_FUNCTION1(length)
MSL_PACKED_FUNCTION1(length_squared)
MSL_PACKED_FUNCTION1(normalize)
MSL_PACKED_FUNCTION1(any)
MSL_PACKED_FUNCTION1(all)
MSL_PACKED_FUNCTION1(isnan)
MSL_PACKED_FUNCTION1(isinf)
MSL_PACKED_FUNCTION2(dot)
MSL_PACKED_FUNCTION2(cross)
MSL_PACKED_FUNCTION2(distance)
MSL_PACKED_FUNCTION2(distance_squared)
#undef MSL_PACKED_FUNCTION1
#undef MSL_PACKED_FUNCTION2

}  // namespace metal
