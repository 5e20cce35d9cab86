// paged_attention_combine: joins the splits that paged_attention left, in the same order and by the same formula as it does itself.
//
// Grid: x: tokens, y: groups of THREADS quads. A thread owns four neighbouring elements of a query head.
// Threadgroup memory: none. Bytes that must move: rows * num_heads * (splits * (HEAD_DIM + 2) * 4 + HEAD_DIM * sizeof(T)).

constant uint THREADS [[function_constant(5)]];

// Joins the next LOADS splits. They are all in flight at once: a long sequence has hundreds, and a thread joins them one after the other.
template <uint LOADS>
INLINE void join_splits(thread uint& split, device const float2* parts, device const float4* part_values, uint quads,
                        thread float2& total, thread float4& total_values) {
  float2 part[LOADS];
  float4 values[LOADS];
#pragma unroll
  for (uint i = 0; i < LOADS; i++) {
    part[i] = parts[split + i];
    values[i] = part_values[ulong(split + i) * quads];
  }
  // Keeps the compiler from moving loads to their uses.
  simdgroup_barrier(mem_flags::mem_none);
#pragma unroll
  for (uint i = 0; i < LOADS; i++) {
    float2 factors = join(total, part[i]);
    total_values = join_values(total_values, values[i], factors);
  }
  split += LOADS;
}

template <typename T>
kernel void paged_attention_combine(device const float* partials [[buffer(0)]], device const uint* query_start_loc [[buffer(1)]],
                                    device const uint* seq_lens [[buffer(2)]], device T* out [[buffer(3)]],
                                    constant AttentionParams& params [[buffer(4)]], device const float* sinks [[buffer(5)]],
                                    uint2 position [[threadgroup_position_in_grid]],
                                    uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const uint quads = HEAD_DIM / 4;
  uint token = position.x;
  uint request = params.tiles_per_request > 0 ? token : find_request(query_start_loc, params.num_requests, token, 1, 1, 0, lane);
  const uint items = NUM_KV_HEADS * GROUP * quads;
  // Threads without an item do the last one's work, and do not store it: all lanes meet at the barriers.
  uint own = position.y * THREADS + thread_index, item = min(own, items - 1);
  ulong row = ulong(token) * (NUM_KV_HEADS * GROUP) + item / quads;
  uint quad = item % quads;
  uint token_position = seq_lens[request] + token - query_start_loc[request + 1];
  uint first_split = first_seen_from(token_position, params.window) / SPLIT, last_split = token_position / SPLIT;
  device const float2* parts = (device const float2*)(partials + ulong(params.num_rows) * params.num_splits * HEAD_DIM);
  parts += row * params.num_splits;
  device const float4* part_values = (device const float4*)partials + row * params.num_splits * quads + quad;

  float2 total = float2(NONE, 0.0f);
  float4 total_values = float4(0.0f);
  uint split = first_split, end = last_split + 1;
  while (split + 8 <= end) join_splits<8>(split, parts, part_values, quads, total, total_values);
  if (split + 4 <= end) join_splits<4>(split, parts, part_values, quads, total, total_values);
  if (split + 2 <= end) join_splits<2>(split, parts, part_values, quads, total, total_values);
  if (split < end) join_splits<1>(split, parts, part_values, quads, total, total_values);
  if (SINKS) total_values = total_values * take_sink(total, sinks[item / quads]);
  if (own < items) store_quad(out + row * HEAD_DIM, quad, HEAD_DIM, mean(total_values, total.y));
}

#define INSTANTIATE(name, T)                                                                                                  \
  template [[host_name(name)]] kernel void paged_attention_combine<T>(device const float*, device const uint*, device const uint*, \
                                                                      device T*, constant AttentionParams&, device const float*, uint2, uint, \
                                                                      uint);
INSTANTIATE("paged_attention_combine_f32", float)
INSTANTIATE("paged_attention_combine_f16", half)
INSTANTIATE("paged_attention_combine_bf16", bfloat)
