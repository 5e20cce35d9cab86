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

template <class D, class A, class B, class C> MSL_UNCHECKED static void resolve_product(void* const* records, uint mask) {
  typedef float Row __attribute__((ext_vector_type(8)));
  typedef ProductRecord<D, A, B, C> R;
  float a[8][8];
  Row b[8], d[8];
  if (mask != every_lane) {  // what a missing lane holds is undefined
    __builtin_memset(a, 0xff, sizeof a);
    __builtin_memset(b, 0xff, sizeof b);
  }
  for (uint lane = 0; lane < simdgroup_size; lane++) {
    if (!(mask >> lane & 1)) continue;
    const R* record = (const R*)records[lane];
    uint row = matrix_row(lane), column = matrix_column(lane);
    for (int i = 0; i < 2; i++) {
      a[row][column + i] = (float)record->a[i];
      b[row][column + i] = (float)record->b[i];
      d[row][column + i] = (float)record->c[i];
    }
  }
  for (int row = 0; row < 8; row++)
    for (int k = 0; k < 8; k++) d[row] += a[row][k] * b[k];
  for (uint lane = 0; lane < simdgroup_size; lane++) {
    if (!(mask >> lane & 1)) continue;
    uint row = matrix_row(lane), column = matrix_column(lane);
    ((R*)records[lane])->d = vec<D, 2>{(D)d[row][column], (D)d[row][column + 1]};
  }
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
