// metal::array, and elements of objects in memory. It knows neither threads nor what elements are.
#pragma once

namespace metal {

template <class T, size_t N> struct array {
  T __elements[N];
  array() = default;
  array(const MSL_ANY array&) = default;
  T& operator[](size_t i) { return __elements[i]; }
  const T& operator[](size_t i) const { return __elements[i]; }
  static constexpr size_t size() { return N; }
};

}  // namespace metal

namespace msl {

// The elements of an object in memory, for object[i]: C++ has member functions only for the thread's own. The front end writes it
// where clang finds no operator.
#define MSL_ELEMENTS(Space)                                                                                              \
  template <class T, int N> MSL_INLINE Space T* elements(Space packed_vec<T, N>& v) { return &v.x; }                     \
  template <class T, int C, int R> MSL_INLINE Space vec<T, R>* elements(Space matrix<T, C, R>& m) { return m.columns; }  \
  template <class T, size_t N> MSL_INLINE Space T* elements(Space array<T, N>& a) { return a.__elements; }
MSL_ELEMENTS(MSL_IN_DEVICE)
MSL_ELEMENTS(MSL_IN_THREADGROUP)
MSL_ELEMENTS(const MSL_IN_DEVICE)
MSL_ELEMENTS(const MSL_IN_THREADGROUP)
MSL_ELEMENTS(const MSL_IN_CONSTANT)
#undef MSL_ELEMENTS

}  // namespace msl
