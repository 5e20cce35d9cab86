// topk_softmax: p = softmax(logits[t, :]); ids[t, :] are the TOP_K experts of largest p, largest first, ties to the smaller id;
// weights[t, j] = p[ids[t, j]], divided by their sum if RENORMALIZE
//
// Grid: one simdgroup, a threadgroup of its own, per token. Lane l owns the experts l, l + 32, … and keeps the first KEPT of them in
// registers; of the results it owns the choices l, l + 32, ….
// A choice is the largest logit that comes after the one before it in the order of results, so nothing is marked as taken.
// Order of the sums: over all experts each lane its own in ascending order, then simd_sum; over the chosen in the order of results.
// Threadgroup memory: none. Bytes that must move: rows * (EXPERTS + 2 * TOP_K) * 4.

constant uint EXPERTS [[function_constant(0)]];
constant uint TOP_K [[function_constant(1)]];
constant bool RENORMALIZE [[function_constant(2)]];

constant constexpr uint KEPT = 8;

kernel void topk_softmax(device const float* logits [[buffer(0)]], device uint* ids [[buffer(1)]], device float* weights [[buffer(2)]],
                         uint row [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const uint chunks = (EXPERTS + 31) / 32;
  logits += ulong(row) * EXPERTS;
  ids += ulong(row) * TOP_K;
  weights += ulong(row) * TOP_K;

  uint kept[KEPT];
  uint largest = 0;
#pragma unroll
  for (uint c = 0; c < KEPT; c++) {
    uint expert = c * 32 + lane;
    kept[c] = c * 32 < EXPERTS && expert < EXPERTS ? ordered_key(logits[expert]) : 0;
    largest = max(largest, kept[c]);
  }
  for (uint expert = KEPT * 32 + lane; expert < EXPERTS; expert += 32) largest = max(largest, ordered_key(logits[expert]));
  float max_logit = ordered_float(simd_max(largest));

  // Each lane adds up its own experts; what is behind the last weighs nothing.
  float total = 0.0f;
#pragma unroll
  for (uint c = 0; c < KEPT; c++) {
    if (c * 32 + lane < EXPERTS) total += exp_nonpositive(ordered_float(kept[c]) - max_logit);
  }
  for (uint expert = KEPT * 32 + lane; expert < EXPERTS; expert += 32) total += exp_nonpositive(logits[expert] - max_logit);
  total = simd_sum(total);

  // The choice before: at first, one before all experts.
  uint last_key = 0xffffffffu;
  uint last_id = 0;
  float chosen = 0.0f;
  for (uint j = 0; j < TOP_K; j++) {
    uint best_key = 0;
    uint best_id = 0xffffffffu;
    // Ids ascend, so of equal keys the first stays.
#pragma unroll
    for (uint c = 0; c < KEPT; c++) {
      uint expert = c * 32 + lane;
      bool after = kept[c] < last_key || (kept[c] == last_key && expert > last_id);
      if (c * 32 < EXPERTS && expert < EXPERTS && after && kept[c] > best_key) {
        best_key = kept[c];
        best_id = expert;
      }
    }
    for (uint c = KEPT; c < chunks; c++) {
      uint expert = c * 32 + lane;
      uint key = expert < EXPERTS ? ordered_key(logits[expert]) : 0;
      bool after = key < last_key || (key == last_key && expert > last_id);
      if (after && key > best_key) {
        best_key = key;
        best_id = expert;
      }
    }
    last_key = simd_max(best_key);
    last_id = simd_min(best_key == last_key ? best_id : 0xffffffffu);
    float weight = exp_nonpositive(ordered_float(last_key) - max_logit);
    chosen += weight;
    if (j % 32 == lane) {
      ids[j] = last_id;
      weights[j] = weight;
    }
  }

  float divisor = RENORMALIZE ? chosen : total;
  for (uint j = lane; j < TOP_K; j += 32) weights[j] = weights[j] / divisor;
}
