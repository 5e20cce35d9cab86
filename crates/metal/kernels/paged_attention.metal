// paged_attention: for the token at position p of its request and query head h with key head g:
// s[j] = scale * dot(q[h], K[j, g]) for the positions j <= p (and j > p - window), out[h] = sum_j softmax(s)[j] * V[j, g].
// SINKS: s has one score more, the head's own, without a value.
//
// A column is a pair of a token and one of the GROUP query heads of a key head; a tile is 8 columns of one request and key head, or 16
// where there are many: then a key or value that is loaded is multiplied with twice as many columns (OCTETS: 8 columns each).
// Grid: x: tiles from first_tile on, y: key heads, z: 1, or the splits if PARTIALS. A threadgroup is 4 simdgroups. It walks splits first_split to
// end_split; where its tile sees others, it goes on from what is in `carried`, or leaves it there.
// Order of a column's sums, for every grid, tile and batch: positions are cut into chunks of 32 and splits of 16 chunks, both from
// position 0 on. Chunk c belongs to simdgroup c % 4, which goes through its chunks of a split in ascending order, see
// attention_chunk.metal; the four are joined at the end of the split, simdgroup 0 first; the splits are joined in ascending order by
// `join`, here (a threadgroup goes through all splits of its tile) or in paged_attention_combine (PARTIALS: a threadgroup computes one
// split). What a column does not see has weight 0 and leaves its state as it is, to the bit, so it does not matter what other columns
// of the tile see.
// Threadgroup memory: 8.75 KiB to join simdgroups; queries and totals, each 2, 4 or 8 KiB for 8 columns of heads of up to 64, 128 or 256
// elements, twice that for 16. Where that is 16 KiB together, queries share memory with what is joined, and are brought anew for each split.
// Bytes that must move: keys and values of the positions that are seen, rows * num_heads * HEAD_DIM * (4 + sizeof(output)); if PARTIALS
// twice rows * num_heads * splits * (HEAD_DIM + 2) * 4 more.

constant bool PARTIALS [[function_constant(4)]];
// Type of the output, which need not be the cache's: 0: float, 1: half, 2: bfloat.
constant uint OUT [[function_constant(6)]];

constant constexpr uint OCTET = 8;
constant constexpr uint SIMDGROUPS = 4;
constant constexpr uint THREADS = SIMDGROUPS * 32;
// Head elements that simdgroups join at a time, and the distance of columns there: not a multiple of the banks.
constant constexpr uint JOINED = 64;
constant constexpr uint JOINED_STRIDE = JOINED + 4;

// The columns of a threadgroup: `num_pairs` pairs of a token and a head from `first_pair` of a request on, and the positions of its
// tokens.
struct Tile {
  uint request;
  uint first_token;
  uint first_pair;
  uint num_pairs;
  uint context;
  uint seq_len;
  uint first_position;
  uint last_position;
};

// The tile of this index; without pairs if there is none: the grid is larger where requests have different numbers of tokens.
template <uint COLUMNS>
INLINE Tile find_tile(device const uint* query_start_loc, device const uint* seq_lens, constant AttentionParams& params, uint index,
                      uint lane) {
  Tile tile;
  uint first_tile;
  if (params.tiles_per_request > 0) {
    tile.request = index / params.tiles_per_request;
    first_tile = tile.request * params.tiles_per_request;
  } else {
    tile.request = find_request(query_start_loc, params.num_requests, index, GROUP, COLUMNS, 1, lane);
    first_tile = query_start_loc[tile.request] * GROUP / COLUMNS + tile.request;
  }
  tile.first_token = query_start_loc[tile.request];
  uint query_len = query_start_loc[tile.request + 1] - tile.first_token;
  tile.first_pair = (index - first_tile) * COLUMNS;
  tile.num_pairs = tile.first_pair < query_len * GROUP ? min(query_len * GROUP - tile.first_pair, COLUMNS) : 0;
  tile.seq_len = seq_lens[tile.request];
  tile.context = tile.seq_len - query_len;
  tile.first_position = tile.context + tile.first_pair / GROUP;
  tile.last_position = tile.context + (tile.first_pair + tile.num_pairs - 1) / GROUP;
  return tile;
}

// The queries of the tile's columns, scaled, as the matrices of compute_scores; zeros where there is no column or no element.
template <int GROUPS, int OCTETS>
INLINE void stage_queries(device const float* q, constant AttentionParams& params, Tile tile, uint kv_head, threadgroup float* queries,
                          uint thread_index) {
  constexpr uint quads = GROUPS * 8;
  for (uint i = thread_index; i < OCTETS * OCTET * quads; i += THREADS) {
    uint column = i / quads, element = i % quads * 4, pair = tile.first_pair + column;
    float4 v = float4(0.0f);
    if (column < tile.num_pairs && element < HEAD_DIM) {
      device const float* row = q + ulong(tile.first_token + pair / GROUP) * params.query_stride;
      v = *(device const float4*)(row + (kv_head * GROUP + pair % GROUP) * HEAD_DIM + element) * params.scale;
    }
    uint matrix = (column / OCTET * GROUPS + element / 32) * 4 + element % 8 / 2;
    threadgroup float* to = queries + matrix * 64 + element / 8 % 4 * 16 + column % OCTET;
    to[0] = v.x;
    to[OCTET] = v.y;
    to[64] = v.z;
    to[64 + OCTET] = v.w;
  }
}

// Joins the simdgroups' states of a split and of 8 columns, and the split's state into `total` (PARTIALS: it becomes `total`). A thread owns
// four elements of every JOINED of the weighted values of column thread_index / (JOINED / 4), and their totals, one every THREADS.
template <int GROUPS>
INLINE void join_simdgroups(float2 largest, float2 sum, thread Matrix* weighted, threadgroup float2* states, threadgroup float* joined,
                            uint thread_index, uint lane, uint simdgroup, thread float2& total, threadgroup float4* total_values) {
  uint row = lane_row(lane), column = lane_column(lane);
  uint own_column = thread_index / (JOINED / 4), own_element = thread_index % (JOINED / 4) * 4;
  if (row == 0) {
    states[simdgroup * OCTET + column] = float2(largest.x, sum.x);
    states[simdgroup * OCTET + column + 1] = float2(largest.y, sum.y);
  }
  float2 part = float2(NONE, 0.0f), split_factors = float2(0.0f);
  float factors[SIMDGROUPS];
#pragma unroll
  for (int p = 0; p < GROUPS / 2; p++) {
    if (JOINED * uint(p) >= HEAD_DIM) continue;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float2 elements = get_elements(weighted[p * 8 + i]);
      threadgroup float* to = joined + (simdgroup * OCTET + column) * JOINED_STRIDE + i * 8 + row;
      to[0] = elements.x;
      to[JOINED_STRIDE] = elements.y;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (p == 0) {
#pragma unroll
      for (uint s = 0; s < SIMDGROUPS; s++) part.x = max(part.x, states[s * OCTET + own_column].x);
#pragma unroll
      for (uint s = 0; s < SIMDGROUPS; s++) {
        float2 state = states[s * OCTET + own_column];
        factors[s] = exp_nonpositive(state.x - part.x);
        part.y = fma(state.y, factors[s], part.y);
      }
      if (!PARTIALS) split_factors = join(total, part);
    }
    float4 values = float4(0.0f);
#pragma unroll
    for (uint s = 0; s < SIMDGROUPS; s++) {
      threadgroup const float* from = joined + (s * OCTET + own_column) * JOINED_STRIDE + own_element;
      values = fma(*(threadgroup const float4*)from, float4(factors[s]), values);
    }
    total_values[p * THREADS] = PARTIALS ? values : join_values(total_values[p * THREADS], values, split_factors);
    // The memory is used again.
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (PARTIALS) total = part;
}

// The row of a tile's column: of a token and a query head.
INLINE ulong row_of(Tile tile, uint kv_head, uint column) {
  uint pair = tile.first_pair + column;
  return ulong(tile.first_token + pair / GROUP) * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + pair % GROUP;
}

// One of `count` records of a state in memory: the weighted values of all come first, then the largest scores and sums.
struct Record {
  device float4* values;
  device float2* state;
};
INLINE Record record_of(device float* records, ulong count, ulong index) {
  Record record;
  record.values = (device float4*)records + index * (HEAD_DIM / 4);
  record.state = (device float2*)(records + count * HEAD_DIM) + index;
  return record;
}

template <typename T, int GROUPS, int OCTETS>
kernel void paged_attention(device const float* q [[buffer(0)]], device const T* keys [[buffer(1)]], device const T* values [[buffer(2)]],
                     device const uint* query_start_loc [[buffer(3)]], device const uint* seq_lens [[buffer(4)]],
                     device const uint* block_table [[buffer(5)]], device uchar* out [[buffer(6)]],
                     constant AttentionParams& params [[buffer(7)]], device float* carried [[buffer(8)]],
                     device const float* sinks [[buffer(9)]],
                     uint3 position [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  typedef Budget<GROUPS, OCTETS> Registers;
  constexpr bool SHARED = Registers::TIGHT;
  constexpr uint QUERIES = OCTETS * GROUPS * 4 * 64;
  constexpr uint OF_SIMDGROUPS = SIMDGROUPS * OCTET * JOINED_STRIDE;
  threadgroup float queries[SHARED && OF_SIMDGROUPS > QUERIES ? OF_SIMDGROUPS : QUERIES];
  threadgroup float of_simdgroups[SHARED ? 1 : OF_SIMDGROUPS];
  threadgroup float2 states[SIMDGROUPS * OCTET];
  // Here and not in registers: they are used once for each split.
  threadgroup float4 totals[OCTETS * (GROUPS / 2) * THREADS];
  threadgroup float* joined = SHARED ? queries : of_simdgroups;
  threadgroup float4* total_values = totals + thread_index;

  uint kv_head = position.y;
  Tile tile = find_tile<OCTETS * OCTET>(query_start_loc, seq_lens, params, params.first_tile + position.x, lane);
  if (tile.num_pairs == 0) return;
  uint first_seen = first_seen_from(tile.first_position, params.window);
  uint first_split = first_seen / SPLIT, last_split = tile.last_position / SPLIT;
  if (PARTIALS) {
    if (position.z < first_split || position.z > last_split) return;
    first_split = position.z;
    last_split = position.z;
  }
  bool begins = first_split >= params.first_split, ends = last_split < params.end_split;
  if (first_split >= params.end_split || last_split < params.first_split) return;
  first_split = max(first_split, params.first_split);
  last_split = min(last_split, params.end_split - 1);

  HeadCache<T> cache;
  cache.keys = keys;
  cache.values = values;
  cache.blocks = block_table + ulong(tile.request) * params.block_table_stride;
  cache.kv_head = kv_head;
  cache.seq_len = tile.seq_len;
  uint2 positions[OCTETS];
  float2 total[OCTETS];
#pragma unroll
  for (uint o = 0; o < OCTETS; o++) {
    uint column = o * OCTET + lane_column(lane);
    positions[o] = uint2(tile.context + (tile.first_pair + min(column, tile.num_pairs - 1)) / GROUP,
                         tile.context + (tile.first_pair + min(column + 1, tile.num_pairs - 1)) / GROUP);
    total[o] = float2(NONE, 0.0f);
  }
#pragma unroll
  for (int p = 0; p < OCTETS * (GROUPS / 2); p++) total_values[p * THREADS] = float4(0.0f);
  uint own_element = thread_index % (JOINED / 4) * 4;
  if (!begins) {
#pragma unroll
    for (uint o = 0; o < OCTETS; o++) {
      uint own_column = o * OCTET + thread_index / (JOINED / 4);
      if (own_column >= tile.num_pairs) continue;
      Record from = record_of(carried, params.num_rows, row_of(tile, kv_head, own_column));
      total[o] = *from.state;
#pragma unroll
      for (uint p = 0; p < GROUPS / 2; p++)
        if (p * JOINED + own_element < HEAD_DIM)
          total_values[(o * (GROUPS / 2) + p) * THREADS] = from.values[(p * JOINED + own_element) / 4];
    }
  }

  for (uint split = first_split; split <= last_split; split++) {
    if (SHARED || split == first_split) {
      stage_queries<GROUPS, OCTETS>(q, params, tile, kv_head, queries, thread_index);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    float2 largest[OCTETS], sum[OCTETS];
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
      largest[o] = float2(NONE);
      sum[o] = float2(0.0f);
    }
    Matrix weighted[OCTETS * GROUPS * 4];
#pragma unroll
    for (int i = 0; i < OCTETS * GROUPS * 4; i++) weighted[i] = Matrix(0.0f);
    uint chunk = max(split * CHUNKS, first_seen / CHUNK), end = min((split + 1) * CHUNKS, tile.last_position / CHUNK + 1);
    chunk += (simdgroup - chunk) % SIMDGROUPS;
    bool busy = chunk < end;
    for (; chunk < end; chunk += SIMDGROUPS) {
      uint start = chunk * CHUNK;
      bool all = start + CHUNK <= tile.first_position + 1 && tile.last_position - start < params.window;
      // Tiles of a decode or at the end of a request may have columns in the first octet only.
      if (OCTETS > 1 && tile.num_pairs > OCTET) {
        attend<T, GROUPS, OCTETS, Registers>(cache, queries, start, positions, params.window, all, lane, largest, sum, weighted);
      } else {
        attend<T, GROUPS, 1, Registers>(cache, queries, start, positions, params.window, all, lane, largest, sum, weighted);
      }
    }
    // Its memory is needed for the states.
    if (SHARED) threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
      if (o * OCTET >= tile.num_pairs) continue;
      if (busy) sum[o] = column_sum(sum[o]);
      join_simdgroups<GROUPS>(largest[o], sum[o], weighted + o * GROUPS * 4, states, joined, thread_index, lane, simdgroup, total[o],
                              total_values + o * (GROUPS / 2) * THREADS);
    }
  }

#pragma unroll
  for (uint o = 0; o < OCTETS; o++) {
    uint own_column = o * OCTET + thread_index / (JOINED / 4);
    if (own_column >= tile.num_pairs) return;
    ulong row = row_of(tile, kv_head, own_column);
    threadgroup const float4* own_values = total_values + o * (GROUPS / 2) * THREADS;
    if (PARTIALS || !ends) {
      // Of a split that is computed apart, only what the column sees will be read.
      uint own_position = tile.context + (tile.first_pair + own_column) / GROUP;
      bool is_seen = first_split >= first_seen_from(own_position, params.window) / SPLIT && first_split <= own_position / SPLIT;
      if (PARTIALS && !is_seen) continue;
      device float* all = PARTIALS ? (device float*)out : carried;
      uint num_splits = PARTIALS ? params.num_splits : 1;
      Record to = record_of(all, ulong(params.num_rows) * num_splits, row * num_splits + (PARTIALS ? first_split : 0));
      if (own_element == 0) *to.state = total[o];
#pragma unroll
      for (uint p = 0; p < GROUPS / 2; p++)
        if (p * JOINED + own_element < HEAD_DIM) to.values[(p * JOINED + own_element) / 4] = own_values[p * THREADS];
      continue;
    }
    float factor = 1.0f;
    if (SINKS) factor = take_sink(total[o], sinks[kv_head * GROUP + (tile.first_pair + own_column) % GROUP]);
#pragma unroll
    for (uint p = 0; p < GROUPS / 2; p++) {
      if (p * JOINED + own_element >= HEAD_DIM) continue;
      uint quad = (p * JOINED + own_element) / 4;
      float4 value = own_values[p * THREADS];
      if (SINKS) value = value * factor;
      value = mean(value, total[o].y);
      if (OUT == 0) store_quad((device float*)out + row * HEAD_DIM, quad, HEAD_DIM, value);
      if (OUT == 1) store_quad((device half*)out + row * HEAD_DIM, quad, HEAD_DIM, value);
      if (OUT == 2) store_quad((device bfloat*)out + row * HEAD_DIM, quad, HEAD_DIM, value);
    }
  }
}

#define INSTANTIATE(name, T, GROUPS, OCTETS)                                                                                      \
  template [[host_name(name)]] kernel void paged_attention<T, GROUPS, OCTETS>(                                                    \
      device const float*, device const T*, device const T*, device const uint*, device const uint*, device const uint*,          \
      device uchar*, constant AttentionParams&, device float*, device const float*, uint3, uint, uint, uint);
