// What is known of a column (a query head of a token) after some of its positions, for paged_attention.metal and
// paged_attention_combine.metal: it comes before their text.
//
// A state is the values weighted by exp(score - largest), and a float2: x the largest score, y the sum of those weights. No position at
// all is (NONE, 0).

constant uint HEAD_DIM [[function_constant(0)]];
constant uint GROUP [[function_constant(1)]];
constant uint NUM_KV_HEADS [[function_constant(2)]];
// Whether query heads have scores without a value, which are added when a column has taken all its positions.
constant bool SINKS [[function_constant(7)]];

// Positions that simdgroups take in turns, and those whose states are joined in ascending order.
constant constexpr uint CHUNK = 32;
constant constexpr uint CHUNKS = 16;
constant constexpr uint SPLIT = CHUNK * CHUNKS;
// The largest score of no position.
constant constexpr float NONE = -1e30f;

struct AttentionParams {
  uint num_requests;
  uint tiles_per_request;  // 0: as many as a request's tokens need
  uint block_table_stride;
  uint query_stride;  // elements of a row of queries
  uint num_rows;      // tokens * query heads
  uint num_splits;
  // Of the dispatch: a step's tiles, and the splits that they walk, may be several dispatches.
  uint first_tile;
  uint first_split;
  uint end_split;
  uint window;
  float scale;
};

// The first position that a token sees.
INLINE uint first_seen_from(uint position, uint window) { return position < window ? 0 : position - window + 1; }

// The last request r with query_start_loc[r] * scale / divisor + r * step <= index: that of a token or of a tile. All lanes of a
// simdgroup look for the same.
INLINE uint find_request(device const uint* query_start_loc, uint num_requests, uint index, uint scale, uint divisor, uint step,
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

// Joins a later part into `total`. The factors of their weighted values, total's first. An empty part changes nothing.
INLINE float2 join(thread float2& total, float2 part) {
  float largest = max(total.x, part.x);
  float2 factors = float2(exp_nonpositive(total.x - largest), exp_nonpositive(part.x - largest));
  total = float2(largest, fma(total.y, factors.x, part.y * factors.y));
  return factors;
}
INLINE float4 join_values(float4 total, float4 part, float2 factors) { return fma(total, float4(factors.x), part * factors.y); }

// Adds a score without a value to `total`: the factor of its weighted values. A score that is no number makes the column none: exp_nonpositive
// of it is 0, as if there were no sink.
INLINE float take_sink(thread float2& total, float sink) {
  float largest = max(total.x, sink);
  float factor = exp_nonpositive(total.x - largest);
  float weight = sink == sink ? exp_nonpositive(sink - largest) : sink;
  total = float2(largest, fma(total.y, factor, weight));
  return factor;
}

// The sum of the weighted values as output: a sum of nothing but zeros is +0, whatever their signs.
INLINE float4 mean(float4 values, float sum) { return values / sum + 0.0f; }
