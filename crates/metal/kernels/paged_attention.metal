// paged_attention: for the token at position p of its request and query head h with key head g:
// s[j] = scale * dot(q[h], K[j, g]) for the positions j <= p (and j > p - window), out[h] = sum_j softmax(s)[j] * V[j, g].
//
// A column is a pair of a token and one of the GROUP query heads of a key head; a tile is 8 columns of one request and key head. With
// 8x8 matrices, S^T = K Q^T and O^T = V^T P^T: positions or head elements in rows, the tile's columns in columns, all in f32.
//
// Grid: x: tiles, y: key heads, z: 1, or the splits if PARTIALS. A threadgroup is 4 simdgroups.
// Order of a column's sums, for every grid, tile and batch: positions are cut into chunks of 32 and splits of 16 chunks, both from
// position 0 on. Chunk c belongs to simdgroup c % 4, which goes through its chunks of a split in ascending order; the four are joined
// at the end of the split, simdgroup 0 first; the splits are joined in ascending order by `join`, here (a threadgroup goes through all
// splits of its tile) or in paged_attention_combine (PARTIALS: a threadgroup computes one split). What a column does not see has
// weight 0 and leaves its state as it is, to the bit, so it does not matter what other columns of the tile see.
//
// Cache: keys [block][head][token][HEAD_DIM], values [block][head][HEAD_DIM][token]. A unit is 8 neighbouring elements, as a lane loads
// them: of a key, or of 8 positions of one value element. A unit feeds four matrices: the lane with columns 2 * u and 2 * u + 1 of row r
// loads unit u of four, and gives elements 2 * t and 2 * t + 1 to matrix t. So matrix t takes, of 32 head elements (or 32 positions),
// those in columns 8 * (column / 2) + 2 * t + column % 2; queries and weights are arranged alike.
// Threadgroup memory: queries 2, 4 or 8 KiB for heads of 64, 128 or 256; 8.75 KiB to join simdgroups.
// Bytes that must move: keys and values of the positions that are seen, rows * num_heads * HEAD_DIM * (4 + sizeof(T)); if PARTIALS
// twice rows * num_heads * splits * (HEAD_DIM + 2) * 4 more.

constant uint HEAD_DIM [[function_constant(0)]];
constant uint GROUP [[function_constant(1)]];
constant uint NUM_KV_HEADS [[function_constant(2)]];
constant uint BLOCK_SIZE [[function_constant(3)]];
constant bool PARTIALS [[function_constant(4)]];
// Of paged_attention_combine.
constant uint THREADS [[function_constant(5)]];

constant constexpr uint COLUMNS = 8;
constant constexpr uint CHUNK = 32;
constant constexpr uint CHUNKS = 16;  // of a split
constant constexpr uint SIMDGROUPS = 4;
// The largest score of no position. A masked score is below it by more than any exponential can tell from nothing.
constant constexpr float NONE = -1e30f;
constant constexpr float MASKED = -2e30f;
// Head elements that simdgroups join at a time, and the distance of columns there: not a multiple of the banks.
constant constexpr uint JOINED = 64;
constant constexpr uint JOINED_STRIDE = JOINED + 4;

struct AttentionParams {
  uint num_requests;
  uint tiles_per_request;  // 0: as many as a request's tokens need
  uint block_table_stride;
  uint query_stride;  // elements of a row of queries
  uint num_rows;      // tokens * query heads
  uint num_splits;
  uint window;
  float scale;
};

// Where a lane's two elements of an 8x8 matrix are: this row, this column and the next. Not documented, but the same on all of Apple's
// GPUs so far.
inline uint fragment_row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
inline uint fragment_column(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

inline void set_fragment(thread simdgroup_matrix<float, 8, 8>& matrix, float2 elements) {
  reinterpret_cast<thread float2&>(matrix.thread_elements()) = elements;
}
inline float2 get_fragment(simdgroup_matrix<float, 8, 8> matrix) { return reinterpret_cast<thread float2&>(matrix.thread_elements()); }

template <typename T>
struct Unit {
  uint4 bits;

  static inline Unit<T> load(device const T* from) {
    Unit<T> unit;
    unit.bits = *(device const uint4*)from;
    return unit;
  }
  static inline Unit<T> zeros() {
    Unit<T> unit;
    unit.bits = uint4(0u);
    return unit;
  }
  static inline float2 pair(Unit<T> unit, uint t) { return Pack<T>::unpack(unit.bits[t]); }
  // The first `count` elements, zeros behind them.
  static inline Unit<T> first(Unit<T> unit, uint count) {
#pragma unroll
    for (uint w = 0; w < 4; w++) unit.bits[w] &= count > 2 * w + 1 ? 0xffffffffu : count > 2 * w ? 0xffffu : 0u;
    return unit;
  }
};
template <>
struct Unit<float> {
  uint4 low;
  uint4 high;

  static inline Unit<float> load(device const float* from) {
    Unit<float> unit;
    unit.low = ((device const uint4*)from)[0];
    unit.high = ((device const uint4*)from)[1];
    return unit;
  }
  static inline Unit<float> zeros() {
    Unit<float> unit;
    unit.low = uint4(0u);
    unit.high = uint4(0u);
    return unit;
  }
  static inline float2 pair(Unit<float> unit, uint t) {
    uint4 bits = t < 2 ? unit.low : unit.high;
    return Pack<float>::unpack(t % 2 == 0 ? bits.xy : bits.zw);
  }
  static inline Unit<float> first(Unit<float> unit, uint count) {
#pragma unroll
    for (uint w = 0; w < 4; w++) {
      unit.low[w] = count > w ? unit.low[w] : 0u;
      unit.high[w] = count > w + 4 ? unit.high[w] : 0u;
    }
    return unit;
  }
};

// The request whose tokens [query_start_loc[r], query_start_loc[r + 1]) hold `index`, if request r begins at
// query_start_loc[r] * scale / divisor + r * step. Those ascend strictly, or query_start_loc[0..] does.
inline uint find_request(device const uint* query_start_loc, uint num_requests, uint index, uint scale, uint divisor, uint step,
                         uint lane) {
  uint begun = 0;
  for (uint r = 0; r < num_requests; r += 32) {
    bool before = r + lane < num_requests && query_start_loc[r + lane] * scale / divisor + (r + lane) * step <= index;
    uint count = simd_sum(uint(before));
    begun += count;
    if (count < 32) break;
  }
  return begun - 1;
}

// A state is what is known of a column besides its weighted values: x the largest score, y the sum of exp(score - largest).

// Joins a later part into `total`. The factors of their weighted values, total's first. An empty part changes nothing.
inline float2 join(thread float2& total, float2 part) {
  float largest = max(total.x, part.x);
  float2 factors = float2(exp_nonpositive(total.x - largest), exp_nonpositive(part.x - largest));
  total = float2(largest, fma(total.y, factors.x, part.y * factors.y));
  return factors;
}
inline float4 join_values(float4 total, float4 part, float2 factors) { return fma(total, float4(factors.x), part * factors.y); }

// The sum of the weighted values as output: a sum of nothing but zeros is +0, whatever their signs.
inline float4 mean(float4 values, float sum) { return values / sum + 0.0f; }

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
inline ulong half_chunk(HeadCache<T> cache, uint chunk_start, uint which, thread uint& offset) {
  uint position = chunk_start + 16 * which;
  position = position < cache.seq_len ? position : chunk_start;
  offset = position % BLOCK_SIZE;
  return (ulong(cache.blocks[position / BLOCK_SIZE]) * NUM_KV_HEADS + cache.kv_head) * (BLOCK_SIZE * HEAD_DIM);
}

// scores[t] = K Q^T of the chunk's positions 8 * (row / 2) + 2 * t + row % 2, t < 4.
template <typename T, int GROUPS>
inline void compute_scores(HeadCache<T> cache, threadgroup const float* queries, uint chunk_start, uint lane,
                           thread simdgroup_matrix<float, 8, 8>* scores) {
  uint row = fragment_row(lane), column = fragment_column(lane), offset;
  device const T* keys = cache.keys + half_chunk(cache, chunk_start, row / 4, offset);
  keys += (offset + row / 2 % 2 * 8 + row % 2) * HEAD_DIM + column * 4;
#pragma unroll
  for (int t = 0; t < 4; t++) scores[t] = simdgroup_matrix<float, 8, 8>(0.0f);
#pragma unroll
  for (int pair = 0; pair < GROUPS; pair += 2) {
    Unit<T> units[2][4];
#pragma unroll
    for (int g = 0; g < 2; g++) {
      uint first = 32 * (pair + g);
#pragma unroll
      for (int t = 0; t < 4; t++)
        units[g][t] = first + column * 4 < HEAD_DIM ? Unit<T>::load(keys + 2 * t * HEAD_DIM + first) : Unit<T>::zeros();
    }
    // Keeps the compiler from moving loads to their uses.
    simdgroup_barrier(mem_flags::mem_none);
#pragma unroll
    for (int g = 0; g < 2; g++) {
      if (32 * uint(pair + g) >= HEAD_DIM) break;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        simdgroup_matrix<float, 8, 8> query, key;
        threadgroup const float* from = queries + ((pair + g) * 4 + i) * 64 + row * 8 + column;
        set_fragment(query, *(threadgroup const float2*)from);
#pragma unroll
        for (int t = 0; t < 4; t++) {
          set_fragment(key, Unit<T>::pair(units[g][t], i));
          simdgroup_multiply_accumulate(scores[t], key, query, scores[t]);
        }
      }
    }
  }
}

// Units of 8 times 8 value elements of the chunk, from element `first` on; zeros for positions behind the sequence, where anything
// may lie.
template <typename T>
inline void load_values(HeadCache<T> cache, device const T* values, uint first, uint count, thread Unit<T>* units) {
#pragma unroll
  for (uint i = 0; i < 8; i++)
    units[i] = first + 8 * i < HEAD_DIM ? Unit<T>::load(values + (first + 8 * i) * BLOCK_SIZE) : Unit<T>::zeros();
  if (count >= 8) return;
#pragma unroll
  for (uint i = 0; i < 8; i++) units[i] = Unit<T>::first(units[i], count);
}

// The largest value in each of a lane's two columns, over all rows.
inline float2 column_max(float2 v) {
  v = max(v, simd_shuffle_xor(v, ushort(2)));
  v = max(v, simd_shuffle_xor(v, ushort(4)));
  return max(v, simd_shuffle_xor(v, ushort(16)));
}
inline float2 column_sum(float2 v) {
  v += simd_shuffle_xor(v, ushort(2));
  v += simd_shuffle_xor(v, ushort(4));
  return v + simd_shuffle_xor(v, ushort(16));
}
inline float2 exp_pair(float2 v) { return float2(exp_nonpositive(v.x), exp_nonpositive(v.y)); }

// Turns scores into weights relative to `largest`, the largest score so far; `sum` is over the lane's own rows. The factor of what was
// weighted relative to the previous `largest`.
inline float2 compute_weights(thread float2* scores, thread float2& largest, thread float2& sum) {
  float2 now = max(largest, column_max(max(max(scores[0], scores[1]), max(scores[2], scores[3]))));
  float2 factor = exp_pair(largest - now);
  largest = now;
#pragma unroll
  for (int t = 0; t < 4; t++) scores[t] = exp_pair(scores[t] - now);
  sum = fma(sum, factor, (scores[0] + scores[1]) + (scores[2] + scores[3]));
  return factor;
}

// Adds a chunk to the state of a simdgroup's columns, which are at `positions`. `all`: every column sees all of the chunk.
template <typename T, int GROUPS>
inline void attend(HeadCache<T> cache, threadgroup const float* queries, uint chunk_start, uint2 positions, uint window, bool all,
                   uint lane, thread float2& largest, thread float2& sum, thread simdgroup_matrix<float, 8, 8>* weighted) {
  uint row = fragment_row(lane), column = fragment_column(lane), offset;
  simdgroup_matrix<float, 8, 8> score_matrices[4];
  compute_scores<T, GROUPS>(cache, queries, chunk_start, lane, score_matrices);

  // The first values are on their way while weights are computed.
  uint unit_start = chunk_start + column * 4;
  uint count = cache.seq_len > unit_start ? cache.seq_len - unit_start : 0;
  device const T* values = cache.values + half_chunk(cache, chunk_start, column / 4, offset);
  values += row * BLOCK_SIZE + offset + column / 2 % 2 * 8;
  Unit<T> units[8];
  load_values(cache, values, 0, count, units);
  simdgroup_barrier(mem_flags::mem_none);

  float2 scores[4];
#pragma unroll
  for (int t = 0; t < 4; t++) {
    scores[t] = get_fragment(score_matrices[t]);
    uint j = chunk_start + row / 2 * 8 + 2 * t + row % 2;
    // Differences of unsigned numbers: positions behind the column's own are huge.
    scores[t].x = all || positions.x - j < window ? scores[t].x : MASKED;
    scores[t].y = all || positions.y - j < window ? scores[t].y : MASKED;
  }
  float2 factor = compute_weights(scores, largest, sum);
  simdgroup_matrix<float, 8, 8> weights[4];
#pragma unroll
  for (int t = 0; t < 4; t++) set_fragment(weights[t], scores[t]);

#pragma unroll
  for (int i = 0; i < GROUPS * 4; i++) {
    if (8 * uint(i) >= HEAD_DIM) break;
    if (i > 0 && i % 8 == 0) {
      load_values(cache, values, 8 * i, count, units);
      simdgroup_barrier(mem_flags::mem_none);
    }
    set_fragment(weighted[i], get_fragment(weighted[i]) * factor);
#pragma unroll
    for (int t = 0; t < 4; t++) {
      simdgroup_matrix<float, 8, 8> value;
      set_fragment(value, Unit<T>::pair(units[i % 8], t));
      simdgroup_multiply_accumulate(weighted[i], value, weights[t], weighted[i]);
    }
  }
}

// The queries of the tile's columns, scaled, as the matrices of compute_scores; zeros where there is no column or no element.
template <int GROUPS>
inline void stage_queries(device const float* q, uint query_stride, float scale, uint first_token, uint kv_head, uint first_pair,
                          uint num_pairs, threadgroup float* queries, uint thread_index) {
  constexpr uint quads = GROUPS * 8;
  for (uint i = thread_index; i < COLUMNS * quads; i += SIMDGROUPS * 32) {
    uint column = i / quads, element = i % quads * 4, pair = first_pair + column;
    float4 v = float4(0.0f);
    if (column < num_pairs && element < HEAD_DIM) {
      device const float* row = q + ulong(first_token + pair / GROUP) * query_stride + (kv_head * GROUP + pair % GROUP) * HEAD_DIM;
      v = *(device const float4*)(row + element) * scale;
    }
    threadgroup float* to = queries + (element / 32 * 4 + element % 8 / 2) * 64 + element / 8 % 4 * 16 + column;
    to[0] = v.x;
    to[COLUMNS] = v.y;
    to[64] = v.z;
    to[64 + COLUMNS] = v.w;
  }
}

template <typename T, int GROUPS>
kernel void paged_attention(device const float* q [[buffer(0)]], device const T* keys [[buffer(1)]],
                            device const T* values [[buffer(2)]], device const uint* query_start_loc [[buffer(3)]],
                            device const uint* seq_lens [[buffer(4)]], device const uint* block_table [[buffer(5)]],
                            device uchar* out [[buffer(6)]], constant AttentionParams& params [[buffer(7)]],
                            uint3 position [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float queries[GROUPS * 4 * 64];
  threadgroup float joined[SIMDGROUPS * COLUMNS * JOINED_STRIDE];
  threadgroup float2 states[SIMDGROUPS * COLUMNS];

  // The tile: its request, its pairs of tokens and heads, and the chunks that any of them sees.
  uint tile = position.x, kv_head = position.y, request, first_tile;
  if (params.tiles_per_request > 0) {
    request = tile / params.tiles_per_request;
    first_tile = request * params.tiles_per_request;
  } else {
    request = find_request(query_start_loc, params.num_requests, tile, GROUP, COLUMNS, 1, lane);
    first_tile = query_start_loc[request] * GROUP / COLUMNS + request;
  }
  uint first_token = query_start_loc[request];
  uint query_len = query_start_loc[request + 1] - first_token;
  uint first_pair = (tile - first_tile) * COLUMNS;
  if (first_pair >= query_len * GROUP) return;
  uint num_pairs = min(query_len * GROUP - first_pair, COLUMNS);
  uint seq_len = seq_lens[request];
  uint context = seq_len - query_len;
  uint first_position = context + first_pair / GROUP;
  uint last_position = context + (first_pair + num_pairs - 1) / GROUP;
  uint first_seen = first_position < params.window ? 0 : first_position - params.window + 1;
  uint first_split = first_seen / (CHUNK * CHUNKS), last_split = last_position / (CHUNK * CHUNKS);
  if (PARTIALS) {
    if (position.z < first_split || position.z > last_split) return;
    first_split = position.z;
    last_split = position.z;
  }

  HeadCache<T> cache;
  cache.keys = keys;
  cache.values = values;
  cache.blocks = block_table + ulong(request) * params.block_table_stride;
  cache.kv_head = kv_head;
  cache.seq_len = seq_len;
  stage_queries<GROUPS>(q, params.query_stride, params.scale, first_token, kv_head, first_pair, num_pairs, queries, thread_index);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // Of a lane's columns in its simdgroup's matrices.
  uint row = fragment_row(lane), column = fragment_column(lane);
  uint2 positions = uint2(context + (first_pair + min(column, num_pairs - 1)) / GROUP,
                          context + (first_pair + min(column + 1, num_pairs - 1)) / GROUP);
  // Of a thread's column, and four elements of every JOINED of it, in what is joined.
  uint own_column = thread_index / (JOINED / 4), own_element = thread_index % (JOINED / 4) * 4;
  uint own_pair = first_pair + own_column;
  uint own_position = context + own_pair / GROUP;
  ulong own_row = ulong(first_token + own_pair / GROUP) * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + own_pair % GROUP;
  float2 total = float2(NONE, 0.0f);
  float4 total_values[GROUPS / 2];
#pragma unroll
  for (int p = 0; p < GROUPS / 2; p++) total_values[p] = float4(0.0f);

  for (uint split = first_split; split <= last_split; split++) {
    float2 largest = float2(NONE), sum = float2(0.0f);
    simdgroup_matrix<float, 8, 8> weighted[GROUPS * 4];
#pragma unroll
    for (int i = 0; i < GROUPS * 4; i++) weighted[i] = simdgroup_matrix<float, 8, 8>(0.0f);
    uint chunk = max(split * CHUNKS, first_seen / CHUNK), end = min((split + 1) * CHUNKS, last_position / CHUNK + 1);
    for (chunk += (simdgroup - chunk) % SIMDGROUPS; chunk < end; chunk += SIMDGROUPS) {
      uint start = chunk * CHUNK;
      bool all = start + CHUNK <= first_position + 1 && last_position - start < params.window;
      attend<T, GROUPS>(cache, queries, start, positions, params.window, all, lane, largest, sum, weighted);
    }

    // The simdgroups meet.
    sum = column_sum(sum);
    if (row == 0) {
      states[simdgroup * COLUMNS + column] = float2(largest.x, sum.x);
      states[simdgroup * COLUMNS + column + 1] = float2(largest.y, sum.y);
    }
    float2 part = float2(NONE, 0.0f);
    float factors[SIMDGROUPS];
    float2 join_factors;
#pragma unroll
    for (int p = 0; p < GROUPS / 2; p++) {
      if (JOINED * uint(p) >= HEAD_DIM) break;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float2 elements = get_fragment(weighted[p * 8 + i]);
        threadgroup float* to = joined + (simdgroup * COLUMNS + column) * JOINED_STRIDE + i * 8 + row;
        to[0] = elements.x;
        to[JOINED_STRIDE] = elements.y;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (p == 0) {
#pragma unroll
        for (uint s = 0; s < SIMDGROUPS; s++) part.x = max(part.x, states[s * COLUMNS + own_column].x);
#pragma unroll
        for (uint s = 0; s < SIMDGROUPS; s++) {
          float2 state = states[s * COLUMNS + own_column];
          factors[s] = exp_nonpositive(state.x - part.x);
          part.y = fma(state.y, factors[s], part.y);
        }
        if (!PARTIALS) join_factors = join(total, part);
      }
      float4 part_values = float4(0.0f);
#pragma unroll
      for (uint s = 0; s < SIMDGROUPS; s++) {
        threadgroup const float* from = joined + (s * COLUMNS + own_column) * JOINED_STRIDE + own_element;
        part_values = fma(*(threadgroup const float4*)from, float4(factors[s]), part_values);
      }
      total_values[p] = PARTIALS ? part_values : join_values(total_values[p], part_values, join_factors);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (PARTIALS) total = part;
  }

  if (own_column >= num_pairs) return;
  if (PARTIALS) {
    // Only what the column sees is read.
    uint start = first_split * (CHUNK * CHUNKS);
    if (start > own_position || own_position - start >= params.window + (CHUNK * CHUNKS - 1)) return;
    ulong record = own_row * params.num_splits + first_split;
    device float* part_values = (device float*)out + record * HEAD_DIM;
    device float2* part = (device float2*)((device float*)out + ulong(params.num_rows) * params.num_splits * HEAD_DIM);
    if (own_element == 0) part[record] = total;
#pragma unroll
    for (uint p = 0; p < GROUPS / 2; p++)
      if (p * JOINED + own_element < HEAD_DIM) *(device float4*)(part_values + p * JOINED + own_element) = total_values[p];
    return;
  }
  device T* to = (device T*)out + own_row * HEAD_DIM;
#pragma unroll
  for (uint p = 0; p < GROUPS / 2; p++)
    if (p * JOINED + own_element < HEAD_DIM)
      store_quad(to, (p * JOINED + own_element) / 4, HEAD_DIM, mean(total_values[p], total.y));
}

// Joins the splits that paged_attention left, in the same order and by the same formula as it does itself.
//
// Grid: x: tokens, y: groups of THREADS quads. A thread owns four neighbouring elements of a query head.
template <typename T>
kernel void paged_attention_combine(device const float* partials [[buffer(0)]], device const uint* query_start_loc [[buffer(1)]],
                                    device const uint* seq_lens [[buffer(2)]], device T* out [[buffer(3)]],
                                    constant AttentionParams& params [[buffer(4)]], uint2 position [[threadgroup_position_in_grid]],
                                    uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const uint quads = HEAD_DIM / 4;
  uint token = position.x;
  uint request = params.tiles_per_request > 0 ? token : find_request(query_start_loc, params.num_requests, token, 1, 1, 0, lane);
  uint item = position.y * THREADS + thread_index;
  if (item >= NUM_KV_HEADS * GROUP * quads) return;
  ulong row = ulong(token) * (NUM_KV_HEADS * GROUP) + item / quads;
  uint quad = item % quads;
  uint token_position = seq_lens[request] + token - query_start_loc[request + 1];
  uint first_seen = token_position < params.window ? 0 : token_position - params.window + 1;
  uint first_split = first_seen / (CHUNK * CHUNKS), last_split = token_position / (CHUNK * CHUNKS);
  device const float2* parts = (device const float2*)(partials + ulong(params.num_rows) * params.num_splits * HEAD_DIM);
  parts += row * params.num_splits;
  device const float4* part_values = (device const float4*)partials + row * params.num_splits * quads + quad;

  float2 total = float2(NONE, 0.0f);
  float4 total_values = float4(0.0f);
  for (uint split = first_split; split <= last_split; split += 4) {
    float2 part[4];
    float4 values[4];
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      // Behind the last, the empty part.
      part[i] = float2(NONE, 0.0f);
      values[i] = float4(0.0f);
      if (split + i > last_split) continue;
      part[i] = parts[split + i];
      values[i] = part_values[ulong(split + i) * quads];
    }
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      float2 factors = join(total, part[i]);
      total_values = join_values(total_values, values[i], factors);
    }
  }
  store_quad(out + row * HEAD_DIM, quad, HEAD_DIM, mean(total_values, total.y));
}

#define INSTANTIATE(name, T, GROUPS)                                                                                              \
  template [[host_name(name)]] kernel void paged_attention<T, GROUPS>(device const float*, device const T*, device const T*,      \
                                                                      device const uint*, device const uint*, device const uint*, \
                                                                      device uchar*, constant AttentionParams&, uint3, uint, uint, \
                                                                      uint);
INSTANTIATE("paged_attention_64_f32", float, 2)
INSTANTIATE("paged_attention_64_f16", half, 2)
INSTANTIATE("paged_attention_64_bf16", bfloat, 2)
INSTANTIATE("paged_attention_128_f32", float, 4)
INSTANTIATE("paged_attention_128_f16", half, 4)
INSTANTIATE("paged_attention_128_bf16", bfloat, 4)
INSTANTIATE("paged_attention_256_f32", float, 8)
INSTANTIATE("paged_attention_256_f16", half, 8)
INSTANTIATE("paged_attention_256_bf16", bfloat, 8)

#define INSTANTIATE_COMBINE(name, T)                                                                                      \
  template [[host_name(name)]] kernel void paged_attention_combine<T>(device const float*, device const uint*,             \
                                                                      device const uint*, device T*, constant AttentionParams&, \
                                                                      uint2, uint, uint);
INSTANTIATE_COMBINE("paged_attention_combine_f32", float)
INSTANTIATE_COMBINE("paged_attention_combine_f16", half)
INSTANTIATE_COMBINE("paged_attention_combine_bf16", bfloat)
