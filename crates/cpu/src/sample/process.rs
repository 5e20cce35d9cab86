//! What changes logits before a token is picked: masks, and the adjustments that biases and penalties have become.

use vllm_apple_ops::sample::Adjustment;

use super::Inputs;

/// The row after all changes, in `processed`: or the row itself if there are none.
#[inline(always)]
pub(super) fn process<'a>(processed: &'a mut [f32], inputs: &Inputs<'a>, repetition_penalty: f32) -> &'a [f32] {
    let Inputs { logits, adjustments, mask, seen } = *inputs;
    if mask.is_none() && seen.is_none() && adjustments.is_empty() {
        return logits;
    }
    match mask {
        Some(mask) => copy_allowed(processed, logits, mask),
        None => processed.copy_from_slice(logits),
    }
    if let Some(seen) = seen {
        penalise(processed, seen, repetition_penalty);
    }
    for words in adjustments {
        let adjustment = Adjustment::of_words(*words);
        if let Some(logit) = processed.get_mut(adjustment.token as usize) {
            *logit = adjustment.apply(*logit, repetition_penalty);
        }
    }
    processed
}

/// What is not allowed becomes negative infinity.
#[inline(always)]
fn copy_allowed(processed: &mut [f32], logits: &[f32], mask: &[u32]) {
    for ((processed, logits), &bits) in processed.chunks_mut(32).zip(logits.chunks(32)).zip(mask) {
        for (bit, (processed, &logit)) in processed.iter_mut().zip(logits).enumerate() {
            *processed = if bits >> bit & 1 != 0 { logit } else { f32::NEG_INFINITY };
        }
    }
}

/// Of 32 tokens, few of which were seen, those are changed one by one; of many, all are computed, as vectors are.
#[inline(always)]
fn penalise(processed: &mut [f32], seen: &[u32], repetition_penalty: f32) {
    let changed = |logit: f32| Adjustment::seen(0).apply(logit, repetition_penalty);
    for (processed, &bits) in processed.chunks_mut(32).zip(seen) {
        let mut left = bits;
        if left.count_ones() > 4 {
            for (bit, logit) in processed.iter_mut().enumerate() {
                *logit = if bits >> bit & 1 != 0 { changed(*logit) } else { *logit };
            }
            continue;
        }
        while left != 0 {
            if let Some(logit) = processed.get_mut(left.trailing_zeros() as usize) {
                *logit = changed(*logit);
            }
            left &= left - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 40] = [1.5; 40];

    fn adjust(token: u32, bias: f32) -> [u32; Adjustment::WORDS] {
        Adjustment { token, seen: true, bias, subtract: 0.25 }.words()
    }

    #[test]
    fn a_row_without_changes_is_not_copied() {
        let inputs = Inputs { logits: &LOGITS, adjustments: &[], mask: None, seen: None };
        assert_eq!(process(&mut [0.0; 40], &inputs, 2.0).as_ptr(), LOGITS.as_ptr());
    }

    #[test]
    fn each_change_alone_is_one() {
        let none = || Inputs { logits: &LOGITS, adjustments: &[], mask: None, seen: None };
        let changed = |inputs: Inputs<'_>| process(&mut [0.0; 40], &inputs, 2.0)[..2].to_vec();
        assert_eq!(changed(Inputs { adjustments: &[adjust(1, 3.0)], ..none() }), [1.5, 2.0]);
        assert_eq!(changed(Inputs { mask: Some(&[1, 0]), ..none() }), [1.5, f32::NEG_INFINITY]);
        assert_eq!(changed(Inputs { seen: Some(&[2, 0]), ..none() }), [1.5, 0.75]);
    }

    #[test]
    fn masks_come_before_what_was_seen_and_adjustments() {
        let changes = [adjust(1, 3.0), adjust(33, 0.5), adjust(34, f32::NEG_INFINITY), adjust(40, 1.0)];
        let (mask, seen) = (Some(&[1 << 31 | 1 << 3, 0b1110][..]), Some(&[0b1100, 0b1000][..]));
        let inputs = Inputs { logits: &LOGITS, adjustments: &changes, mask, seen };
        for (token, &logit) in process(&mut [0.0; 40], &inputs, 2.0).iter().enumerate() {
            let expected = match token {
                31 => 1.5,
                3 | 33 | 35 => 0.75,
                _ => f32::NEG_INFINITY,
            };
            assert_eq!(logit, expected, "{token}");
        }
    }

    #[test]
    fn few_and_many_that_were_seen_are_changed_alike() {
        for bits in [0, 1 << 31, 0b1001_0011, 0b11_1001_0011, u32::MAX] {
            let inputs = Inputs { logits: &LOGITS, adjustments: &[], mask: None, seen: Some(&[bits, u32::MAX]) };
            for (token, &logit) in process(&mut [0.0; 40], &inputs, 2.0).iter().enumerate() {
                let seen = token >= 32 || bits >> token & 1 == 1;
                assert_eq!(logit, if seen { 0.75 } else { 1.5 }, "{bits:b} {token}");
            }
        }
    }
}
