// Tiles of activations times weights, for matmul.metal and grouped_matmul.metal: it comes after weight.metal and matrix.metal, before their text.
//
// out[m, n] = sum_k x[m, k] * w[n, k]. Weights are operand A of 8x8 matrices (8 outputs), activations operand B (8 rows). Matrices are f32
// whatever T is: the product of two 16-bit floats is exact in f32, every chip multiplies f32 as fast as f16, and M1 and M2, which have no
// bfloat, emulate matrices of it. An operand is widened in registers, once for all the products that it is in.
//
// Order of a sum, the same for every tile shape: K is cut into slices of SLICE elements, which the host derives from K and T alone;
// a slice into blocks of 4 * V elements, V = 16 / sizeof(T), as one 16-byte load of each lane brings them; a block into V / 2
// matrices, of which number t takes element t of every group of V / 2 elements. A slice is one chain of multiply-accumulates that
// starts from zero; the slices' sums are added in ascending order, the bias last. What lies beyond K is zero on both sides.

constant uint SLICE [[function_constant(5)]];
// Bytes per load that the addresses of the activations' rows allow: 8, or less for single elements.
constant uint X_LOAD [[function_constant(6)]];
constant bool HAS_BIAS [[function_constant(7)]];
// In tiles of few rows: gates and ups become activations of type T, by SiLU (1) or GELU (2). 0: outputs are outputs.
constant uint GATED [[function_constant(8)]];

// A row that is not there.
#define NO_ROW 0xffffffffu
// Most slices: as many as simdgroups in a threadgroup of the tiles of few rows.
#define MAX_SLICES 8

// Of a dense product.
struct MatmulParams {
  uint rows;
};

// `count` rows from row `first` on.
struct DenseRows {
  uint first;
  uint count;
};
INLINE uint x_row(DenseRows rows, uint m) { return m < rows.count ? rows.first + m : NO_ROW; }
INLINE uint out_row(DenseRows rows, uint m) { return rows.first + m; }

// What a lane holds of the V / 2 matrices of a block, as bits: of two groups of V / 2 elements, the pair of each matrix; and of the matrices
// that half of those bits are for, the pair of number t in f32.
template <typename T>
struct Fragment {
  // By components of 16 bits, which are parts of registers: shifts of 32 bits run at a quarter of the rate on M1 and M2.
  static INLINE uint4 zip(uint2 a, uint2 b) {
    ushort4 x = as_type<ushort4>(a), y = as_type<ushort4>(b);
    return uint4(as_type<uint>(ushort2(x.x, y.x)), as_type<uint>(ushort2(x.y, y.y)), as_type<uint>(ushort2(x.z, y.z)),
                 as_type<uint>(ushort2(x.w, y.w)));
  }
  static INLINE float2 pair(uint2 zipped, uint t) { return Pack<T>::unpack(zipped[t]); }
};
template <>
struct Fragment<float> {
  static INLINE uint4 zip(uint2 a, uint2 b) { return uint4(a.x, b.x, a.y, b.y); }
  static INLINE float2 pair(uint2 zipped, uint t) { return Pack<float>::unpack(zipped); }
};

template <typename T>
INLINE uint4 zip(uint4 groups) {
  return Fragment<T>::zip(groups.xy, groups.zw);
}

// The part of matrix t < V / 2 of a block.
template <typename T>
INLINE Matrix fragment(uint4 zipped, uint t) {
  constexpr uint OF_HALF = 4 / sizeof(T);
  Matrix matrix;
  set_elements(matrix, Fragment<T>::pair(t < OF_HALF ? zipped.xy : zipped.zw, t % OF_HALF));
  return matrix;
}

// An output's sum for row m, from the slices' sums, [slice][16 outputs][rows].
INLINE float join(threadgroup const float* partial, uint rows, uint output, uint m, device const float* bias, uint n) {
  uint slices = (K + SLICE - 1) / SLICE;
  float sum = partial[output * rows + m];
  for (uint slice = 1; slice < slices; slice++) sum += partial[(slice * 16 + output) * rows + m];
  if (HAS_BIAS) sum += bias[n];
  return sum;
}

// Joins the slices' sums of a tile of few rows, [2][C] matrices of each, and writes its outputs. `partial` holds MAX_SLICES * 16 * 8 * C floats.
template <typename T, int C, typename Rows>
INLINE void store_few(thread const Matrix* sums, device const float* bias, device float* out, Rows rows,
                      threadgroup float* partial, uint first_output, uint thread_index, uint lane, uint simdgroup) {
  constexpr uint M = 8 * C;
  uint row = lane_row(lane), column = lane_column(lane);
  // The slices' sums meet in threadgroup memory, [slice][output][row].
#pragma unroll
  for (int i = 0; i < 2 * C; i++) {
    float2 elements = get_elements(sums[i]);
    threadgroup float* to = partial + ((simdgroup * 16 + i / C * 8 + row) * M + i % C * 8 + column);
    to[0] = elements.x;
    to[1] = elements.y;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint slices = (K + SLICE - 1) / SLICE;
  if (GATED != 0) {
    for (uint i = thread_index; i < 8 * rows.count; i += 32 * slices) {
      uint m = i / 8, n = first_output + i % 8;
      if (n >= N / 2) continue;
      float gate = join(partial, M, i % 8, m, bias, n), up = join(partial, M, 8 + i % 8, m, bias, N / 2 + n);
      ((device T*)out)[ulong(out_row(rows, m)) * (N / 2) + n] = T(gated(gate, up, GATED == 2));
    }
    return;
  }
  for (uint i = thread_index; i < 16 * rows.count; i += 32 * slices) {
    uint m = i / 16, n = first_output + i % 16;
    if (n < N) out[ulong(out_row(rows, m)) * N + n] = join(partial, M, i % 16, m, bias, n);
  }
}

// 16 outputs of at most 8 * C rows, one threadgroup of a simdgroup per slice. `rows` says which rows: x_row(rows, m) and
// out_row(rows, m) for m < rows.count. Where GATED, these are 8 gates from `first_output` on and their ups.
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
        for (int r = 0; r < 2; r++) A[r] = fragment<T>(left[r], t);
#pragma unroll
        for (int c = 0; c < C; c++) {
          if (uint(8 * c) >= rows.count) break;
          Matrix B = fragment<T>(right[c], t);
#pragma unroll
          for (int r = 0; r < 2; r++) simdgroup_multiply_accumulate(sums[r][c], A[r], B, sums[r][c]);
        }
      }
    }
  }

  store_few<T, C, Rows>(&sums[0][0], bias, out, rows, partial, first_output, thread_index, lane, simdgroup);
}

// The tile for many rows: 64 outputs of 64 rows, 4 simdgroups of 32 outputs and 32 rows each, a block of K at a time.
#define TILE 64
#define TILE_THREADS 128
// A stage is a block of the tile's weights and activations, zipped: [operand][half][8 outputs or rows][lane]. In units of 8 bytes:
#define STAGE_HALF (8 * 32)
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

// Writes a tile of many rows, 16 totals of a lane. `sum` holds TILE * TILE floats, which nobody reads any more.
template <typename Rows>
INLINE void store_many(thread const float2* totals, bool works, device const float* bias, device float* out, Rows rows,
                       threadgroup float* sum, uint first_output, uint thread_index, uint lane, uint simdgroup) {
  uint output_matrix = simdgroup % 2 * 4, row_matrix = simdgroup / 2 * 4;
  // The sums go through threadgroup memory, so that neighbouring threads write neighbouring outputs.
  if (works) {
#pragma unroll
    for (uint i = 0; i < 16; i++) {
      uint n = (output_matrix + i / 4) * 8 + lane_row(lane), m = (row_matrix + i % 4) * 8 + lane_column(lane);
      sum[m * TILE + n] = totals[i].x;
      sum[(m + 1) * TILE + n] = totals[i].y;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint n = first_output + thread_index % TILE;
  if (n >= N) return;
  float last = HAS_BIAS ? bias[n] : 0.0f;
  for (uint m = thread_index / TILE; m < rows.count; m += TILE_THREADS / TILE) {
    float value = sum[m * TILE + thread_index % TILE];
    if (HAS_BIAS) value += last;
    out[ulong(out_row(rows, m)) * N + n] = value;
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
