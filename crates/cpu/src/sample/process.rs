//! What changes logits before a token is picked: masks, and the adjustments that biases and penalties have become.

use vllm_apple_ops::sample::Adjustment;

/// The row after all changes, in `processed`: or `raw` itself if there are none.
#[inline(always)]
pub(super) fn process<'a>(
    processed: &'a mut [f32],
    raw: &'a [f32],
    mask: Option<&[u32]>,
    adjustments: &[[u32; Adjustment::WORDS]],
    repetition_penalty: f32,
) -> &'a [f32] {
    if mask.is_none() && adjustments.is_empty() {
        return raw;
    }
    match mask {
        Some(mask) => copy_allowed(processed, raw, mask),
        None => processed.copy_from_slice(raw),
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
fn copy_allowed(processed: &mut [f32], raw: &[f32], mask: &[u32]) {
    for ((processed, raw), &bits) in processed.chunks_mut(32).zip(raw.chunks(32)).zip(mask) {
        for (bit, (processed, &raw)) in processed.iter_mut().zip(raw).enumerate() {
            *processed = if bits >> bit & 1 != 0 { raw } else { f32::NEG_INFINITY };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 40] = [1.5; 40];

    #[test]
    fn a_row_without_changes_is_not_copied() {
        let mut memory = [0.0; 40];
        assert_eq!(process(&mut memory, &LOGITS, None, &[], 2.0).as_ptr(), LOGITS.as_ptr());
    }

    #[test]
    fn masks_come_before_adjustments() {
        let mut memory = [0.0; 40];
        let adjust = |token, bias| Adjustment { token, seen: true, bias, subtract: 0.25 }.words();
        let changes = [adjust(1, 3.0), adjust(33, 0.5), adjust(34, f32::NEG_INFINITY), adjust(40, 1.0)];
        let got = process(&mut memory, &LOGITS, Some(&[1 << 31, 0b1110]), &changes, 2.0);
        for (token, &logit) in got.iter().enumerate() {
            let expected = match token {
                31 | 35 => 1.5,
                33 => 0.75,
                _ => f32::NEG_INFINITY,
            };
            assert_eq!(logit, expected, "{token}");
        }
        let got = process(&mut memory, &LOGITS, None, &changes[..1], 2.0);
        assert_eq!((got[0], got[1]), (1.5, 2.0));
        // A mask alone is a change.
        assert_eq!(process(&mut memory, &LOGITS, Some(&[1, 0]), &[], 2.0)[..2], [1.5, f32::NEG_INFINITY]);
    }
}
