// 8x8 matrices spread over the lanes of a simdgroup: each lane holds two neighbours of a row, as on Apple's GPUs.
// A product accumulates in f32, k ascending, and rounds once to the result's type.
#pragma once

namespace msl {

MSL_INLINE constexpr uint matrix_row(uint lane) { return (lane / 4 & 4) + (lane / 2) % 4; }
MSL_INLINE constexpr uint matrix_column(uint lane) { return (lane / 4 & 2) * 2 + (lane % 2) * 2; }

}  // namespace msl

namespace metal {

template <class T, int Columns, int Rows> struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "a simdgroup_matrix is 8x8");
  static_assert(is_floating_point_v<T>, "a simdgroup_matrix is of float, half or bfloat");
  typedef vec<T, 2> storage_type;
  storage_type elements;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    uint row = msl::matrix_row(msl::lane()), column = msl::matrix_column(msl::lane());
    elements = storage_type{row == column ? diagonal : T(0), row == column + 1 ? diagonal : T(0)};
  }
  storage_type& thread_elements() { return elements; }
  const storage_type& thread_elements() const { return elements; }
};

template <class T, int Columns, int Rows> MSL_INLINE simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> m;
  m.elements = vec<T, 2>{value, value};
  return m;
}
template <class T, int Size> MSL_INLINE simdgroup_matrix<T, Size, Size> make_filled_simdgroup_matrix(T value) {
  return make_filled_simdgroup_matrix<T, Size, Size>(value);
}

#define MSL_MATRIX_MEMORY(Space)                                                                                     \
  template <class T, class U, class = enable_if_t<__is_same(__remove_cv(U), T)>>                                     \
  MSL_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const Space U* from, ulong elements_per_row = 8,      \
                                 ulong2 origin = ulong2{0, 0}, bool transpose = false) {                             \
    ulong row = msl::matrix_row(msl::lane()), column = msl::matrix_column(msl::lane());                                                  \
    if (transpose) {                                                                                                 \
      const Space U* at = from + (column + origin.y) * elements_per_row + row + origin.x;                            \
      m.elements = vec<T, 2>{at[0], at[elements_per_row]};                                                           \
    } else {                                                                                                         \
      const Space U* at = from + (row + origin.y) * elements_per_row + column + origin.x;                            \
      m.elements = vec<T, 2>{at[0], at[1]};                                                                          \
    }                                                                                                                \
  }                                                                                                                  \
  template <class T>                                                                                                 \
  MSL_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> m, Space T* to, ulong elements_per_row = 8,              \
                                  ulong2 origin = ulong2{0, 0}, bool transpose = false) {                            \
    ulong row = msl::matrix_row(msl::lane()), column = msl::matrix_column(msl::lane());                                                  \
    if (transpose) {                                                                                                 \
      Space T* at = to + (column + origin.y) * elements_per_row + row + origin.x;                                    \
      at[0] = m.elements.x;                                                                                          \
      at[elements_per_row] = m.elements.y;                                                                           \
    } else {                                                                                                         \
      Space T* at = to + (row + origin.y) * elements_per_row + column + origin.x;                                    \
      at[0] = m.elements.x;                                                                                          \
      at[1] = m.elements.y;                                                                                          \
    }                                                                                                                \
  }
MSL_MATRIX_MEMORY(MSL_IN_DEVICE)
MSL_MATRIX_MEMORY(MSL_IN_THREADGROUP)
#undef MSL_MATRIX_MEMORY

}  // namespace metal

namespace msl {

template <class D, class A, class B, class C> struct ProductRecord {
  vec<A, 2> a;
  vec<B, 2> b;
  vec<C, 2> c;
  vec<D, 2> d;
};

// Two elements as floats: bfloats by their bits, which clang would take apart one at a time.
template <class T> MSL_INLINE float2 widen(vec<T, 2> v) { return float2{(float)v.x, (float)v.y}; }
template <> MSL_INLINE float2 widen(vec<bfloat, 2> v) {
  uint bits = __builtin_bit_cast(uint, v);
  return float2{__builtin_bit_cast(float, bits << 16), __builtin_bit_cast(float, bits & 0xffff0000u)};
}

template <class D, class A, class B, class C, bool all>
MSL_UNCHECKED MSL_INLINE void product(void* const* records, uint mask) {
  typedef float Row __attribute__((ext_vector_type(8)));
  typedef ProductRecord<D, A, B, C> R;
  float2 a[8][4];
  union {
    float2 pairs[8][4];
    Row rows[8];
  } b, d;
  if (!all) {  // what a missing lane holds is undefined
    __builtin_memset(a, 0xff, sizeof a);
    __builtin_memset(&b, 0xff, sizeof b);
    __builtin_memset(&d, 0xff, sizeof d);
  }
#pragma unroll
  for (uint lane = 0; lane < simdgroup_size; lane++) {
    if (!all && !(mask >> lane & 1)) continue;
    const R* record = (const R*)records[lane];
    uint row = matrix_row(lane), pair = matrix_column(lane) / 2;
    a[row][pair] = widen(record->a);
    b.pairs[row][pair] = widen(record->b);
    d.pairs[row][pair] = widen(record->c);
  }
#pragma unroll
  for (int row = 0; row < 8; row++)
    for (int k = 0; k < 8; k++) d.rows[row] += a[row][k / 2][k % 2] * b.rows[k];
#pragma unroll
  for (uint lane = 0; lane < simdgroup_size; lane++) {
    if (!all && !(mask >> lane & 1)) continue;
    float2 sum = d.pairs[matrix_row(lane)][matrix_column(lane) / 2];
    ((R*)records[lane])->d = vec<D, 2>{(D)sum.x, (D)sum.y};
  }
}

template <class D, class A, class B, class C> MSL_UNCHECKED static void resolve_product(void* const* records, uint mask) {
  msl_host->matrix_product();
  if (mask == every_lane)
    product<D, A, B, C, true>(records, mask);
  else
    product<D, A, B, C, false>(records, mask);
}

}  // namespace msl

namespace metal {

template <class D, class A, class B, class C>
MSL_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                              simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c, MSL_SITE) {
  msl::ProductRecord<D, A, B, C> record{a.elements, b.elements, c.elements, {}};
  msl_host->simd_operation(&site, &record, &msl::resolve_product<D, A, B, C>);
  d.elements = record.d;
}
template <class D, class A, class B>
MSL_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b,
                                   MSL_SITE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f), site);
}

}  // namespace metal

typedef metal::simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef metal::simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef metal::simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
namespace metal {
using ::simdgroup_bfloat8x8;
using ::simdgroup_float8x8;
using ::simdgroup_half8x8;
}
