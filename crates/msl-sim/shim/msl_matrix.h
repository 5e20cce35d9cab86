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
  template <class U, class = enable_if_t<!__is_same(U, T)>> explicit matrix(matrix<U, C, R> m) {
    for (int c = 0; c < C; c++) columns[c] = msl::convert_vector<vec<T, R>>(m.columns[c]);
  }
  template <class... V, class = enable_if_t<sizeof...(V) == C && ((msl::count_of<V> == R && __is_convertible_to(V, vec<T, R>)) && ...)>>
  matrix(V... v) : columns{vec<T, R>(v)...} {}
  // Column by column.
  template <class... S, class = enable_if_t<sizeof...(S) == C * R && (is_arithmetic_v<S> && ...)>, class = void>
  matrix(S... s) {
    T all[] = {msl::convert_element<T>(s)...};
    for (int c = 0; c < C; c++)
      for (int r = 0; r < R; r++) columns[c][r] = all[c * R + r];
  }
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

// By the first column; each product in f32.
template <class T, int N> MSL_INLINE T determinant(matrix<T, N, N> m) {
  float a[N][N];
  for (int c = 0; c < N; c++)
    for (int r = 0; r < N; r++) a[c][r] = (float)m[c][r];
  auto two = [&a](int c, int r, int s) { return a[c][r] * a[c + 1][s] - a[c][s] * a[c + 1][r]; };
  if constexpr (N == 2) {
    return (T)two(0, 0, 1);
  } else {
    // Of the last three columns, without row `left`.
    auto three = [&](int left) {
      constexpr int c = N - 3;
      int r = left == 0, s = left <= 1 ? 2 : 1, t = N == 3 || left == 3 ? 2 : 3;
      return a[c][r] * two(c + 1, s, t) - a[c][s] * two(c + 1, r, t) + a[c][t] * two(c + 1, r, s);
    };
    if constexpr (N == 3)
      return (T)three(3);
    else
      return (T)(a[0][0] * three(0) - a[0][1] * three(1) + a[0][2] * three(2) - a[0][3] * three(3));
  }
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
