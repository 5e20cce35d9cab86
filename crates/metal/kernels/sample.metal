// sample: a token from each row of logits, and its log-probability. See the op for the definition.
//
// Grid: one threadgroup of THREADS threads per row. Simdgroup s owns the tokens from s * RANGE on, RANGE a multiple of 128; of each 128
// tokens lane l owns the four from 4 * l on. Nothing is sorted but the last CANDIDATES tokens of a search.
//
// Tokens have an order, largest weight first, ties to the smaller id, and a key of 64 bits that descends with it: the weight's bits,
// then the complement of the id. min_p, top_k and top_p each keep a prefix of that order, so what is kept is a smallest key.
// A prefix of a wanted length or weight is found by cutting the range of keys into eight, again and again, until few tokens are
// left in it; these are sorted by counting, for each, those before it.
//
// Order of the sums: each thread its own tokens in ascending order, by component; the four components; simd_sum; then simdgroups in
// ascending order. A draw walks the simdgroups' sums, then the 128 tokens of each step by a scan of lanes, in the order of ids.
// It depends on the size of the vocabulary alone.
// Logits that are adjusted are changed in place and put back at the end: a row belongs to one threadgroup.
// Threadgroup memory: about 17 KiB. Bytes that must move: rows * VOCAB * 4, once; passes after the first are meant for the cache.

#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

constant uint VOCAB [[function_constant(0)]];

constant constexpr uint THREADS = 512;
constant constexpr uint SIMDGROUPS = 16;
constant constexpr uint CANDIDATES = 1024;
constant constexpr uint CUTS = 8;
constant constexpr uint ADJUSTMENT_WORDS = 4;
constant constexpr uint MAX_TOP = 20;
constant constexpr float LARGEST = 3.402823466e+38f;

struct SampleRow {
  uint logit_row;
  uint first_adjustment;
  uint num_adjustments;
  float scale;  // 0: the most likely token
  float min_p;
  float top_p;
  uint top_k;  // 0: all
  float repetition_penalty;
  uint seed_low;
  uint seed_high;
  uint position_low;
  uint position_high;
  uint num_top;
  uint wants_logprobs;
  uint unused[2];
};

// Where a thread is.
struct Group {
  uint thread_index;
  uint lane;
  uint simdgroup;
};

// What is being searched in: keys by weight, or by logit.
struct Source {
  float max;
  float scale;  // 0: keys by logit
};

INLINE uint first_token(uint simdgroup) { return simdgroup * ((VOCAB + 128 * SIMDGROUPS - 1) / (128 * SIMDGROUPS) * 128); }
INLINE uint end_token(uint simdgroup) { return min(first_token(simdgroup + 1), VOCAB); }

// e^x for x <= 0 with the very operations of the sampler on the host, so that weights have the same bits.
INLINE float weight_of(float logit, Source source) {
  const float round = 12582912.0f;
  float x = (logit - source.max) * source.scale;
  float clamped = x > -87.0f ? x : -87.0f;
  float shifted = clamped * 1.44269504f + round;
  float n = shifted - round;
  float r = clamped - n * 0.693359375f - n * -2.12194440e-4f;
  float p = 1.9875691e-4f;
  p = p * r + 1.3981999e-3f;
  p = p * r + 8.333452e-3f;
  p = p * r + 4.1665796e-2f;
  p = p * r + 1.6666665e-1f;
  p = p * r + 0.5f;
  uint exponent = (as_type<uint>(shifted) - as_type<uint>(round) + 127u) << 23;
  float y = (p * r * r + r + 1.0f) * as_type<float>(exponent);
  return x > -87.0f ? y : 0.0f;
}

INLINE ulong key_of(uint high, uint id) { return (ulong(high) << 32) | ulong(0xffffffffu - id); }
INLINE uint id_of(ulong key) { return 0xffffffffu - uint(key & 0xffffffffu); }

// The upper half of the key of a token: 0 if it may never be picked.
INLINE uint high_key(float logit, Source source) {
  if (source.scale != 0.0f) return as_type<uint>(weight_of(logit, source));
  return logit > -INFINITY ? ordered_key(logit) : 0;
}

// The largest value of the row and the smallest id that has it, in every thread. NaN counts as smallest.
INLINE float row_max(device const float* row, thread uint& id_out, threadgroup float* values, threadgroup uint* ids, Group g) {
  float best = -INFINITY;
  uint best_id = 0xffffffffu;
  for (uint base = first_token(g.simdgroup); base < end_token(g.simdgroup); base += 128) {
    uint id = base + 4 * g.lane;
    if (id >= VOCAB) continue;
    float4 logits = load_quad(row, id / 4, VOCAB);
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      if (id + j < VOCAB && logits[j] > best) {
        best = logits[j];
        best_id = id + j;
      }
    }
  }
  float largest = simd_max(best);
  uint smallest_id = simd_min(best == largest ? best_id : 0xffffffffu);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (g.lane == 0) {
    values[g.simdgroup] = largest;
    ids[g.simdgroup] = smallest_id;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // Ids ascend with the simdgroups.
  best = -INFINITY;
  best_id = 0xffffffffu;
  for (uint s = 0; s < SIMDGROUPS; s++) {
    if (values[s] > best) {
      best = values[s];
      best_id = ids[s];
    }
  }
  id_out = best_id;
  return best;
}

// Sums the weights of tokens whose key is at least `low`. `sums` then holds each simdgroup's.
INLINE float row_sum(device const float* row, Source source, ulong low, threadgroup float* sums, Group g) {
  float4 sum = float4(0.0f);
  for (uint base = first_token(g.simdgroup); base < end_token(g.simdgroup); base += 128) {
    uint id = base + 4 * g.lane;
    if (id >= VOCAB) continue;
    float4 logits = load_quad(row, id / 4, VOCAB);
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      float weight = weight_of(logits[j], source);
      if (id + j < VOCAB && key_of(as_type<uint>(weight), id + j) >= low) sum[j] += weight;
    }
  }
  float total = simd_sum((sum.x + sum.y) + (sum.z + sum.w));
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (g.lane == 0) sums[g.simdgroup] = total;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  total = 0.0f;
  for (uint s = 0; s < SIMDGROUPS; s++) total += sums[s];
  return total;
}

// The sum of a value over the threadgroup, in every thread.
INLINE uint group_count(uint count, threadgroup uint* counts, Group g) {
  count = simd_sum(count);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (g.lane == 0) counts[g.simdgroup] = count;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  count = 0;
  for (uint s = 0; s < SIMDGROUPS; s++) count += counts[s];
  return count;
}

// Sum of the values of this lane and those before it.
INLINE float scan(float value, uint lane) {
#pragma unroll
  for (uint distance = 1; distance < 32; distance *= 2) {
    float before = simd_shuffle_up(value, ushort(distance));
    if (lane >= distance) value += before;
  }
  return value;
}

// The last key of the shortest prefix of the tokens with keys from `low` on that has `count_goal` tokens or, if that is 0, the weight
// `weight_goal`; of all of them if they do not suffice. Leaves the last candidates in `sorted_high` and `sorted_id`, `num_sorted` of
// them, in order: where count_goal is at most MAX_TOP, those of the whole prefix.
INLINE ulong find_prefix(device const float* row, Source source, ulong low, uint count_goal, float weight_goal,
                         thread uint& num_sorted, threadgroup uint* cut_counts, threadgroup float* cut_sums,
                         threadgroup atomic_uint* cursor, threadgroup uint* high, threadgroup uint* ids,
                         threadgroup uint* sorted_high, threadgroup uint* sorted_id, threadgroup uint* result, Group g) {
  // The search is among the `inside` tokens with keys in low..end. There are `above` more from `end` on.
  const ulong last = source.scale != 0.0f ? ulong(as_type<uint>(1.0f) + 1) << 32 : 0xffffffff00000000ul;
  ulong end = last;
  uint above = 0;
  float above_weight = 0.0f;
  uint inside = 0;
  while (true) {
    // The tokens from each cut on; the first cut is at `low`.
    ulong width = (end - low) / CUTS;
    uint counts[CUTS];
    float sums[CUTS];
#pragma unroll
    for (uint c = 0; c < CUTS; c++) {
      counts[c] = 0;
      sums[c] = 0.0f;
    }
    for (uint base = first_token(g.simdgroup); base < end_token(g.simdgroup); base += 128) {
      uint id = base + 4 * g.lane;
      if (id >= VOCAB) continue;
      float4 logits = load_quad(row, id / 4, VOCAB);
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        uint bits = high_key(logits[j], source);
        ulong key = key_of(bits, id + j);
        if (id + j >= VOCAB || key < low || key >= end) continue;
#pragma unroll
        for (uint c = 0; c < CUTS; c++) {
          if (key >= low + width * c) {
            counts[c] += 1;
            sums[c] += as_type<float>(bits);
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint c = 0; c < CUTS; c++) {
      uint count = simd_sum(counts[c]);
      float sum = simd_sum(sums[c]);
      if (g.lane == 0) {
        cut_counts[c * SIMDGROUPS + g.simdgroup] = count;
        cut_sums[c * SIMDGROUPS + g.simdgroup] = sum;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // The last cut from which the tokens suffice is the new low end, the one after it the new high end.
    ulong first_cut = low;
    uint count_above = above;
    float weight_above = above_weight;
    for (uint c = CUTS; c > 0; c--) {
      low = first_cut + width * (c - 1);
      uint count = count_above;
      float weight = weight_above;
      for (uint s = 0; s < SIMDGROUPS; s++) {
        count += cut_counts[(c - 1) * SIMDGROUPS + s];
        weight += cut_sums[(c - 1) * SIMDGROUPS + s];
      }
      inside = count - above;
      bool suffices = count_goal > 0 ? count >= count_goal : weight >= weight_goal;
      if (suffices || c == 1) break;
      end = low;
      above = count;
      above_weight = weight;
    }
    if (inside <= CANDIDATES - MAX_TOP) break;
  }
  if (above + inside <= CANDIDATES) {
    end = last;
    inside += above;
    above = 0;
    above_weight = 0.0f;
  }

  // Gather the tokens that are left, in any order.
  if (g.thread_index == 0) atomic_store_explicit(cursor, 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint base = first_token(g.simdgroup); base < end_token(g.simdgroup); base += 128) {
    uint id = base + 4 * g.lane;
    if (id >= VOCAB) continue;
    float4 logits = load_quad(row, id / 4, VOCAB);
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      uint bits = high_key(logits[j], source);
      ulong key = key_of(bits, id + j);
      if (id + j >= VOCAB || key < low || key >= end) continue;
      uint at = atomic_fetch_add_explicit(cursor, 1u, memory_order_relaxed);
      high[at] = bits;
      ids[at] = id + j;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // All keys differ, so the number of tokens before a token is its place.
  for (uint i = g.thread_index; i < inside; i += THREADS) {
    ulong key = key_of(high[i], ids[i]);
    uint place = 0;
    for (uint k = 0; k < inside; k++) place += key_of(high[k], ids[k]) > key ? 1 : 0;
    sorted_high[place] = high[i];
    sorted_id[place] = ids[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  num_sorted = inside;
  uint length = min(count_goal - above, inside);
  if (count_goal == 0) {
    if (g.simdgroup == 0) {
      // The first place at which the weight suffices.
      length = inside;
      float before = above_weight;
      for (uint base = 0; base < inside; base += 32) {
        uint i = base + g.lane;
        float sum = before + scan(i < inside ? as_type<float>(sorted_high[i]) : 0.0f, g.lane);
        uint first = simd_min(i < inside && sum >= weight_goal ? i + 1 : 0xffffffffu);
        if (first != 0xffffffffu) {
          length = first;
          break;
        }
        before = simd_broadcast(sum, ushort(31));
      }
      if (g.lane == 0) *result = length;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    length = *result;
  }
  return length > 0 ? key_of(sorted_high[length - 1], sorted_id[length - 1]) : low;
}

// A number above 0 and below 1 from the request's seed and position: the upper 23 bits of what the sampler on the host uses.
INLINE float uniform_of(device const SampleRow* p) {
  uint c0 = p->position_low;
  uint c1 = p->position_high;
  uint c2 = 0;
  uint c3 = 0;
  uint k0 = p->seed_low;
  uint k1 = p->seed_high;
  for (uint round = 0; round < 10; round++) {
    uint high0 = mulhi(0xD2511F53u, c0);
    uint low0 = 0xD2511F53u * c0;
    uint high1 = mulhi(0xCD9E8D57u, c2);
    uint low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return (float(c1 >> 9) + 0.5f) * 1.1920928955078125e-7f;
}

// The token at which the running sum of the kept weights, in the order of ids, exceeds `target`; the last kept one if none does.
// `sums` holds each simdgroup's sum.
INLINE uint walk(device const float* row, Source source, ulong low, float target, threadgroup float* sums, threadgroup uint* result,
                 Group g) {
  uint part = 0;
  float before = 0.0f;
  float sum = 0.0f;
  for (uint s = 0; s < SIMDGROUPS; s++) {
    if (sums[s] > 0.0f && sum <= target) {
      part = s;
      before = sum;
      sum += sums[s];
    }
  }
  if (g.simdgroup == part) {
    uint token = 0;
    for (uint base = first_token(part); base < end_token(part); base += 128) {
      uint id = base + 4 * g.lane;
      float4 weights = float4(0.0f);
      if (id < VOCAB) {
        float4 logits = load_quad(row, id / 4, VOCAB);
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          float weight = weight_of(logits[j], source);
          if (id + j < VOCAB && key_of(as_type<uint>(weight), id + j) >= low) weights[j] = weight;
        }
      }
      float own = (weights.x + weights.y) + (weights.z + weights.w);
      float end = before + scan(own, g.lane);
      // This lane's last token with a weight, and the first at which the sum exceeds the target.
      uint last = 0;
      uint hit = 0xffffffffu;
      float running = end - own;
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        if (weights[j] > 0.0f) {
          last = id + j;
          running += weights[j];
          if (running > target) hit = min(hit, id + j);
        }
      }
      if (own > 0.0f && end > target) hit = min(hit, last);
      uint first_hit = simd_min(hit);
      token = max(token, simd_max(last));
      if (first_hit != 0xffffffffu) {
        token = first_hit;
        break;
      }
      before = simd_broadcast(end, ushort(31));
    }
    if (g.lane == 0) *result = token;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return *result;
}

[[kernel, max_total_threads_per_threadgroup(THREADS)]]
void sample(device float* all_logits [[buffer(0)]], device const SampleRow* rows [[buffer(1)]],
            device uint* adjustments [[buffer(2)]], device uint* picked [[buffer(3)]], device uint* top [[buffer(4)]],
            uint index [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
            uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float sums[SIMDGROUPS];
  threadgroup uint counts[SIMDGROUPS];
  threadgroup uint cut_counts[CUTS * SIMDGROUPS];
  threadgroup float cut_sums[CUTS * SIMDGROUPS];
  threadgroup uint high[CANDIDATES];
  threadgroup uint ids[CANDIDATES];
  threadgroup uint sorted_high[CANDIDATES];
  threadgroup uint sorted_id[CANDIDATES];
  threadgroup atomic_uint cursor;
  threadgroup uint result;

  Group g;
  g.thread_index = thread_index;
  g.lane = lane;
  g.simdgroup = simdgroup;
  device const SampleRow* p = rows + index;
  device float* row = all_logits + ulong(p->logit_row) * VOCAB;
  device uint* row_adjustments = adjustments + ulong(p->first_adjustment) * ADJUSTMENT_WORDS;

  // Of the raw logits: the largest, and what log-probabilities are relative to.
  uint raw_best = 0;
  Source raw;
  raw.max = row_max(row, raw_best, sums, counts, g);
  raw.scale = 1.0f;
  float raw_total = 0.0f;
  if (p->wants_logprobs != 0) raw_total = row_sum(row, raw, 0, sums, g);

  // Change what penalties and biases concern, keeping the raw logit in the place of the bias.
  uint best = raw_best;
  Source source = raw;
  if (p->num_adjustments > 0) {
    threadgroup_barrier(mem_flags::mem_device);
    for (uint i = thread_index; i < p->num_adjustments; i += THREADS) {
      device uint* adjustment = row_adjustments + i * ADJUSTMENT_WORDS;
      uint token = adjustment[0];
      float logit = row[token];
      float bias = as_type<float>(adjustment[2]);
      float changed = logit + bias;
      if (adjustment[1] != 0) changed = changed > 0.0f ? changed / p->repetition_penalty : changed * p->repetition_penalty;
      changed = changed - as_type<float>(adjustment[3]);
      // No penalty makes a finite logit infinite.
      if (fabs(logit) <= LARGEST && fabs(bias) <= LARGEST) changed = max(min(changed, LARGEST), -LARGEST);
      adjustment[2] = as_type<uint>(logit);
      row[token] = changed;
    }
    threadgroup_barrier(mem_flags::mem_device);
    source.max = row_max(row, best, sums, counts, g);
  }

  uint token = best;
  bool finite = source.max > -INFINITY && source.max < INFINITY;
  uint num_sorted = 0;
  if (finite && p->scale != 0.0f) {
    source.scale = p->scale;
    // Tokens that weigh nothing are not kept.
    ulong low = ulong(max(as_type<uint>(p->min_p), 1u)) << 32;
    if (p->top_k > 0 && p->top_k < VOCAB) {
      low = find_prefix(row, source, low, p->top_k, 0.0f, num_sorted, cut_counts, cut_sums, &cursor, high, ids, sorted_high,
                        sorted_id, &result, g);
    }
    float total = row_sum(row, source, low, sums, g);
    if (p->top_p < 1.0f) {
      low = find_prefix(row, source, low, 0, p->top_p * total, num_sorted, cut_counts, cut_sums, &cursor, high, ids,
                        sorted_high, sorted_id, &result, g);
      total = row_sum(row, source, low, sums, g);
    }
    token = walk(row, source, low, uniform_of(p) * total, sums, &result, g);
  }

  if (p->num_adjustments > 0) {
    threadgroup_barrier(mem_flags::mem_device);
    for (uint i = thread_index; i < p->num_adjustments; i += THREADS) {
      device uint* adjustment = row_adjustments + i * ADJUSTMENT_WORDS;
      row[adjustment[0]] = as_type<float>(adjustment[2]);
    }
    threadgroup_barrier(mem_flags::mem_device);
  }

  uint rank = 0;
  float logprob = 0.0f;
  if (finite && p->wants_logprobs != 0) {
    float log_total = log(raw_total);
    float own = row[token];
    logprob = (own - raw.max) - log_total;
    // Tokens before it in the order of the raw logits.
    uint better = 0;
    for (uint base = first_token(simdgroup); base < end_token(simdgroup); base += 128) {
      uint id = base + 4 * lane;
      if (id >= VOCAB) continue;
      float4 logits = load_quad(row, id / 4, VOCAB);
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        bool before = logits[j] > own || (logits[j] == own && id + j < token);
        if (id + j < VOCAB && before) better += 1;
      }
    }
    rank = group_count(better, counts, g) + 1;
    if (p->num_top > 0) {
      raw.scale = 0.0f;
      find_prefix(row, raw, ulong(1) << 32, min(p->num_top, VOCAB), 0.0f, num_sorted, cut_counts, cut_sums, &cursor, high, ids,
                  sorted_high, sorted_id, &result, g);
      for (uint i = thread_index; i < p->num_top; i += THREADS) {
        bool there = i < num_sorted;
        float value = there ? (ordered_float(sorted_high[i]) - raw.max) - log_total : 0.0f;
        top[(index * MAX_TOP + i) * 2] = there ? sorted_id[i] : 0xffffffffu;
        top[(index * MAX_TOP + i) * 2 + 1] = as_type<uint>(value);
      }
    }
  }
  if (thread_index == 0) {
    picked[index * 4] = token;
    picked[index * 4 + 1] = as_type<uint>(source.max);
    picked[index * 4 + 2] = as_type<uint>(logprob);
    picked[index * 4 + 3] = rank;
  }
}
