// Tiles of activations times weights of codes, for codes_matmul.metal and codes_grouped_matmul.metal: it comes after tile.metal and codes.metal, before
// their text.
//
// They are the tiles of matmul_tile.metal with operand A from codes: a lane makes f32 elements of its own codes where it multiplies them, so that
// neither more memory nor a barrier is needed. Who owns what is there.
//
// Order of a sum, the same for every tile shape: slices, from K alone, are multiples of a chunk; a slice is one chain of 8x8 products that starts
// from zero, block after block of 32 elements, of which matrix t has the elements t of every 4.

// 4 elements of a row of activations, from a multiple of 4 on.
template <typename T>
struct Four {
  uint2 bits[sizeof(T) / 2];
};

template <typename T>
INLINE Four<T> load_four(device const T* row, uint k, bool whole) {
  Four<T> four;
#pragma unroll
  for (uint i = 0; i < sizeof(T) / 2; i++) four.bits[i] = load8(row, k + i * 2, X_LOAD, whole);
  return four;
}

template <typename T>
INLINE Four<T> no_four() {
  Four<T> four;
#pragma unroll
  for (uint i = 0; i < sizeof(T) / 2; i++) four.bits[i] = uint2(0u, 0u);
  return four;
}

// Of two neighbouring rows the elements 0 to 3, so that those that go together lie together, in the 8 bytes that stages have.
template <typename T>
INLINE void zip_fours(thread const Four<T>& a, thread const Four<T>& b, thread uint2* zipped) {
#pragma unroll
  for (uint i = 0; i < sizeof(T) / 2; i++) {
    uint4 bits = Fragment<T>::zip(a.bits[i], b.bits[i]);
    zipped[2 * i] = bits.xy;
    zipped[2 * i + 1] = bits.zw;
  }
}

// Element t of them: two of 16 bits are in 8 bytes, or one of 32.
template <typename T>
INLINE float2 zipped_pair(thread const uint2* zipped, uint t) {
  return sizeof(T) == 2 ? Fragment<T>::pair(zipped[t / 2], t % 2) : Fragment<T>::pair(zipped[t], 0);
}

// See few_rows_tile. A simdgroup has a piece of each of 16 rows in flight, and the activations of 4 / C blocks.
template <typename T, int C, typename Rows>
INLINE void few_rows_codes(device const T* x, device const uchar* weights, device const float* bias, device float* out, Rows rows,
                           threadgroup float* partial, uint first_output, uint thread_index, uint lane, uint simdgroup) {
  constexpr uint U = 4 / C;
  bool whole = K % CHUNK == 0;
  uint row = lane_row(lane), column = lane_column(lane);

  CodeRow w[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    uint code_first = first_output + r * (GATED != 0 ? N / 2 : 8);
    w[r] = code_row(weights, code_first + row);
  }
  uint x_rows[2 * C];
#pragma unroll
  for (int m = 0; m < 2 * C; m++) x_rows[m] = x_row(rows, m / 2 * 8 + column + m % 2);

  Matrix sums[2][C];
#pragma unroll
  for (int i = 0; i < 2 * C; i++) sums[i / C][i % C] = Matrix(0.0f);

  uint end = min(K, (simdgroup + 1) * SLICE);
  for (uint k = simdgroup * SLICE; k < end; k += piece_size()) {
    Piece pieces[2];
#pragma unroll
    for (int r = 0; r < 2; r++) pieces[r] = load_piece(w[r], k / piece_size(), column / 2);
#pragma unroll
    for (uint first = 0; first < 4; first += U) {
      if (first >= piece_blocks() || (!whole && k + first * BLOCK >= end)) break;
      Four<T> b[2 * C][U];
#pragma unroll
      for (int m = 0; m < 2 * C; m++) {
#pragma unroll
        for (uint u = 0; u < U; u++) b[m][u] = no_four<T>();
        if (x_rows[m] != NO_ROW) {
          device const T* from = x + ulong(x_rows[m]) * K;
#pragma unroll
          for (uint u = 0; u < U; u++) {
            if (first + u < piece_blocks()) b[m][u] = load_four(from, k + (first + u) * BLOCK + row * 4, whole);
          }
        }
      }
      // Keeps the compiler from moving loads to their uses.
      simdgroup_barrier(mem_flags::mem_none);
#pragma unroll
      for (uint u = 0; u < U; u++) {
        if (first + u >= piece_blocks() || (!whole && k + (first + u) * BLOCK >= end)) break;
        uint2 right[C][sizeof(T)];
#pragma unroll
        for (int c = 0; c < C; c++) zip_fours<T>(b[2 * c][u], b[2 * c + 1][u], right[c]);
#pragma unroll
        for (uint t = 0; t < 4; t++) {
          Matrix A[2];
#pragma unroll
          for (int r = 0; r < 2; r++) set_elements(A[r], weight_pair(pieces[r], t));
#pragma unroll
          for (int c = 0; c < C; c++) {
            if (uint(8 * c) >= rows.count) break;
            Matrix B;
            set_elements(B, zipped_pair<T>(right[c], t));
#pragma unroll
            for (int r = 0; r < 2; r++) simdgroup_multiply_accumulate(sums[r][c], A[r], B, sums[r][c]);
          }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) next_block(pieces[r], first + u);
      }
    }
  }

  store_few<T, C, Rows>(&sums[0][0], bias, out, rows, partial, first_output, thread_index, lane, simdgroup);
}

// A stage is a block of the tile's activations, zipped: [part][8 rows][lane], in parts of 8 bytes that have two matrices of 16 bits or one of 32.
#define CODES_STAGE (4 * STAGE_HALF)

// A thread's part of a stage, on its way there: two groups of 4 elements of two neighbouring rows.
template <typename T>
struct XStage {
  Four<T> x[2][2];
};

template <typename T>
INLINE XStage<T> load_x_stage(device const T* row0, device const T* row1, uint k, uint thread_index) {
  bool whole = K % BLOCK == 0;
  XStage<T> stage;
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    uint at = k + (thread_index % 4 + 4 * i) * 4;
    stage.x[i][0] = load_four(row0, at, whole);
    stage.x[i][1] = load_four(row1, at, whole);
  }
  return stage;
}

template <typename T>
INLINE void store_x_stage(thread const XStage<T>& stage, threadgroup uint2* staged, uint thread_index) {
  uint row = thread_index / 4, part = thread_index % 4;
  threadgroup uint2* to = staged + row / 4 * 32 + lane_of(part, row % 4);
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    uint2 zipped[sizeof(T)];
    zip_fours<T>(stage.x[i][0], stage.x[i][1], zipped);
    // The second group is 4 rows of the matrix further.
#pragma unroll
    for (uint j = 0; j < sizeof(T); j++) to[j * STAGE_HALF + i * 16] = zipped[j];
  }
}

// Multiplies a block: 4 matrices of outputs and C of rows, which begin at `x`.
template <typename T, uint C>
INLINE void multiply_block(thread const Piece* pieces, threadgroup const uint2* x, uint lane, thread Matrix* sums) {
#pragma unroll
  for (uint part = 0; part < sizeof(T); part++) {
    uint2 right[C];
#pragma unroll
    for (uint c = 0; c < C; c++) right[c] = x[part * STAGE_HALF + c * 32 + lane];
#pragma unroll
    for (uint i = 0; i < 4 / sizeof(T); i++) {
      uint t = part * (4 / sizeof(T)) + i;
      Matrix A[4], B;
#pragma unroll
      for (uint r = 0; r < 4; r++) set_elements(A[r], weight_pair(pieces[r], t));
#pragma unroll
      for (uint c = 0; c < C; c++) {
        set_elements(B, Fragment<T>::pair(right[c], i));
#pragma unroll
        for (uint r = 0; r < 4; r++) simdgroup_multiply_accumulate(sums[r * 4 + c], A[r], B, sums[r * 4 + c]);
      }
    }
  }
}

// See many_rows_tile: 64 outputs of at most 64 rows in 128 threads. Only activations are staged; codes go from device memory to the lanes that
// multiply them, of which two simdgroups each make the same elements: some 2 instructions an element, where each is 32 products.
//
// A lane holds 64 sums and totals, pieces of 4 rows (24 words where codes have 4 bits and groups 32 elements), 8 elements of weights and 4 words and 2
// elements of activations, and 8 words of the next stage: with addresses some 125 registers of 128.
template <typename T, typename Rows>
INLINE void many_rows_codes(device const T* x, device const uchar* weights, device const float* bias, device float* out, Rows rows,
                            threadgroup uint2* staged, uint first_output, uint thread_index, uint lane, uint simdgroup) {
  constexpr uint SIZE = sizeof(T) * STAGE_HALF;
  // Thread i brings parts of rows 2 * (i / 4) and the next of x. Rows that are not there are the last one again: they are computed and not stored.
  device const T* from[2];
#pragma unroll
  for (uint i = 0; i < 2; i++) from[i] = x + ulong(x_row(rows, min(thread_index / 4 * 2 + i, rows.count - 1))) * K;

  // This simdgroup's part of the tile: 4 matrices of outputs, 4 of rows.
  uint output_matrix = simdgroup % 2 * 4, row_matrix = simdgroup / 2 * 4;
  bool works = row_matrix * 8 < rows.count && first_output + output_matrix * 8 < N;
  bool few = rows.count <= row_matrix * 8 + 16;
  CodeRow w[4];
#pragma unroll
  for (uint r = 0; r < 4; r++) w[r] = code_row(weights, first_output + (output_matrix + r) * 8 + lane_row(lane));
  Matrix sums[16];
  float2 totals[16];
  Piece pieces[4];

  XStage<T> stage = load_x_stage(from[0], from[1], 0, thread_index);
  store_x_stage<T>(stage, staged, thread_index);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint k = 0; k < K; k += BLOCK) {
    threadgroup uint2* now = staged + k / BLOCK % 2 * SIZE;
    threadgroup uint2* next = staged + (k / BLOCK + 1) % 2 * SIZE;
    if (works && k % piece_size() == 0) {
#pragma unroll
      for (uint r = 0; r < 4; r++) pieces[r] = load_piece(w[r], k / piece_size(), lane_column(lane) / 2);
    }
    if (k + BLOCK < K) stage = load_x_stage(from[0], from[1], k + BLOCK, thread_index);
    // Keeps the compiler from moving loads to their uses.
    simdgroup_barrier(mem_flags::mem_none);
    if (works) {
      if (k % SLICE == 0) {
#pragma unroll
        for (int i = 0; i < 16; i++) sums[i] = Matrix(0.0f);
      }
      threadgroup const uint2* right = now + row_matrix * 32;
      if (few) {
        multiply_block<T, 2>(pieces, right, lane, sums);
      } else {
        multiply_block<T, 4>(pieces, right, lane, sums);
      }
      // The end of a slice.
      if ((k + BLOCK) % SLICE == 0 || k + BLOCK >= K) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
          float2 sum = get_elements(sums[i]);
          totals[i] = k < SLICE ? sum : totals[i] + sum;
        }
      }
#pragma unroll
      for (uint r = 0; r < 4; r++) next_block(pieces[r], k % piece_size() / BLOCK);
    }
    if (k + BLOCK < K) store_x_stage<T>(stage, next, thread_index);
    // The next stage is there, and this one's memory may be used again.
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  store_many<Rows>(totals, works, bias, out, rows, (threadgroup float*)staged, first_output, thread_index, lane, simdgroup);
}
