//! Passes over a row of logits in loops that the compiler vectorises.

use vllm_apple_ops::sample::{unit_parts, units_of_parts};

/// Lanes of a pass: enough for the widest vectors in use.
const LANES: usize = 16;

/// Most elements of [`sum_units`].
pub(super) const PART: usize = 512;

/// The smallest index of the largest value, and the value. NaN counts as smallest.
#[inline(always)]
pub(super) fn argmax(values: &[f32]) -> (u32, f32) {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (max, &v) in lanes.iter_mut().zip(chunk) {
            *max = if v > *max { v } else { *max };
        }
    }
    let max = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |max, &v| if v > max { v } else { max });
    (first(values, max), max)
}

/// The index of the first `value`, or 0. By chunks: a search that may end at any element is not vectorised.
#[inline(always)]
fn first(values: &[f32], value: f32) -> u32 {
    const CHUNK: usize = 64;
    for (c, chunk) in values.chunks(CHUNK).enumerate() {
        if chunk.iter().fold(false, |any, &v| any | (v == value)) {
            return (c * CHUNK + chunk.iter().position(|&v| v == value).unwrap_or(0)) as u32;
        }
    }
    0
}

/// The sum of the units of at most [`PART`] weights.
#[inline(always)]
pub(super) fn sum_units(weights: &[f32]) -> u64 {
    assert!(weights.len() <= PART, "a lane's parts fit 32 bits");
    let (mut highs, mut lows) = ([0i32; LANES], [0i32; LANES]);
    let (chunks, rest) = weights.as_chunks::<LANES>();
    for chunk in chunks {
        for ((high_sum, low_sum), &weight) in highs.iter_mut().zip(&mut lows).zip(chunk) {
            let [high, low] = unit_parts(weight);
            *high_sum += high;
            *low_sum += low;
        }
    }
    let sum = |lanes: [i32; LANES]| lanes.iter().map(|&lane| i64::from(lane)).sum::<i64>();
    let rest: u64 = rest.iter().map(|&weight| units_of_parts(unit_parts(weight).map(i64::from))).sum();
    units_of_parts([sum(highs), sum(lows)]) + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_apple_ops::{exp, sample::units};

    #[test]
    fn argmax_takes_the_first_of_equals_and_skips_nan() {
        let mut values = vec![0.0; 200];
        values[3] = f32::NAN;
        values[140] = 2.0;
        values[197] = 2.0;
        assert_eq!(argmax(&values), (140, 2.0));
        values[199] = 3.0;
        assert_eq!(argmax(&values), (199, 3.0));
        assert_eq!(argmax(&[f32::NAN, -1.0]), (1, -1.0));
        assert_eq!(argmax(&[f32::NAN; 100]), (0, f32::NEG_INFINITY));
    }

    #[test]
    fn sums_of_units_are_exact() {
        let weights: Vec<f32> = (0..PART).map(|i| exp(-(i as f32) * 0.061)).collect();
        for len in [0, 1, 15, 16, 17, 100, PART] {
            let exact: u64 = weights[..len].iter().map(|&w| units(w)).sum();
            assert_eq!(sum_units(&weights[..len]), exact, "{len}");
        }
        assert_eq!(sum_units(&[1.0; PART]), (PART as u64) << 40);
        // The most that the lower parts can be.
        let low = 1.0 - 2f32.powi(-18);
        assert_eq!(sum_units(&[low; PART]), PART as u64 * units(low));
    }
}
