// qk_norm: each query head x of qkv becomes x[i] / sqrt(mean_i(x[i]^2) + eps) * q_weight[i], each key head likewise with k_weight.
// Value heads stay.
//
// Grid: x: rows, y: groups of SIMDGROUPS heads. A simdgroup owns a head, in place. Lane l owns its quads (four neighbouring elements)
// l and l + 32, keeps them in registers, reads and writes them once.
// Order of the sum: each lane its quads in ascending order, by component; the four components; then simd_sum. It depends on
// `head_dim` alone.
// Threadgroup memory: none. Bytes that must move: rows * (num_heads + num_kv_heads) * head_dim * 8 + 2 * head_dim * 4.

constant uint HEAD_DIM [[function_constant(0)]];
constant uint NUM_HEADS [[function_constant(1)]];
constant uint NUM_KV_HEADS [[function_constant(2)]];
constant uint SIMDGROUPS [[function_constant(3)]];

constant constexpr uint KEPT = 2;

kernel void qk_norm(device float* qkv [[buffer(0)]], device const float* q_weight [[buffer(1)]],
                    device const float* k_weight [[buffer(2)]], constant float& eps [[buffer(3)]],
                    uint2 position [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint quads = (HEAD_DIM + 3) / 4;
  uint head = position.y * SIMDGROUPS + simdgroup;
  if (head >= NUM_HEADS + NUM_KV_HEADS) return;
  device float* x = qkv + (ulong(position.x) * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * HEAD_DIM;
  device const float* weight = head < NUM_HEADS ? q_weight : k_weight;

  float4 kept[KEPT];
#pragma unroll
  for (uint c = 0; c < KEPT; c++) {
    uint quad = c * 32 + lane;
    kept[c] = c * 32 < quads && quad < quads ? load_quad(x, quad, HEAD_DIM) : float4(0.0f);
  }

  float4 squares = float4(0.0f);
#pragma unroll
  for (uint c = 0; c < KEPT; c++) squares = fma(kept[c], kept[c], squares);
  float sum = simd_sum((squares.x + squares.y) + (squares.z + squares.w));
  float scale = 1.0f / sqrt(sum / float(HEAD_DIM) + eps);

#pragma unroll
  for (uint c = 0; c < KEPT; c++) {
    uint quad = c * 32 + lane;
    if (c * 32 < quads && quad < quads) store_quad(x, quad, HEAD_DIM, kept[c] * scale * load_quad(weight, quad, HEAD_DIM));
  }
}
