// What attention does with one chunk of 32 positions and OCTETS times 8 columns, for paged_attention.metal: it comes after matrix.metal and
// attention_state.metal, before that text.
//
// With 8x8 matrices, S^T = K Q^T and O^T = V^T P^T: positions or head elements in rows, columns in columns, all in f32.
// Cache: keys [block][head][token][HEAD_DIM], values [block][head][HEAD_DIM][token]. A unit is 8 neighbouring elements, as a lane loads
// them: of a key, or of 8 positions of one value element. A unit feeds four matrices: the lane with columns 2 * u and 2 * u + 1 of a row
// loads unit u of four, and gives elements 2 * t and 2 * t + 1 to matrix t. So matrix t takes, of 32 head elements (or 32 positions),
// those in columns 8 * (column / 2) + 2 * t + column % 2; queries and weights are arranged alike.

constant uint BLOCK_SIZE [[function_constant(3)]];

// A masked score is below the largest score of no position by more than any exponential can tell from nothing.
constant constexpr float MASKED = -2e30f;

template <typename T>
struct Unit {
  uint4 bits;

  static INLINE Unit<T> load(device const T* from) {
    Unit<T> unit;
    unit.bits = *(device const uint4*)from;
    return unit;
  }
  static INLINE Unit<T> zeros() {
    Unit<T> unit;
    unit.bits = uint4(0u);
    return unit;
  }
  static INLINE float2 pair(Unit<T> unit, uint t) { return Pack<T>::unpack(unit.bits[t]); }
  // The first `count` elements, zeros behind them.
  static INLINE Unit<T> first(Unit<T> unit, uint count) {
#pragma unroll
    for (uint w = 0; w < 4; w++) unit.bits[w] &= count > 2 * w + 1 ? 0xffffffffu : count > 2 * w ? 0xffffu : 0u;
    return unit;
  }
};
template <>
struct Unit<float> {
  uint4 low;
  uint4 high;

  static INLINE Unit<float> load(device const float* from) {
    Unit<float> unit;
    unit.low = ((device const uint4*)from)[0];
    unit.high = ((device const uint4*)from)[1];
    return unit;
  }
  static INLINE Unit<float> zeros() {
    Unit<float> unit;
    unit.low = uint4(0u);
    unit.high = uint4(0u);
    return unit;
  }
  static INLINE float2 pair(Unit<float> unit, uint t) {
    uint4 bits = t < 2 ? unit.low : unit.high;
    return Pack<float>::unpack(t % 2 == 0 ? bits.xy : bits.zw);
  }
  static INLINE Unit<float> first(Unit<float> unit, uint count) {
#pragma unroll
    for (uint w = 0; w < 4; w++) {
      unit.low[w] = count > w ? unit.low[w] : 0u;
      unit.high[w] = count > w + 4 ? unit.high[w] : 0u;
    }
    return unit;
  }
};

// A request's keys and values of one head.
template <typename T>
struct HeadCache {
  device const T* keys;
  device const T* values;
  device const uint* blocks;
  uint kv_head;
  uint seq_len;
};

// The key or value of 16 positions begins here; 16 positions are in one block. Positions without a block stand for those of the chunk's
// first half: they are masked.
template <typename T>
INLINE ulong half_chunk(HeadCache<T> cache, uint chunk_start, uint which, thread uint& offset) {
  uint position = chunk_start + 16 * which;
  position = position < cache.seq_len ? position : chunk_start;
  offset = position % BLOCK_SIZE;
  return (ulong(cache.blocks[position / BLOCK_SIZE]) * NUM_KV_HEADS + cache.kv_head) * (BLOCK_SIZE * HEAD_DIM);
}

// How much a lane has on its way at a time. GROUPS * OCTETS * 8 of its 128 registers are sums of weighted values; where these are 64, as for
// heads of 256 elements or 16 columns of 128, fewer are left for units of 4 registers (8 of f32).
template <int GROUPS, int OCTETS>
struct Budget {
  static constexpr constant bool TIGHT = GROUPS * OCTETS > 4;
  // Groups of 32 elements of 4 keys.
  static constexpr constant int KEYS = TIGHT ? 1 : 2;
  // Units of values.
  static constexpr constant int VALUES = TIGHT ? 4 : 8;
};

// scores[4 * o + t] = K Q^T of the chunk's positions 8 * (row / 2) + 2 * t + row % 2, t < 4, and columns 8 * o to 8 * o + 7. `queries`:
// GROUPS * 4 matrices of each 8 columns.
template <typename T, int GROUPS, int OCTETS, int KEYS>
INLINE void compute_scores(HeadCache<T> cache, threadgroup const float* queries, uint chunk_start, uint lane, thread Matrix* scores) {
  uint row = lane_row(lane), column = lane_column(lane), offset;
  device const T* keys = cache.keys + half_chunk(cache, chunk_start, row / 4, offset);
  keys += (offset + row / 2 % 2 * 8 + row % 2) * HEAD_DIM + column * 4;
#pragma unroll
  for (int t = 0; t < 4 * OCTETS; t++) scores[t] = Matrix(0.0f);
#pragma unroll
  for (int group = 0; group < GROUPS; group += KEYS) {
    Unit<T> units[KEYS][4];
#pragma unroll
    for (int g = 0; g < KEYS; g++) {
      uint first = 32 * (group + g);
#pragma unroll
      for (int t = 0; t < 4; t++)
        units[g][t] = first + column * 4 < HEAD_DIM ? Unit<T>::load(keys + 2 * t * HEAD_DIM + first) : Unit<T>::zeros();
    }
    // Keeps the compiler from moving loads to their uses.
    simdgroup_barrier(mem_flags::mem_none);
#pragma unroll
    for (int g = 0; g < KEYS; g++) {
      if (32 * uint(group + g) >= HEAD_DIM) continue;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        Matrix query[OCTETS], key;
#pragma unroll
        for (int o = 0; o < OCTETS; o++) {
          threadgroup const float* from = queries + ((o * GROUPS + group + g) * 4 + i) * 64 + row * 8 + column;
          set_elements(query[o], *(threadgroup const float2*)from);
        }
#pragma unroll
        for (int t = 0; t < 4; t++) {
          set_elements(key, Unit<T>::pair(units[g][t], i));
#pragma unroll
          for (int o = 0; o < OCTETS; o++) simdgroup_multiply_accumulate(scores[4 * o + t], key, query[o], scores[4 * o + t]);
        }
      }
    }
  }
}

// Units of COUNT times 8 value elements of the chunk, from element `first` on; zeros for positions behind the sequence, where anything
// may lie.
template <typename T, int COUNT>
INLINE void load_values(HeadCache<T> cache, device const T* values, uint first, uint count, thread Unit<T>* units) {
#pragma unroll
  for (uint i = 0; i < COUNT; i++)
    units[i] = first + 8 * i < HEAD_DIM ? Unit<T>::load(values + (first + 8 * i) * BLOCK_SIZE) : Unit<T>::zeros();
  if (count >= 8) return;
#pragma unroll
  for (uint i = 0; i < COUNT; i++) units[i] = Unit<T>::first(units[i], count);
}

// One element at a time: of vectors it was seen to be miscompiled, or to hang (drjit-core, resources/metal_kernels.metal).
INLINE float2 shuffle_xor(float2 v, ushort mask) { return float2(simd_shuffle_xor(v.x, mask), simd_shuffle_xor(v.y, mask)); }

// The largest value in each of a lane's two columns, over all rows.
INLINE float2 column_max(float2 v) {
  v = max(v, shuffle_xor(v, ushort(2)));
  v = max(v, shuffle_xor(v, ushort(4)));
  return max(v, shuffle_xor(v, ushort(16)));
}
INLINE float2 column_sum(float2 v) {
  v += shuffle_xor(v, ushort(2));
  v += shuffle_xor(v, ushort(4));
  return v + shuffle_xor(v, ushort(16));
}
INLINE float2 exp_pair(float2 v) { return float2(exp_nonpositive(v.x), exp_nonpositive(v.y)); }

// Turns scores into weights relative to `largest`, the largest score so far; `sum` is over the lane's own rows. The factor of what was
// weighted relative to the previous `largest`.
INLINE float2 compute_weights(thread float2* scores, thread float2& largest, thread float2& sum) {
  float2 now = max(largest, column_max(max(max(scores[0], scores[1]), max(scores[2], scores[3]))));
  float2 factor = exp_pair(largest - now);
  largest = now;
#pragma unroll
  for (int t = 0; t < 4; t++) scores[t] = exp_pair(scores[t] - now);
  sum = fma(sum, factor, (scores[0] + scores[1]) + (scores[2] + scores[3]));
  return factor;
}

// Adds a chunk to the state of a simdgroup's columns: `largest`, `sum` and GROUPS * 4 matrices `weighted` of each 8 columns, which are at
// `positions`. `all`: every column sees all of the chunk.
template <typename T, int GROUPS, int OCTETS, typename Registers>
INLINE void attend(HeadCache<T> cache, threadgroup const float* queries, uint chunk_start, thread const uint2* positions, uint window,
                   bool all, uint lane, thread float2* largest, thread float2* sum, thread Matrix* weighted) {
  constexpr int VALUES = Registers::VALUES;
  uint row = lane_row(lane), column = lane_column(lane), offset;
  Matrix weights[4 * OCTETS];
  compute_scores<T, GROUPS, OCTETS, Registers::KEYS>(cache, queries, chunk_start, lane, weights);

  // The first values are on their way while weights are computed.
  uint unit_start = chunk_start + column * 4;
  uint count = cache.seq_len > unit_start ? cache.seq_len - unit_start : 0;
  device const T* values = cache.values + half_chunk(cache, chunk_start, column / 4, offset);
  values += row * BLOCK_SIZE + offset + column / 2 % 2 * 8;
  Unit<T> units[VALUES];
  load_values<T, VALUES>(cache, values, 0, count, units);
  simdgroup_barrier(mem_flags::mem_none);

  float2 factors[OCTETS];
#pragma unroll
  for (int o = 0; o < OCTETS; o++) {
    float2 scores[4];
#pragma unroll
    for (int t = 0; t < 4; t++) {
      scores[t] = get_elements(weights[4 * o + t]);
      uint j = chunk_start + row / 2 * 8 + 2 * t + row % 2;
      // Differences of unsigned numbers: positions behind the column's own are huge.
      scores[t].x = all || positions[o].x - j < window ? scores[t].x : MASKED;
      scores[t].y = all || positions[o].y - j < window ? scores[t].y : MASKED;
    }
    factors[o] = compute_weights(scores, largest[o], sum[o]);
#pragma unroll
    for (int t = 0; t < 4; t++) set_elements(weights[4 * o + t], scores[t]);
  }

#pragma unroll
  for (int i = 0; i < GROUPS * 4; i++) {
    if (8 * uint(i) >= HEAD_DIM) continue;
    if (i > 0 && i % VALUES == 0) {
      load_values<T, VALUES>(cache, values, 8 * i, count, units);
      simdgroup_barrier(mem_flags::mem_none);
    }
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
      thread Matrix& of_octet = weighted[o * GROUPS * 4 + i];
      set_elements(of_octet, get_elements(of_octet) * factors[o]);
    }
#pragma unroll
    for (int t = 0; t < 4; t++) {
      Matrix value;
      set_elements(value, Unit<T>::pair(units[i % VALUES], t));
#pragma unroll
      for (int o = 0; o < OCTETS; o++) {
        thread Matrix& of_octet = weighted[o * GROUPS * 4 + i];
        simdgroup_multiply_accumulate(of_octet, value, weights[4 * o + t], of_octet);
      }
    }
  }
}
