// What all tiles of activations times weights share: it comes after weight.metal and matrix.metal, before matmul_tile.metal or codes_tile.metal.
//
// out[m, n] = sum_k x[m, k] * w[n, k]. Weights are operand A of 8x8 matrices (8 outputs), activations operand B (8 rows). Matrices are f32
// whatever T is: the product of two 16-bit floats is exact in f32, every chip multiplies f32 as fast as f16, and M1 and M2, which have no
// bfloat, emulate matrices of it. An operand is widened in registers, once for all the products that it is in.
//
// K is cut into slices of SLICE elements, each one chain of multiply-accumulates that starts from zero; the slices' sums are added in ascending
// order, the bias last. What lies beyond K is zero on both sides.

constant uint SLICE [[function_constant(5)]];
// Bytes per load that the addresses of the activations' rows allow: 8, or less for single elements.
constant uint X_LOAD [[function_constant(6)]];
constant bool HAS_BIAS [[function_constant(7)]];
// In tiles of few rows: gates and ups become activations of type T, by what `gated` is told. 0: outputs are outputs.
constant uint GATED [[function_constant(8)]];

// A row that is not there.
#define NO_ROW 0xffffffffu
// Most slices: as many as simdgroups in a threadgroup of the tiles of few rows.
#define MAX_SLICES 8

// Of a dense product.
struct MatmulParams {
  uint rows;
  // Of the dispatch: a product that takes long is several.
  uint first_output;
  // Of all that is in a row of `out`, where others may have products of the same rows.
  uint out_cols;
};

// `count` rows from row `first` on.
struct DenseRows {
  uint first;
  uint count;
  uint out_cols;
};
INLINE uint x_row(DenseRows rows, uint m) { return m < rows.count ? rows.first + m : NO_ROW; }
// Where the outputs of a row begin.
INLINE ulong out_at(DenseRows rows, uint m) { return ulong(rows.first + m) * rows.out_cols; }

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
      ((device T*)out)[out_at(rows, m) + n] = T(gated(gate, up, GATED));
    }
    return;
  }
  for (uint i = thread_index; i < 16 * rows.count; i += 32 * slices) {
    uint m = i / 16, n = first_output + i % 16;
    if (n < N) out[out_at(rows, m) + n] = join(partial, M, i % 16, m, bias, n);
  }
}

// The tile for many rows: 64 outputs of 64 rows, 4 simdgroups of 32 outputs and 32 rows each, a block of K at a time.
#define TILE 64
#define TILE_THREADS 128
// A half of a stage's activations or weights, 8 of 8 outputs or rows, in units of 8 bytes.
#define STAGE_HALF (8 * 32)

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
    out[out_at(rows, m) + n] = value;
  }
}
