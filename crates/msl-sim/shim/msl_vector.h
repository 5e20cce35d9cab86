// Functions of whole vectors: geometry, selection, and tests of comparisons. It knows neither threads nor memory.
#pragma once

namespace metal {

template <class T, int N> MSL_INLINE T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; i++) sum += a[i] * b[i];
  return sum;
}
template <class T, int N> MSL_INLINE T length_squared(vec<T, N> v) { return dot(v, v); }
template <class T, int N> MSL_INLINE T length(vec<T, N> v) { return sqrt(dot(v, v)); }
template <class T, int N> MSL_INLINE T distance(vec<T, N> a, vec<T, N> b) { return length(a - b); }
template <class T, int N> MSL_INLINE T distance_squared(vec<T, N> a, vec<T, N> b) { return length_squared(a - b); }
template <class T, int N> MSL_INLINE vec<T, N> normalize(vec<T, N> v) { return v * rsqrt(dot(v, v)); }
template <class T> MSL_INLINE vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) { return a.yzx * b.zxy - a.zxy * b.yzx; }

MSL_INLINE bool any(bool b) { return b; }
MSL_INLINE bool all(bool b) { return b; }
template <class T, int N, class = enable_if_t<is_integral_v<T>>> MSL_INLINE bool any(vec<T, N> v) { return any(bool_vec<N>(v)); }
template <class T, int N, class = enable_if_t<is_integral_v<T>>> MSL_INLINE bool all(vec<T, N> v) { return all(bool_vec<N>(v)); }

template <class T, class = enable_if_t<msl::count_of<T> == 1 && is_arithmetic_v<T>>> MSL_INLINE T select(T a, T b, bool c) {
  return c ? b : a;
}
template <class T, int N> MSL_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, bool_vec<N> c) {
  for (int i = 0; i < N; i++) a[i] = c[i] ? b[i] : a[i];
  return a;
}
template <class T, int N, class C, class = enable_if_t<is_integral_v<C>>>
MSL_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<C, N> c) {
  return select(a, b, bool_vec<N>(c));
}

template <class T, int N> MSL_INLINE bool_vec<N> isnan(vec<T, N> v) { return bool_vec<N>(v != v); }
template <class T, int N> MSL_INLINE bool_vec<N> isinf(vec<T, N> v) {
  bool_vec<N> result(false);
  for (int i = 0; i < N; i++) result[i] = isinf(v[i]);
  return result;
}

}  // namespace metal
