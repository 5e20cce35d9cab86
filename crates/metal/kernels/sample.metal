// sample: a token from each row of logits, and its log-probability. See the op for the definition: what decides which token is picked is
// the very operations of the op, so that every device picks the same.
//
// Grid: one threadgroup of THREADS threads per row. Simdgroup s owns the tokens from s * RANGE on, RANGE a multiple of 128; of each 128
// tokens lane l owns the four from 4 * l on. Nothing is sorted but the last CANDIDATES tokens of a search.
//
// Tokens have an order, largest weight first, ties to the smaller id, and a key of 64 bits that descends with it: the weight's bits,
// then the complement of the id. min_p, top_k and top_p each keep a prefix of that order, so what is kept is a smallest key.
// A prefix of a wanted length or weight is found by cutting the range of keys into eight, again and again, until few tokens are
// left in it; these are sorted by counting, for each, those before it.
//
// Weights are summed in units, integers of 64 bits, whose order does not matter. A draw walks the simdgroups' sums, then the 128 tokens of
// each step by a scan of lanes, in the order of ids.
// Masks and the penalty of what was seen are applied when logits are loaded. Logits that are adjusted are changed in place and put back
// before log-probabilities, which count the mask alone: such a row belongs to one threadgroup.
// Threadgroup memory: about 18 KiB. Bytes that must move: rows * VOCAB * 4, once; passes after the first are meant for the cache.

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
  uint has;
  uint mask;
  uint seen;
  uint score;
};

// Bits of `has`.
constant constexpr uint HAS_LOGPROBS = 1;
constant constexpr uint HAS_MASK = 2;
constant constexpr uint HAS_SEEN = 4;
constant constexpr uint HAS_SCORE = 8;

// Where a thread is.
struct Group {
  uint thread_index;
  uint lane;
  uint simdgroup;
};

// What is being searched in: keys by weight, or by logit.
struct Source {
  device const float* row;
  // A bit per token: that it is allowed, and that it was seen.
  device const uint* mask;
  device const uint* seen;
  bool masked;
  bool has_seen;
  float repetition_penalty;
  float max;
  float scale;  // 0: keys by logit
};

INLINE uint first_token(uint simdgroup) { return simdgroup * ((VOCAB + 128 * SIMDGROUPS - 1) / (128 * SIMDGROUPS) * 128); }
INLINE uint end_token(uint simdgroup) { return min(first_token(simdgroup + 1), VOCAB); }

// A finite logit stays finite, and one that is not stays as it is.
INLINE float keep_finite(float logit, float changed) {
  return fabs(logit) <= LARGEST ? max(min(changed, LARGEST), -LARGEST) : logit;
}

INLINE float penalised(float logit, float penalty) { return logit > 0.0f ? logit / penalty : logit * penalty; }

// Logits 4 * quad to 4 * quad + 3, without those that the mask forbids, and with the penalty of those that were seen.
INLINE float4 load_logits(Source source, uint quad) {
  float4 logits = load_quad(source.row, quad, VOCAB);
  if (source.masked) {
    uint allowed = source.mask[quad / 8] >> (quad % 8 * 4);
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      if ((allowed >> j & 1) == 0) logits[j] = -INFINITY;
    }
  }
  if (source.has_seen) {
    uint seen = source.seen[quad / 8] >> (quad % 8 * 4);
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      if ((seen >> j & 1) != 0) logits[j] = keep_finite(logits[j], penalised(logits[j], source.repetition_penalty));
    }
  }
  return logits;
}

// The op's `weight`.
INLINE float weight_of(float logit, Source source) { return exp_nonpositive((logit - source.max) * source.scale); }

// The op's `units`.
INLINE ulong units_of(float weight) {
  const float round = 12582912.0f;
  float scaled = weight * 131072.0f;
  float high = scaled + round;
  float low = (scaled - (high - round)) * 8388608.0f + round;
  // Both as differences of bits; the lower one may be negative.
  ulong units = ulong(as_type<uint>(high) - as_type<uint>(round)) << 23;
  return units + ulong(long(as_type<int>(low) - as_type<int>(round)));
}

// simd_sum of 64 bits, 24 at a time: those of 32 lanes fit 32.
INLINE ulong simd_sum_units(ulong units) {
  ulong low = simd_sum(uint(units & 0xffffff));
  ulong middle = simd_sum(uint(units >> 24 & 0xffffff));
  ulong high = simd_sum(uint(units >> 48));
  return low + (middle << 24) + (high << 48);
}

INLINE ulong key_of(uint high, uint id) { return (ulong(high) << 32) | ulong(0xffffffffu - id); }
INLINE uint id_of(ulong key) { return 0xffffffffu - uint(key & 0xffffffffu); }

// The upper half of the key of a token: 0 if it may never be picked.
INLINE uint high_key(float logit, Source source) {
  if (source.scale != 0.0f) return as_type<uint>(weight_of(logit, source));
  // Adding 0 makes one of the two zeros.
  return logit > -INFINITY ? ordered_key(logit + 0.0f) : 0;
}

// The largest value of the row and the smallest id that has it, in every thread. NaN counts as smallest.
INLINE float row_max(Source source, thread uint& id_out, threadgroup float* values, threadgroup uint* ids, Group g) {
  float best = -INFINITY;
  uint best_id = 0xffffffffu;
  for (uint base = first_token(g.simdgroup); base < end_token(g.simdgroup); base += 128) {
    uint id = base + 4 * g.lane;
    if (id >= VOCAB) continue;
    float4 logits = load_logits(source, id / 4);
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

// Sums the units of tokens whose key is at least `low`. `sums` then holds each simdgroup's.
INLINE ulong row_sum(Source source, ulong low, threadgroup ulong* sums, Group g) {
  ulong sum = 0;
  for (uint base = first_token(g.simdgroup); base < end_token(g.simdgroup); base += 128) {
    uint id = base + 4 * g.lane;
    if (id >= VOCAB) continue;
    float4 logits = load_logits(source, id / 4);
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      float weight = weight_of(logits[j], source);
      if (id + j < VOCAB && key_of(as_type<uint>(weight), id + j) >= low) sum += units_of(weight);
    }
  }
  sum = simd_sum_units(sum);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (g.lane == 0) sums[g.simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ulong total = 0;
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

// Sum of the units of this lane and those before it.
INLINE ulong scan(ulong units, uint lane) {
#pragma unroll
  for (uint distance = 1; distance < 32; distance *= 2) {
    ulong low = simd_shuffle_up(uint(units), ushort(distance));
    ulong high = simd_shuffle_up(uint(units >> 32), ushort(distance));
    if (lane >= distance) units += low | high << 32;
  }
  return units;
}

// The units of the last lane.
INLINE ulong last_lane(ulong units) {
  ulong low = simd_broadcast(uint(units), ushort(31));
  ulong high = simd_broadcast(uint(units >> 32), ushort(31));
  return low | high << 32;
}

// The last key of the shortest prefix of the tokens with keys from `low` on that has `count_goal` tokens or, if that is 0,
// `units_goal` units; of all of them if they do not suffice. Leaves the last candidates in `sorted_high` and `sorted_id`, `num_sorted` of
// them, in order: where count_goal is at most MAX_TOP, those of the whole prefix.
INLINE ulong find_prefix(Source source, ulong low, uint count_goal, ulong units_goal,
                         thread uint& num_sorted, threadgroup uint* cut_counts, threadgroup ulong* cut_sums,
                         threadgroup atomic_uint* cursor, threadgroup uint* high, threadgroup uint* ids,
                         threadgroup uint* sorted_high, threadgroup uint* sorted_id, threadgroup uint* result, Group g) {
  // The search is among the `inside` tokens with keys in low..end. There are `above` more from `end` on.
  const ulong last = source.scale != 0.0f ? ulong(as_type<uint>(1.0f) + 1) << 32 : 0xffffffff00000000ul;
  ulong end = last;
  uint above = 0;
  ulong above_units = 0;
  uint inside = 0;
  while (true) {
    // The tokens from each cut on; the first cut is at `low`.
    ulong width = (end - low) / CUTS;
    uint counts[CUTS];
    ulong sums[CUTS];
#pragma unroll
    for (uint c = 0; c < CUTS; c++) {
      counts[c] = 0;
      sums[c] = 0;
    }
    for (uint base = first_token(g.simdgroup); base < end_token(g.simdgroup); base += 128) {
      uint id = base + 4 * g.lane;
      if (id >= VOCAB) continue;
      float4 logits = load_logits(source, id / 4);
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        uint bits = high_key(logits[j], source);
        ulong key = key_of(bits, id + j);
        if (id + j >= VOCAB || key < low || key >= end) continue;
        ulong units = count_goal == 0 ? units_of(as_type<float>(bits)) : 0;
#pragma unroll
        for (uint c = 0; c < CUTS; c++) {
          if (key >= low + width * c) {
            counts[c] += 1;
            sums[c] += units;
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint c = 0; c < CUTS; c++) {
      uint count = simd_sum(counts[c]);
      ulong sum = simd_sum_units(sums[c]);
      if (g.lane == 0) {
        cut_counts[c * SIMDGROUPS + g.simdgroup] = count;
        cut_sums[c * SIMDGROUPS + g.simdgroup] = sum;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // The last cut from which the tokens suffice is the new low end, the one after it the new high end.
    ulong first_cut = low;
    uint count_above = above;
    ulong units_above = above_units;
    for (uint c = CUTS; c > 0; c--) {
      low = first_cut + width * (c - 1);
      uint count = count_above;
      ulong units = units_above;
      for (uint s = 0; s < SIMDGROUPS; s++) {
        count += cut_counts[(c - 1) * SIMDGROUPS + s];
        units += cut_sums[(c - 1) * SIMDGROUPS + s];
      }
      inside = count - above;
      bool suffices = count_goal > 0 ? count >= count_goal : units >= units_goal;
      if (suffices || c == 1) break;
      end = low;
      above = count;
      above_units = units;
    }
    if (inside <= CANDIDATES - MAX_TOP) break;
  }
  if (above + inside <= CANDIDATES) {
    end = last;
    inside += above;
    above = 0;
    above_units = 0;
  }

  // Gather the tokens that are left, in any order.
  if (g.thread_index == 0) atomic_store_explicit(cursor, 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint base = first_token(g.simdgroup); base < end_token(g.simdgroup); base += 128) {
    uint id = base + 4 * g.lane;
    if (id >= VOCAB) continue;
    float4 logits = load_logits(source, id / 4);
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
      // The first place at which the units suffice.
      length = inside;
      ulong before = above_units;
      for (uint base = 0; base < inside; base += 32) {
        uint i = base + g.lane;
        ulong sum = before + scan(i < inside ? units_of(as_type<float>(sorted_high[i])) : 0, g.lane);
        uint first = simd_min(i < inside && sum >= units_goal ? i + 1 : 0xffffffffu);
        if (first != 0xffffffffu) {
          length = first;
          break;
        }
        before = last_lane(sum);
      }
      if (g.lane == 0) *result = length;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    length = *result;
  }
  return length > 0 ? key_of(sorted_high[length - 1], sorted_id[length - 1]) : low;
}

// The op's `share`: `top_p` of `total` units, rounded up.
INLINE ulong share_of(float top_p, ulong total) {
  ulong part = uint(top_p * 4294967296.0f);
  ulong wanted = part * (total >> 32) + ((part * (total & 0xffffffff) + 0xffffffff) >> 32);
  return max(wanted, ulong(1));
}

// The op's `draw_target`: the upper half of the product of 64 random bits and `total`.
INLINE ulong target_of(device const SampleRow* p, ulong total) {
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
  ulong total_low = total & 0xffffffff;
  ulong total_high = total >> 32;
  ulong middle = c1 * total_low + (c0 * total_low >> 32);
  ulong carry = (c0 * total_high + (middle & 0xffffffff)) >> 32;
  return c1 * total_high + (middle >> 32) + carry;
}

// The token at which the running sum of the kept units, in the order of ids, exceeds `target`, which is below their sum.
// `sums` holds each simdgroup's sum.
INLINE uint walk(Source source, ulong low, ulong target, threadgroup ulong* sums, threadgroup uint* result, Group g) {
  uint part = 0;
  ulong before = 0;
  while (part + 1 < SIMDGROUPS && before + sums[part] <= target) {
    before += sums[part];
    part += 1;
  }
  if (g.simdgroup == part) {
    uint token = 0xffffffffu;
    for (uint base = first_token(part); token == 0xffffffffu && base < end_token(part); base += 128) {
      uint id = base + 4 * g.lane;
      ulong units[4] = {0, 0, 0, 0};
      if (id < VOCAB) {
        float4 logits = load_logits(source, id / 4);
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          float weight = weight_of(logits[j], source);
          if (id + j < VOCAB && key_of(as_type<uint>(weight), id + j) >= low) units[j] = units_of(weight);
        }
      }
      ulong own = units[0] + units[1] + units[2] + units[3];
      ulong end = before + scan(own, g.lane);
      // This lane's first token at which the sum exceeds the target.
      uint hit = 0xffffffffu;
      ulong running = end - own;
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        running += units[j];
        if (running > target) hit = min(hit, id + j);
      }
      token = simd_min(hit);
      before = last_lane(end);
    }
    if (g.lane == 0) *result = token;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return *result;
}

kernel void sample(device float* all_logits [[buffer(0)]], device const SampleRow* rows [[buffer(1)]],
            device uint* adjustments [[buffer(2)]], device const uint* masks [[buffer(3)]], device uint* picked [[buffer(4)]],
            device uint* top [[buffer(5)]], uint index [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
            uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float largest[SIMDGROUPS];
  threadgroup ulong sums[SIMDGROUPS];
  threadgroup uint counts[SIMDGROUPS];
  threadgroup uint cut_counts[CUTS * SIMDGROUPS];
  threadgroup ulong cut_sums[CUTS * SIMDGROUPS];
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

  // Of the row's own logits, those that the mask leaves: the largest, and what log-probabilities are relative to.
  uint best = 0;
  Source own;
  own.row = row;
  own.mask = masks + ulong(p->mask) * ((VOCAB + 31) / 32);
  own.seen = masks + ulong(p->seen) * ((VOCAB + 31) / 32);
  own.masked = (p->has & HAS_MASK) != 0;
  own.has_seen = false;
  own.repetition_penalty = p->repetition_penalty;
  own.max = row_max(own, best, largest, counts, g);
  own.scale = 1.0f;
  bool wants_logprobs = (p->has & HAS_LOGPROBS) != 0;
  ulong own_total = 0;
  if (wants_logprobs) own_total = row_sum(own, 0, sums, g);

  // Change what penalties and biases concern, keeping the raw logit in the place of the bias.
  Source source = own;
  source.has_seen = (p->has & HAS_SEEN) != 0;
  if (p->num_adjustments > 0) {
    threadgroup_barrier(mem_flags::mem_device);
    for (uint i = thread_index; i < p->num_adjustments; i += THREADS) {
      device uint* adjustment = row_adjustments + i * ADJUSTMENT_WORDS;
      uint token = adjustment[0];
      float logit = row[token];
      float bias = as_type<float>(adjustment[2]);
      float changed = logit + bias;
      if (adjustment[1] != 0) changed = penalised(changed, p->repetition_penalty);
      changed = changed - as_type<float>(adjustment[3]);
      changed = keep_finite(logit, changed);
      if (bias == -INFINITY) changed = bias;
      adjustment[2] = as_type<uint>(logit);
      row[token] = changed;
    }
    threadgroup_barrier(mem_flags::mem_device);
  }
  if (p->num_adjustments > 0 || source.has_seen) source.max = row_max(source, best, largest, counts, g);

  bool scores = (p->has & HAS_SCORE) != 0;
  uint token = scores ? p->score : best;
  bool finite = source.max > -INFINITY && source.max < INFINITY;
  uint num_sorted = 0;
  if (finite && !scores && p->scale != 0.0f) {
    source.scale = p->scale;
    // Tokens that weigh nothing are not kept.
    ulong low = ulong(p->min_p > 0.0f ? as_type<uint>(p->min_p) : 1u) << 32;
    if (p->top_k > 0 && p->top_k < VOCAB) {
      low = find_prefix(source, low, p->top_k, 0, num_sorted, cut_counts, cut_sums, &cursor, high, ids, sorted_high, sorted_id,
                        &result, g);
    }
    ulong total = row_sum(source, low, sums, g);
    if (p->top_p < 1.0f) {
      low = find_prefix(source, low, 0, share_of(p->top_p, total), num_sorted, cut_counts, cut_sums, &cursor, high, ids,
                        sorted_high, sorted_id, &result, g);
      total = row_sum(source, low, sums, g);
    }
    token = walk(source, low, target_of(p, total), sums, &result, g);
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
  if (finite && wants_logprobs) {
    // In units of 2^-40.
    float log_total = log(float(own_total) * 9.094947017729282e-13f);
    float logit = row[token];
    // The mask may forbid a token that is scored.
    if (own.masked && (own.mask[token / 32] >> token % 32 & 1) == 0) logit = -INFINITY;
    logprob = (logit - own.max) - log_total;
    // Tokens before it in the order of the row's own logits.
    uint better = 0;
    for (uint base = first_token(simdgroup); base < end_token(simdgroup); base += 128) {
      uint id = base + 4 * lane;
      if (id >= VOCAB) continue;
      float4 logits = load_logits(own, id / 4);
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        bool before = logits[j] > logit || (logits[j] == logit && id + j < token);
        if (id + j < VOCAB && before) better += 1;
      }
    }
    rank = group_count(better, counts, g) + 1;
    if (p->num_top > 0) {
      own.scale = 0.0f;
      find_prefix(own, ulong(1) << 32, min(p->num_top, VOCAB), 0, num_sorted, cut_counts, cut_sums, &cursor, high, ids,
                  sorted_high, sorted_id, &result, g);
      for (uint i = thread_index; i < p->num_top; i += THREADS) {
        bool there = i < num_sorted;
        float value = there ? (ordered_float(sorted_high[i]) - own.max) - log_total : 0.0f;
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
