//! The arithmetic that decides which token is picked, the same to the last bit on every backend. Metal's kernel spells it out once more.

use crate::{exp, philox};

/// Adding it to a number of at most 2^22 rounds that to an integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;

/// A weight of 1 is two to this power.
pub const FRACTION_BITS: u32 = 40;

/// What a token weighs beside one with the largest logit, which weighs 1.
#[inline(always)]
pub fn weight(logit: f32, max: f32, scale: f32) -> f32 {
    exp((logit - max) * scale)
}

/// The [`units`] of a weight in two integers, the first worth 2^23 of the second and at most 2^17, the second within 2^22 of 0: loops over
/// many weights can sum each in 32 bits.
#[inline(always)]
pub fn unit_parts(weight: f32) -> [i32; 2] {
    let integer = |shifted: f32| shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let scaled = weight * (1 << 17) as f32;
    let high = scaled + ROUND;
    // Exact: both are multiples of the smaller one's last place.
    let rest = scaled - (high - ROUND);
    let low = rest * (1 << 23) as f32 + ROUND;
    [integer(high), integer(low)]
}

/// What sums of [`unit_parts`] are together.
#[inline(always)]
pub fn units_of_parts([high, low]: [i64; 2]) -> u64 {
    ((high << 23) + low) as u64
}

/// A weight from 0 to 1 as a multiple of 2^-40, rounded to nearest: so a token that weighs less than 2^-41 of the best is never picked.
#[inline(always)]
pub fn units(weight: f32) -> u64 {
    units_of_parts(unit_parts(weight).map(i64::from))
}

/// How many of `total` units are `top_p` of them, rounded up; at least 1. `top_p` is below 1, and counts in multiples of 2^-32.
pub fn share(top_p: f32, total: u64) -> u64 {
    let part = (top_p * 2f32.powi(32)) as u32;
    let wanted = (u128::from(part) * u128::from(total)).div_ceil(1 << 32);
    wanted.max(1) as u64
}

/// A number from 0 to below `total`, for the request's seed and the position in its output.
pub fn draw_target(seed: u64, position: u64, total: u64) -> u64 {
    ((u128::from(philox::bits(seed, position)) * u128::from(total)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_the_exponential_of_the_scaled_distance() {
        assert_eq!(weight(3.0, 5.0, 0.5), exp(-1.0));
        assert_eq!(
            [weight(5.0, 5.0, 7.0), weight(f32::NEG_INFINITY, 5.0, 1.0), weight(f32::NAN, 5.0, 1.0)],
            [1.0, 0.0, 0.0]
        );
    }

    #[test]
    fn units_are_weights_rounded_to_nearest() {
        for i in 0..200_000 {
            let weight = exp(-(i as f32) / 2_300.0);
            let exact = f64::from(weight) * (1u64 << FRACTION_BITS) as f64;
            assert_eq!(units(weight), exact.round_ties_even() as u64, "{weight:e}");
            let [high, low] = unit_parts(weight);
            assert!((0..=1 << 17).contains(&high) && low.abs() <= 1 << 22, "{weight:e}: {high} {low}");
        }
        assert_eq!((units(1.0), units(0.0)), (1 << FRACTION_BITS, 0));
        assert_eq!((units(2f32.powi(-40)), units(2f32.powi(-42))), (1, 0));
    }

    #[test]
    fn a_share_is_exact_and_never_nothing() {
        assert_eq!(share(0.5, 4 << 40), 2 << 40);
        assert_eq!(share(0.5, 5), 3);
        assert_eq!(share(0.75, 1 << 63), 3 << 61);
        assert_eq!(share(1e-30, 1 << 40), 1);
        assert_eq!(share(1.0 - f32::EPSILON / 2.0, 1 << 24), (1 << 24) - 1);
    }

    #[test]
    fn targets_are_below_their_total_and_spread_over_it() {
        for total in [1, 2, 1000, 1 << 40, u64::MAX] {
            let targets: Vec<u64> = (0..500).map(|position| draw_target(7, position, total)).collect();
            assert!(targets.iter().all(|&target| target < total));
            let mean = targets.iter().map(|&t| t as f64 / total as f64).sum::<f64>() / 500.0;
            assert!(total < 1000 || (mean - 0.5).abs() < 0.06, "{total}: {mean}");
        }
        assert_ne!(draw_target(7, 0, 1 << 40), draw_target(8, 0, 1 << 40));
    }
}
