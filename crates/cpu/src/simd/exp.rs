//! The exponential function in f32, the same polynomial on every instruction set.

use super::Simd;

/// Below this the result is 0 instead of a number near or below the smallest normal one.
const ZERO_BELOW: f32 = -87.0;
/// Above this the result stays at about 3.3e38 instead of becoming infinite.
const LARGEST: f32 = 88.7;
/// Adding it rounds to an integer, which is then in the low bits.
const ROUND: f32 = 12_582_912.0;
/// ln 2 as a number of few bits, whose product with an integer is exact, and the rest (Cody and Waite 1980).
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// `(e^r - 1 - r) / r^2` on `|r| <= ln(2) / 2`, highest power first (Moshier, Cephes, `expf`).
const POLYNOMIAL: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// `e^x` with an error of at most 2 units in the last place for `-87 <= x <= 88.7`; exactly 1 at 0 and exactly 0 below -87.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let clamped = s.max(s.min(x, s.splat(LARGEST)), s.splat(ZERO_BELOW));
    let shifted = s.mul_add(clamped, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let n = s.sub(shifted, s.splat(ROUND));
    let r = s.mul_add(n, s.splat(-LN2_HIGH), clamped);
    let r = s.mul_add(n, s.splat(-LN2_LOW), r);
    let mut p = s.splat(POLYNOMIAL[0]);
    for &c in &POLYNOMIAL[1..] {
        p = s.mul_add(p, r, s.splat(c));
    }
    let p = s.add(s.mul_add(s.mul(r, r), p, r), s.splat(1.0));
    s.zero_below(s.add_exponent(p, shifted), x, s.splat(ZERO_BELOW))
}

/// [`exp`] of one number.
#[inline(always)]
pub(crate) fn exp_scalar<S: Simd>(s: S, x: f32) -> f32 {
    s.to_array(exp(s, s.splat(x)))[0]
}
