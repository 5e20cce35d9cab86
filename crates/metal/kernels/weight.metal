// Rows of weights, and how they are loaded: it comes between common.metal and the text of the kernels that read weights.
//
// A weight is a matrix [N, K] of rows as a checkpoint holds them, in up to three arrays: those of q, k and v, or of gate and up, stay
// where they are. PART1 and PART2 are the first rows of the second and of the third array, N if there is none.

constant uint K [[function_constant(0)]];
constant uint N [[function_constant(1)]];
// Bytes per load that the addresses of the weight's rows allow: 16, 8, or less for single elements.
constant uint W_LOAD [[function_constant(2)]];
constant uint PART1 [[function_constant(3)]];
constant uint PART2 [[function_constant(4)]];

// The rows of a weight matrix.
template <typename T>
struct Weights {
  device const T* part0;
  device const T* part1;
  device const T* part2;
};

// Row n; of those beyond the last, the last: they are computed and not stored.
template <typename T>
INLINE device const T* weight_row(Weights<T> weights, uint n) {
  n = min(n, N - 1);
  if (n < PART1) return weights.part0 + ulong(n) * K;
  if (n < PART2) return weights.part1 + ulong(n - PART1) * K;
  return weights.part2 + ulong(n - PART2) * K;
}

// 8 bytes of a row as bits, element by element; zeros beyond K.
template <typename T>
struct Gather {
  static INLINE uint element(device const T* row, uint k) {
    uint bits = as_type<ushort>(row[min(k, K - 1)]);
    return k < K ? bits : 0u;
  }
  static INLINE uint2 group(device const T* row, uint k) {
    return uint2(element(row, k) | element(row, k + 1) << 16, element(row, k + 2) | element(row, k + 3) << 16);
  }
};
template <>
struct Gather<float> {
  static INLINE uint element(device const float* row, uint k) {
    uint bits = as_type<uint>(row[min(k, K - 1)]);
    return k < K ? bits : 0u;
  }
  static INLINE uint2 group(device const float* row, uint k) { return uint2(element(row, k), element(row, k + 1)); }
};

// The 8 bytes of a row from element k on, zeros beyond K. `whole`: known at compile time to lie within the row. Addresses are clamped instead of
// branched around, so that the loads of an iteration stay together.
template <typename T>
INLINE uint2 load8(device const T* row, uint k, uint bytes_per_load, bool whole) {
  if (bytes_per_load < 8) return Gather<T>::group(row, k);
  if (whole) return *(device const uint2*)(row + k);
  uint2 group = *(device const uint2*)(row + min(k, K - uint(8 / sizeof(T))));
  return k < K ? group : uint2(0u, 0u);
}

// The 16 bytes of a weight's row from element k on, zeros beyond K.
template <typename T>
INLINE uint4 load16(device const T* row, uint k, bool whole) {
  if (W_LOAD < 16) {
    uint2 low = load8(row, k, W_LOAD, whole), high = load8(row, k + uint(8 / sizeof(T)), W_LOAD, whole);
    return uint4(low.x, low.y, high.x, high.y);
  }
  if (whole) return *(device const uint4*)(row + k);
  uint4 groups = *(device const uint4*)(row + min(k, K - uint(16 / sizeof(T))));
  return k < K ? groups : uint4(0u, 0u, 0u, 0u);
}
