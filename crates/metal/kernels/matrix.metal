// 8x8 matrices of f32 as the lanes of a simdgroup hold them: for the kernels that fill them from registers. It comes before their text.
//
// A lane holds two neighbouring elements of a matrix: this row, this column and the next. The layout is not documented; it is what
// Apple's GPUs have (MLX relies on it), and `matrix_layout` in matmul.metal checks it.

INLINE uint lane_row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
INLINE uint lane_column(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
// The lane that holds columns 2 * pair and 2 * pair + 1 of a row.
INLINE uint lane_of(uint row, uint pair) { return (row / 4) * 16 + (pair / 2) * 8 + row % 4 * 2 + pair % 2; }

typedef simdgroup_matrix<float, 8, 8> Matrix;

INLINE void set_elements(thread Matrix& matrix, float2 elements) {
  reinterpret_cast<thread float2&>(matrix.thread_elements()) = elements;
}

INLINE float2 get_elements(Matrix matrix) {
  return reinterpret_cast<thread float2&>(matrix.thread_elements());
}
