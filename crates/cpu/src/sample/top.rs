//! The largest values of a row, without sorting the row.

use std::cmp::Ordering;

/// Larger values first; of equal ones the smaller id. No value is NaN or -0.
fn descending(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// The most that [`select`] holds at any time; it also never holds more than there are values.
pub(super) fn room(k: usize) -> usize {
    k.saturating_mul(2).max(64)
}

/// Fills `top` with the `k` largest of `values` that are above `floor`, and their indices, largest first.
#[inline(always)]
pub(super) fn select(values: &[f32], k: usize, floor: f32, top: &mut Vec<(f32, u32)>) {
    top.clear();
    if k == 0 {
        return;
    }
    let room = room(k);
    // Only values above it can be among the largest: indices ascend, so an equal one comes too late.
    let mut threshold = floor;
    const CHUNK: usize = 64;
    for (c, chunk) in values.chunks(CHUNK).enumerate() {
        if !chunk.iter().fold(false, |any, &v| any | (v > threshold)) {
            continue;
        }
        for (i, &v) in chunk.iter().enumerate() {
            if v > threshold {
                // Adding 0 makes one of the two zeros.
                top.push((v + 0.0, (c * CHUNK + i) as u32));
            }
            if top.len() >= room {
                top.select_nth_unstable_by(k - 1, descending);
                top.truncate(k);
                threshold = top[k - 1].0;
            }
        }
    }
    top.sort_unstable_by(descending);
    top.truncate(k);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_sorting_everything(values in prop::collection::vec(0u8..40, 0..400), k in 0usize..80) {
            let values: Vec<f32> = values.into_iter().map(f32::from).collect();
            let mut all: Vec<(f32, u32)> = values.iter().copied().zip(0..).filter(|v| v.0 > 2.0).collect();
            all.sort_by(descending);
            all.truncate(k);
            let mut top = Vec::new();
            select(&values, k, 2.0, &mut top);
            prop_assert_eq!(top, all);
        }
    }

    #[test]
    fn zeros_are_equal_and_nan_is_nothing() {
        let mut top = Vec::new();
        select(&[-1.0, -0.0, f32::NAN, 0.0, -0.0], 3, f32::NEG_INFINITY, &mut top);
        assert_eq!(top.iter().map(|t| t.1).collect::<Vec<_>>(), [1, 3, 4]);
    }
}
