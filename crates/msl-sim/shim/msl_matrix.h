// Small column-major matrices, float4x4 and its kin. It knows neither threads nor memory.
#pragma once

namespace metal {

template <class T, int C, int R> struct matrix {
  vec<T, R> columns[C];
  matrix() = default;
  matrix(const MSL_ANY matrix&) = default;
  explicit matrix(T diagonal) {
    for (int c = 0; c < C; c++)
      for (int r = 0; r < R; r++) columns[c][r] = c == r ? diagonal : T(0);
  }
  template <class... V, class = enable_if_t<sizeof...(V) == C && (__is_convertible_to(V, vec<T, R>) && ...)>>
  matrix(V... v) : columns{vec<T, R>(v)...} {}
  vec<T, R>& operator[](size_t c) { return columns[c]; }
  const vec<T, R>& operator[](size_t c) const { return columns[c]; }
};

template <class T, int C, int R> MSL_INLINE vec<T, R> operator*(matrix<T, C, R> m, vec<T, C> v) {
  vec<T, R> sum = m[0] * v[0];
  for (int c = 1; c < C; c++) sum += m[c] * v[c];
  return sum;
}
template <class T, int C, int R> MSL_INLINE vec<T, C> operator*(vec<T, R> v, matrix<T, C, R> m) {
  vec<T, C> result;
  for (int c = 0; c < C; c++) result[c] = dot(v, m[c]);
  return result;
}
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator*(matrix<T, C, R> m, T s) {
  for (int c = 0; c < C; c++) m[c] *= s;
  return m;
}
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator*(T s, matrix<T, C, R> m) { return m * s; }
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator+(matrix<T, C, R> a, matrix<T, C, R> b) {
  for (int c = 0; c < C; c++) a[c] += b[c];
  return a;
}
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator-(matrix<T, C, R> a, matrix<T, C, R> b) {
  for (int c = 0; c < C; c++) a[c] -= b[c];
  return a;
}
template <class T, int N, int C, int R> MSL_INLINE matrix<T, C, R> operator*(matrix<T, N, R> a, matrix<T, C, N> b) {
  matrix<T, C, R> result;
  for (int c = 0; c < C; c++) result[c] = a * b[c];
  return result;
}
template <class T, int C, int R> MSL_INLINE matrix<T, R, C> transpose(matrix<T, C, R> m) {
  matrix<T, R, C> result;
  for (int c = 0; c < C; c++)
    for (int r = 0; r < R; r++) result[r][c] = m[c][r];
  return result;
}

}  // namespace metal

#define MSL_MATRICES(T)                  \
  typedef metal::matrix<T, 2, 2> T##2x2; \
  typedef metal::matrix<T, 2, 3> T##2x3; \
  typedef metal::matrix<T, 2, 4> T##2x4; \
  typedef metal::matrix<T, 3, 2> T##3x2; \
  typedef metal::matrix<T, 3, 3> T##3x3; \
  typedef metal::matrix<T, 3, 4> T##3x4; \
  typedef metal::matrix<T, 4, 2> T##4x2; \
  typedef metal::matrix<T, 4, 3> T##4x3; \
  typedef metal::matrix<T, 4, 4> T##4x4;
MSL_MATRICES(float)
MSL_MATRICES(half)
#undef MSL_MATRICES
