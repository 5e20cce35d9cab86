//! Two rows by two outputs at a time, whatever is multiplied.

use std::arch::aarch64::*;

/// Two pairs of bf16, or twice four bytes, of row number `row` and of the next one, or nothing if there is none.
///
/// # Safety
/// The machine must have Advanced SIMD.
#[inline(always)]
pub(super) unsafe fn two_rows<const ROWS: usize>(x: [&[u32; ROWS]; 2], row: usize) -> uint32x4_t {
    // SAFETY: the caller vouches for Advanced SIMD; as many pairs are read as there are.
    unsafe {
        if row + 2 > ROWS {
            return vdupq_n_u32(0);
        }
        let pairs = |x: &[u32; ROWS]| vcombine_u32(vld1_u32(x[row..row + 2].as_ptr()), vdup_n_u32(0));
        vzip1q_u32(pairs(x[0]), pairs(x[1]))
    }
}

/// What [`Simd::dot_bf16_rows`](crate::simd::Simd::dot_bf16_rows) and [`Simd::dot_bytes_rows`](crate::simd::Simd::dot_bytes_rows) do with register `i` of vector `v`, whose weights are given: by `matrices` two rows by two
/// outputs, and by `dot` the last of an odd number of rows.
///
/// # Safety
/// The machine must have Advanced SIMD.
#[inline(always)]
pub(super) unsafe fn dot_four_outputs<T: Copy, const VECTORS: usize, const ROWS: usize>(
    sums: &mut [[[T; 4]; VECTORS]; ROWS],
    [v, i]: [usize; 2],
    weights: [uint32x4_t; 2],
    rows: [uint32x4_t; 3],
    last: [&u32; 2],
    matrices: impl Fn(T, uint32x4_t, uint32x4_t) -> T,
    dot: impl Fn(T, uint32x4_t, uint32x4_t) -> T,
) {
    // SAFETY: the caller vouches for it.
    unsafe {
        let outputs = [vzip1q_u32(weights[0], weights[1]), vzip2q_u32(weights[0], weights[1])];
        if const { ROWS >= 2 } {
            sums[0][v][i] = matrices(sums[0][v][i], rows[0], outputs[0]);
            sums[1][v][i] = matrices(sums[1][v][i], rows[0], outputs[1]);
        }
        if const { ROWS >= 4 } {
            sums[2][v][i] = matrices(sums[2][v][i], rows[1], outputs[0]);
            sums[3][v][i] = matrices(sums[3][v][i], rows[1], outputs[1]);
        }
        if const { ROWS >= 6 } {
            sums[4][v][i] = matrices(sums[4][v][i], rows[2], outputs[0]);
            sums[5][v][i] = matrices(sums[5][v][i], rows[2], outputs[1]);
        }
        if const { ROWS % 2 == 1 } {
            let sum = &mut sums[ROWS - 1][v][i];
            for (weights, &x) in weights.into_iter().zip(last) {
                *sum = dot(*sum, weights, vdupq_n_u32(x));
            }
        }
    }
}
