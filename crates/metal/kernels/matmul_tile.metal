// Tiles of activations times weights of floats, for matmul.metal and grouped_matmul.metal: it comes after tile.metal, before their text.
//
// Order of a sum, the same for every tile shape: slices, which the host derives from K and T alone; a slice in blocks of 4 * V elements,
// V = 16 / sizeof(T), as one 16-byte load of each lane brings them; a block in V / 2 matrices, of which number t takes element t of every group of
// V / 2 elements.

// The part of matrix t < V / 2 of a block.
template <typename T>
INLINE Matrix matrix_of(uint4 zipped, uint t) {
  constexpr uint OF_HALF = 4 / sizeof(T);
  Matrix matrix;
  set_elements(matrix, Fragment<T>::pair(t < OF_HALF ? zipped.xy : zipped.zw, t % OF_HALF));
  return matrix;
}

// 16 outputs of at most 8 * C rows, one threadgroup of a simdgroup per slice. `rows` says which rows: x_row(rows, m) and
// out_at(rows, m) for m < rows.count. Where GATED, these are 8 gates from `first_output` on and their ups.
//
// A simdgroup has 64 / C bytes of each weight row in flight per lane: all loads are issued before the first product.
// `partial` holds MAX_SLICES * 16 * 8 * C floats.
template <typename T, int C, typename Rows>
INLINE void few_rows_tile(device const T* x, Weights<T> weights, device const float* bias, device float* out, Rows rows,
                          threadgroup float* partial, uint first_output, uint thread_index, uint lane, uint simdgroup) {
  constexpr int U = 4 / C;
  constexpr uint V = 16 / sizeof(T);
  constexpr uint STEP = U * 4 * V;
  bool whole = K % STEP == 0;
  uint row = lane_row(lane), column = lane_column(lane);

  device const T* w[2];
#pragma unroll
  for (int r = 0; r < 2; r++) w[r] = weight_row(weights, first_output + r * (GATED != 0 ? N / 2 : 8) + row);
  uint x_rows[2 * C];
#pragma unroll
  for (int m = 0; m < 2 * C; m++) x_rows[m] = x_row(rows, m / 2 * 8 + column + m % 2);

  Matrix sums[2][C];
#pragma unroll
  for (int i = 0; i < 2 * C; i++) sums[i / C][i % C] = Matrix(0.0f);

  uint end = min(K, (simdgroup + 1) * SLICE);
  for (uint k = simdgroup * SLICE; k < end; k += STEP) {
    uint4 a[2][U];
    uint2 b[2 * C][U];
#pragma unroll
    for (int u = 0; u < U; u++) {
#pragma unroll
      for (int r = 0; r < 2; r++) a[r][u] = load16(w[r], k + (u * 4 + column / 2) * V, whole);
    }
#pragma unroll
    for (int m = 0; m < 2 * C; m++) {
#pragma unroll
      for (int u = 0; u < U; u++) b[m][u] = uint2(0u, 0u);
      if (x_rows[m] != NO_ROW) {
        device const T* from = x + ulong(x_rows[m]) * K;
#pragma unroll
        for (int u = 0; u < U; u++) b[m][u] = load8(from, k + u * 4 * V + row * (V / 2), X_LOAD, whole);
      }
    }
    // Keeps the compiler from moving loads to their uses.
    simdgroup_barrier(mem_flags::mem_none);
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (!whole && k + u * 4 * V >= end) break;
      uint4 left[2], right[C];
#pragma unroll
      for (int r = 0; r < 2; r++) left[r] = zip<T>(a[r][u]);
#pragma unroll
      for (int c = 0; c < C; c++) right[c] = Fragment<T>::zip(b[2 * c][u], b[2 * c + 1][u]);
#pragma unroll
      for (uint t = 0; t < V / 2; t++) {
        Matrix A[2];
#pragma unroll
        for (int r = 0; r < 2; r++) A[r] = matrix_of<T>(left[r], t);
#pragma unroll
        for (int c = 0; c < C; c++) {
          if (uint(8 * c) >= rows.count) break;
          Matrix B = matrix_of<T>(right[c], t);
#pragma unroll
          for (int r = 0; r < 2; r++) simdgroup_multiply_accumulate(sums[r][c], A[r], B, sums[r][c]);
        }
      }
    }
  }

  store_few<T, C, Rows>(&sums[0][0], bias, out, rows, partial, first_output, thread_index, lane, simdgroup);
}

// A stage is a block of the tile's weights and activations, zipped: [operand][half][8 outputs or rows][lane]. In units of 8 bytes:
#define STAGE_OPERAND (2 * STAGE_HALF)
#define STAGE (2 * STAGE_OPERAND)

// The rows of which a thread brings a part to threadgroup memory: two of weights, and two neighbours of x.
template <typename T>
struct StageRows {
  device const T* weights[2];
  device const T* x[2];
};

// A thread's part of a stage, on its way there: 16 bytes of each row of weights, two groups of 8 bytes of each row of x.
struct Stage {
  uint4 weights[2];
  uint2 x[2][2];
};

// Loads the stage from element k on.
template <typename T>
INLINE Stage load_stage(thread const StageRows<T>& from, uint k, uint thread_index) {
  constexpr uint V = 16 / sizeof(T);
  bool whole = K % (4 * V) == 0;
  Stage stage;
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    stage.weights[i] = load16(from.weights[i], k + thread_index % 4 * V, whole);
#pragma unroll
    for (uint j = 0; j < 2; j++)
      stage.x[i][j] = load8(from.x[j], k + (thread_index % 4 + 4 * i) * (V / 2), X_LOAD, whole);
  }
  return stage;
}

// Puts a stage where simdgroups find their fragments. Neighbouring threads store to neighbouring addresses.
template <typename T>
INLINE void store_stage(thread const Stage& stage, threadgroup uint2* staged, uint thread_index) {
  uint row = thread_index / 4, part = thread_index % 4;
  threadgroup uint2* weights = staged + row / 8 * 32 + lane_of(row % 8, part);
  threadgroup uint2* x = staged + STAGE_OPERAND + row / 4 * 32 + lane_of(part, row % 4);
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    uint4 w = zip<T>(stage.weights[i]), y = Fragment<T>::zip(stage.x[i][0], stage.x[i][1]);
    // The second row of weights is 4 matrices further, the second group of x 4 rows of the matrix.
    weights[i * 128] = w.xy;
    weights[i * 128 + STAGE_HALF] = w.zw;
    x[i * 16] = y.xy;
    x[i * 16 + STAGE_HALF] = y.zw;
  }
}

// Multiplies a stage: 4 matrices of outputs and C of rows, which begin at `weights` and at `x`.
template <typename T, uint C>
INLINE void multiply_stage(threadgroup const uint2* weights, threadgroup const uint2* x, uint lane,
                           thread Matrix* sums) {
#pragma unroll
  for (uint half_block = 0; half_block < 2; half_block++) {
    uint2 left[4], right[C];
#pragma unroll
    for (uint r = 0; r < 4; r++) left[r] = weights[half_block * STAGE_HALF + r * 32 + lane];
#pragma unroll
    for (uint c = 0; c < C; c++) right[c] = x[half_block * STAGE_HALF + c * 32 + lane];
#pragma unroll
    for (uint t = 0; t < 4 / sizeof(T); t++) {
      Matrix A[4], B;
#pragma unroll
      for (uint r = 0; r < 4; r++) set_elements(A[r], Fragment<T>::pair(left[r], t));
#pragma unroll
      for (uint c = 0; c < C; c++) {
        set_elements(B, Fragment<T>::pair(right[c], t));
#pragma unroll
        for (uint r = 0; r < 4; r++) simdgroup_multiply_accumulate(sums[r * 4 + c], A[r], B, sums[r * 4 + c]);
      }
    }
  }
}

// 64 outputs of at most 64 rows, a threadgroup of 128 threads that walks all slices in sequence. `staged` is memory for two stages: one is
// multiplied while the next is on its way and then stored beside it, so that a stage takes one barrier; at the end it holds the sums,
// [row][output]. Each element comes from device memory once.
//
// A lane holds 64 sums and totals, 16 bits of 32 of a half block, 16 of their elements in f32 and 16 words of the next stage: with addresses
// some 120 registers of 128, so that a core of 208 KiB of registers has room for three such threadgroups, and in its 60 KiB of threadgroup
// memory, too.
template <typename T, typename Rows>
INLINE void many_rows_tile(device const T* x, Weights<T> weights, device const float* bias, device float* out, Rows rows,
                           threadgroup uint2* staged, uint first_output, uint thread_index, uint lane, uint simdgroup) {
  constexpr uint STEP = 4 * (16 / sizeof(T));

  // Thread i brings parts of the weights' rows i / 4 and i / 4 + 32, and of rows 2 * (i / 4) and the next of x. Rows that are not there are
  // the last one again: they are computed and not stored.
  StageRows<T> from;
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    from.weights[i] = weight_row(weights, first_output + thread_index / 4 + i * 32);
    from.x[i] = x + ulong(x_row(rows, min(thread_index / 4 * 2 + i, rows.count - 1))) * K;
  }

  // This simdgroup's part of the tile: 4 matrices of outputs, 4 of rows.
  uint output_matrix = simdgroup % 2 * 4, row_matrix = simdgroup / 2 * 4;
  bool works = row_matrix * 8 < rows.count && first_output + output_matrix * 8 < N;
  bool few = rows.count <= row_matrix * 8 + 16;
  Matrix sums[16];
  float2 totals[16];

  Stage stage = load_stage(from, 0, thread_index);
  store_stage<T>(stage, staged, thread_index);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint k = 0; k < K; k += STEP) {
    threadgroup uint2* now = staged + k / STEP % 2 * STAGE;
    threadgroup uint2* next = staged + (k / STEP + 1) % 2 * STAGE;
    if (k + STEP < K) stage = load_stage(from, k + STEP, thread_index);
    // Keeps the compiler from moving loads to their uses.
    simdgroup_barrier(mem_flags::mem_none);
    if (works) {
      if (k % SLICE == 0) {
#pragma unroll
        for (int i = 0; i < 16; i++) sums[i] = Matrix(0.0f);
      }
      threadgroup const uint2* left = now + output_matrix * 32;
      threadgroup const uint2* right = now + STAGE_OPERAND + row_matrix * 32;
      if (few) {
        multiply_stage<T, 2>(left, right, lane, sums);
      } else {
        multiply_stage<T, 4>(left, right, lane, sums);
      }
      // The end of a slice.
      if ((k + STEP) % SLICE == 0 || k + STEP >= K) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
          float2 sum = get_elements(sums[i]);
          totals[i] = k < SLICE ? sum : totals[i] + sum;
        }
      }
    }
    if (k + STEP < K) store_stage<T>(stage, next, thread_index);
    // The next stage is there, and this one's memory may be used again.
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  store_many<Rows>(totals, works, bias, out, rows, (threadgroup float*)staged, first_output, thread_index, lane, simdgroup);
}
