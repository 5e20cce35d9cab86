// Tiles of activations times weights, for matmul.metal and grouped_matmul.metal: it comes after weight.metal and matrix.metal, before their text.
//
// out[m, n] = sum_k x[m, k] * w[n, k]. Weights are operand A of 8x8 matrices (8 outputs), activations operand B (8 rows), sums f32.
//
// Order of a sum, the same for every tile shape: K is cut into slices of SLICE elements, which the host derives from K and T alone;
// a slice into blocks of 4 * V elements, V = 16 / sizeof(T), as one 16-byte load of each lane brings them; a block into V / 2
// matrices, of which number t takes element t of every group of V / 2 elements. A slice is one chain of multiply-accumulates that
// starts from zero; the slices' sums are added in ascending order, the bias last. What lies beyond K is zero on both sides.

constant uint SLICE [[function_constant(5)]];
// Bytes per load that the addresses of the activations' rows allow: 8, or less for single elements.
constant uint X_LOAD [[function_constant(6)]];
constant bool HAS_BIAS [[function_constant(7)]];

// A row that is not there.
#define NO_ROW 0xffffffffu
// Most slices: as many as simdgroups in a threadgroup of the tiles of few rows.
#define MAX_SLICES 8

// What a lane holds of the V / 2 matrices of a block, as bits: of two groups of V / 2 elements, the pair of matrix t.
template <typename T>
struct Fragment {
  static INLINE uint4 zip(uint2 a, uint2 b) {
    return uint4((a.x & 0xffffu) | b.x << 16, a.x >> 16 | (b.x & 0xffff0000u), (a.y & 0xffffu) | b.y << 16,
                 a.y >> 16 | (b.y & 0xffff0000u));
  }
  static INLINE vec<T, 2> pair(uint4 zipped, uint t) { return as_type<vec<T, 2>>(zipped[t]); }
};
template <>
struct Fragment<float> {
  static INLINE uint4 zip(uint2 a, uint2 b) { return uint4(a.x, b.x, a.y, b.y); }
  static INLINE float2 pair(uint4 zipped, uint t) {
    return t == 0 ? as_type<float2>(uint2(zipped.x, zipped.y)) : as_type<float2>(uint2(zipped.z, zipped.w));
  }
};

template <typename T>
INLINE uint4 zip(uint4 groups) {
  return Fragment<T>::zip(uint2(groups.x, groups.y), uint2(groups.z, groups.w));
}

// 16 outputs of at most 8 * C rows, one threadgroup of a simdgroup per slice. `rows` says which rows: x_row(rows, m) and
// out_row(rows, m) for m < rows.count.
//
// A simdgroup has 64 / C bytes of each weight row in flight per lane: all loads are issued before the first product.
// `partial` holds MAX_SLICES * 16 * 8 * C floats.
template <typename T, int C, typename Rows>
INLINE void few_rows_tile(device const T* x, Weights<T> weights, device const float* bias, device float* out, Rows rows,
                          threadgroup float* partial, uint first_output, uint thread_index, uint lane, uint simdgroup) {
  constexpr int U = 4 / C;
  constexpr uint V = 16 / sizeof(T);
  constexpr uint STEP = U * 4 * V;
  constexpr uint M = 8 * C;
  bool whole = K % STEP == 0;
  uint row = lane_row(lane), column = lane_column(lane);

  device const T* w[2];
#pragma unroll
  for (int r = 0; r < 2; r++) w[r] = weight_row(weights, first_output + r * 8 + row);
  uint x_rows[2 * C];
#pragma unroll
  for (int m = 0; m < 2 * C; m++) x_rows[m] = x_row(rows, m / 2 * 8 + column + m % 2);

  simdgroup_matrix<float, 8, 8> sums[2][C];
#pragma unroll
  for (int i = 0; i < 2 * C; i++) sums[i / C][i % C] = simdgroup_matrix<float, 8, 8>(0.0f);

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
      uint4 left[2];
#pragma unroll
      for (int r = 0; r < 2; r++) left[r] = zip<T>(a[r][u]);
#pragma unroll
      for (int c = 0; c < C; c++) {
        if (uint(8 * c) >= rows.count) break;
        uint4 right = Fragment<T>::zip(b[2 * c][u], b[2 * c + 1][u]);
#pragma unroll
        for (uint t = 0; t < V / 2; t++) {
          simdgroup_matrix<T, 8, 8> A, B;
          set_elements(B, Fragment<T>::pair(right, t));
#pragma unroll
          for (int r = 0; r < 2; r++) {
            set_elements(A, Fragment<T>::pair(left[r], t));
            simdgroup_multiply_accumulate(sums[r][c], A, B, sums[r][c]);
          }
        }
      }
    }
  }

  // The slices' sums meet in threadgroup memory, [slice][output][row].
#pragma unroll
  for (int i = 0; i < 2 * C; i++) {
    float2 elements = get_elements(sums[i / C][i % C]);
    threadgroup float* to = partial + ((simdgroup * 16 + i / C * 8 + row) * M + i % C * 8 + column);
    to[0] = elements.x;
    to[1] = elements.y;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint slices = (K + SLICE - 1) / SLICE;
  for (uint i = thread_index; i < 16 * rows.count; i += 32 * slices) {
    uint m = i / 16, n = first_output + i % 16;
    if (n >= N) continue;
    float sum = partial[i % 16 * M + m];
    for (uint slice = 1; slice < slices; slice++) sum += partial[(slice * 16 + i % 16) * M + m];
    if (HAS_BIAS) sum += bias[n];
    out[ulong(out_row(rows, m)) * N + n] = sum;
  }
}

// Sizes of the tile for many rows: 64 outputs of 64 rows, two blocks of K at a time, 8 simdgroups of 32 outputs and 16 rows each.
#define TILE 64
#define TILE_BLOCKS 2
#define TILE_THREADS 256

// What a thread brings to threadgroup memory: two fragments of weights and two of activations, from these rows.
template <typename T>
struct StageRows {
  device const T* weights[2];
  device const T* x;
  uint x_rows[2][2];
};

// It on its way there.
struct Stage {
  uint4 weights[2];
  uint2 x[2][2];
};

// Loads the stage from element k on.
template <typename T>
INLINE Stage load_stage(thread const StageRows<T>& from, uint k, uint thread_index) {
  constexpr uint V = 16 / sizeof(T);
  bool whole = K % (TILE_BLOCKS * 4 * V) == 0;
  Stage stage;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    stage.weights[i] = load16(from.weights[i], k + thread_index % 8 * V, whole);
#pragma unroll
    for (int j = 0; j < 2; j++) {
      stage.x[i][j] = uint2(0u, 0u);
      if (from.x_rows[i][j] != NO_ROW) {
        device const T* row = from.x + ulong(from.x_rows[i][j]) * K;
        stage.x[i][j] = load8(row, k + thread_index % 16 * (V / 2), X_LOAD, whole);
      }
    }
  }
  return stage;
}

// 64 outputs of at most 64 rows, a threadgroup of 256 threads that walks all slices in sequence. Threadgroup memory `staged`:
// fragments of weights, [block][8 outputs][lane], then of activations, [block][8 rows][lane]; at the end the sums, [row][output].
// Each element comes from device memory once; the next stage is on its way while this one is multiplied.
template <typename T, typename Rows>
INLINE void many_rows_tile(device const T* x, Weights<T> weights, device const float* bias, device float* out, Rows rows,
                           threadgroup uint4* staged, uint first_output, uint thread_index, uint lane, uint simdgroup) {
  constexpr uint V = 16 / sizeof(T);
  constexpr uint STEP = TILE_BLOCKS * 4 * V;
  threadgroup uint4* staged_x = staged + TILE_BLOCKS * 8 * 32;

  // Thread i brings 16 bytes of the weights' rows i / 8 and i / 8 + 32, and 8 bytes of two pairs of rows of x.
  StageRows<T> from;
  from.x = x;
  uint w_to[2], x_to[2];
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    uint output = thread_index / 8 + i * 32, pair = thread_index / 16 + i * 16;
    from.weights[i] = weight_row(weights, first_output + output);
    w_to[i] = (thread_index % 8 / 4 * 8 + output / 8) * 32 + lane_of(output % 8, thread_index % 4);
    x_to[i] = (thread_index % 16 / 8 * 8 + pair / 4) * 32 + lane_of(thread_index % 8, pair % 4);
    for (uint j = 0; j < 2; j++) from.x_rows[i][j] = x_row(rows, 2 * pair + j);
  }

  // This simdgroup's part of the tile: 4 matrices of outputs, 2 of rows.
  uint output_matrix = simdgroup % 2 * 4, row_matrix = simdgroup / 2 * 2;
  bool works = row_matrix * 8 < rows.count && first_output + output_matrix * 8 < N;
  simdgroup_matrix<float, 8, 8> sums[4][2];
  float2 totals[4][2];

  Stage stage = load_stage(from, 0, thread_index);
  for (uint k = 0; k < K; k += STEP) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      staged[w_to[i]] = zip<T>(stage.weights[i]);
      staged_x[x_to[i]] = Fragment<T>::zip(stage.x[i][0], stage.x[i][1]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (k + STEP < K) stage = load_stage(from, k + STEP, thread_index);
    if (!works) continue;
    if (k % SLICE == 0) {
#pragma unroll
      for (int i = 0; i < 8; i++) sums[i / 2][i % 2] = simdgroup_matrix<float, 8, 8>(0.0f);
    }
#pragma unroll
    for (uint u = 0; u < TILE_BLOCKS; u++) {
      if (k + u * 4 * V >= K) break;
      uint4 left[4], right[2];
#pragma unroll
      for (uint r = 0; r < 4; r++) left[r] = staged[(u * 8 + output_matrix + r) * 32 + lane];
#pragma unroll
      for (uint c = 0; c < 2; c++) right[c] = staged_x[(u * 8 + row_matrix + c) * 32 + lane];
#pragma unroll
      for (uint t = 0; t < V / 2; t++) {
        simdgroup_matrix<T, 8, 8> A, B;
#pragma unroll
        for (uint r = 0; r < 4; r++) {
          set_elements(A, Fragment<T>::pair(left[r], t));
#pragma unroll
          for (uint c = 0; c < 2; c++) {
            set_elements(B, Fragment<T>::pair(right[c], t));
            simdgroup_multiply_accumulate(sums[r][c], A, B, sums[r][c]);
          }
        }
      }
    }
    // The end of a slice.
    if ((k + STEP) % SLICE == 0 || k + STEP >= K) {
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float2 sum = get_elements(sums[i / 2][i % 2]);
        totals[i / 2][i % 2] = k < SLICE ? sum : totals[i / 2][i % 2] + sum;
      }
    }
  }

  // The sums go through threadgroup memory, so that neighbouring threads write neighbouring outputs.
  threadgroup float* sum = (threadgroup float*)staged;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (works) {
#pragma unroll
    for (uint i = 0; i < 8; i++) {
      uint n = (output_matrix + i / 2) * 8 + lane_row(lane), m = (row_matrix + i % 2) * 8 + lane_column(lane);
      sum[m * TILE + n] = totals[i / 2][i % 2].x;
      sum[(m + 1) * TILE + n] = totals[i / 2][i % 2].y;
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
