//! Passes over a row of logits in loops that the compiler vectorises, with one order of operations on every machine.

/// Lanes of a pass: enough for the widest vectors in use.
const LANES: usize = 16;

/// Elements of a part of [`sum`].
pub(super) const PART: usize = 512;

/// The smallest index of the largest value, and the value. NaN counts as smallest.
pub(super) fn argmax(values: &[f32]) -> (u32, f32) {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (max, &v) in lanes.iter_mut().zip(chunk) {
            *max = if v > *max { v } else { *max };
        }
    }
    let max = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |max, &v| if v > max { v } else { max });
    let index = values.iter().position(|&v| v == max).unwrap_or(0);
    (index as u32, max)
}

/// `e^x` for `x <= 0`, within 2 units in the last place; 0 from -87 down.
///
/// The polynomial is that of Cephes' `expf`. It is here because the system's `expf` is slower by a multiple and differs between
/// systems, and with it sampled tokens would.
pub(super) fn exp(x: f32) -> f32 {
    // Adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LOWEST: f32 = -87.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let in_range = x > LOWEST;
    let clamped = if in_range { x } else { LOWEST };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * LN_2_HIGH - n * LN_2_LOW;
    let mut p = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + coefficient;
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    let y = (p * r * r + r + 1.0) * f32::from_bits(exponent);
    if in_range { y } else { 0.0 }
}

/// The sum of at most [`PART`] values, in an order fixed by their number.
pub(super) fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0f64; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, &v) in lanes.iter_mut().zip(chunk) {
            *sum += f64::from(v);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&v| f64::from(v)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        for i in 0..87_000 {
            let x = -(i as f32) / 1000.0;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}): {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-87.0), 0.0);
        assert_eq!(exp(-88.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn argmax_takes_the_first_of_equals_and_skips_nan() {
        let mut values = vec![0.0; 100];
        values[3] = f32::NAN;
        values[40] = 2.0;
        values[97] = 2.0;
        assert_eq!(argmax(&values), (40, 2.0));
        assert_eq!(argmax(&[f32::NAN, -1.0]), (1, -1.0));
    }
}
