//! The exponential function in f32, the same to the last bit on every device: each fused multiply-add is rounded once, everywhere.
//! Metal's kernels spell it out once more, in `common.metal`.
//!
//! The system's is slower by a multiple and differs between systems, and with it logits and sampled tokens would.

/// Below this the result is 0 instead of a number near or below the smallest normal one.
const LOWEST: f32 = -87.0;
/// Above this the result stays at about 3.3e38 instead of becoming infinite.
const LARGEST: f32 = 88.7;
/// Adding it rounds to an integer, which is then in the low bits.
const ROUND: f32 = 12_582_912.0;
/// ln 2 as a number of few bits, whose product with an integer is exact, and the rest (Cody and Waite 1980).
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// `(e^r - 1 - r) / r^2` on `|r| <= ln(2) / 2`, highest power first (Moshier, Cephes, `expf`).
const POLYNOMIAL: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// `e^x` with an error of at most 2 units in the last place for `-87 <= x <= 88.7`; exactly 1 at 0, exactly 0 below -87 and of NaN.
/// Without branches, and without calls where the instruction set has a fused multiply-add, so that loops over it become vectors.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let clamped = if x < LARGEST { x } else { LARGEST };
    let clamped = if clamped > LOWEST { clamped } else { LOWEST };
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = (-n).mul_add(LN2_LOW, (-n).mul_add(LN2_HIGH, clamped));
    let mut p = POLYNOMIAL[0];
    for coefficient in &POLYNOMIAL[1..] {
        p = p.mul_add(r, *coefficient);
    }
    let y = p.mul_add(r * r, r) + 1.0;
    // Adds `n` to the exponent.
    let scaled = f32::from_bits(y.to_bits().wrapping_add(shifted.to_bits() << 23));
    if x >= LOWEST { scaled } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_within_two_units_in_the_last_place() {
        let mut worst = 0.0f64;
        for bits in (0..0x42b1_0000u32).step_by(97) {
            let magnitude = f32::from_bits(bits);
            for x in [magnitude.min(88.0), -magnitude.min(87.0)] {
                let exact = f64::from(x).exp();
                let unit = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
                worst = worst.max((f64::from(exp(x)) - exact).abs() / unit);
            }
        }
        assert!(worst <= 2.0, "{worst} units");
    }

    #[test]
    fn at_its_edges() {
        assert_eq!([exp(0.0), exp(-0.0)], [1.0, 1.0]);
        assert!(exp(-87.0) > f32::MIN_POSITIVE);
        assert_eq!([exp(-87.01), exp(f32::MIN), exp(f32::NEG_INFINITY), exp(f32::NAN)], [0.0; 4]);
        assert!(exp(f32::MAX).is_finite() && exp(f32::MAX) > 3e38);
        assert_eq!(exp(f32::INFINITY), exp(f32::MAX));
    }
}
