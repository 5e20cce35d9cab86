#include <metal_stdlib>
using namespace metal;

// y[row] = the sum of a row of x. One threadgroup per row.
kernel void row_sum(device const float* x [[buffer(0)]],
                    device float* y [[buffer(1)]],
                    constant uint& columns [[buffer(2)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint t [[thread_index_in_threadgroup]],
                    uint threads [[threads_per_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[32];
  float sum = 0;
  for (uint i = t; i < columns; i += threads) sum += x[row * columns + i];
  sum = simd_sum(sum);
  if (lane == 0) partial[simdgroup] = sum;
#ifndef FORGOTTEN
  threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
  if (t == 0) {
    for (uint i = 1; i < threads / 32; i++) sum += partial[i];
    y[row] = sum;
  }
}
