//! Log-probabilities of a row: log-softmax of the logits that its mask leaves.

use vllm_apple_ops::sample::{FRACTION_BITS, weight};

use super::{passes, top};

/// The token's log-probability and rank. The `num_top` most likely tokens go to `out`. `selected` is working memory.
#[inline(always)]
pub(super) fn compute(
    logits: &[f32],
    token: u32,
    num_top: usize,
    selected: &mut Vec<(f32, u32)>,
    out: &mut [u32],
) -> (f32, u32) {
    let (_, max) = passes::argmax(logits);
    let mut weights = [0f32; passes::PART];
    let mut total = 0;
    for part in logits.chunks(passes::PART) {
        let weights = &mut weights[..part.len()];
        for (w, &logit) in weights.iter_mut().zip(part) {
            *w = weight(logit, max, 1.0);
        }
        total += passes::sum_units(weights);
    }
    let log_total = (total as f64 / (1u64 << FRACTION_BITS) as f64).ln();
    let logprob = |logit: f32| (f64::from(logit) - f64::from(max) - log_total) as f32;
    let own = logits[token as usize];
    top::select(logits, num_top, f32::NEG_INFINITY, selected);
    let ids = selected.iter().map(|&(logit, id)| [id, logprob(logit).to_bits()]);
    for (entry, words) in
        out.as_chunks_mut().0.iter_mut().zip(ids.chain(std::iter::repeat([u32::MAX, 0]))).take(num_top)
    {
        *entry = words;
    }
    (logprob(own), rank(logits, token))
}

/// One more than the tokens before it: those with a larger logit, and those with the same and a smaller id.
#[inline(always)]
fn rank(logits: &[f32], token: u32) -> u32 {
    let own = logits[token as usize];
    let (before, after) = logits.split_at(token as usize);
    let better = before.iter().filter(|&&l| l >= own).count() + after.iter().filter(|&&l| l > own).count();
    better as u32 + 1
}
