//! Log-probabilities of a row: log-softmax of the raw logits, in one order of additions.

use super::{math, top};
use vllm_apple_executor::TokenLogprobs;

/// The token's log-probability, its rank, and the `num_top` most likely tokens. `selected` is working memory.
pub(super) fn compute(logits: &[f32], token_id: u32, num_top: usize, selected: &mut Vec<(f32, u32)>) -> TokenLogprobs {
    let (_, max) = math::argmax(logits);
    let mut weights = [0f32; math::PART];
    let mut total = 0f64;
    for part in logits.chunks(math::PART) {
        let weights = &mut weights[..part.len()];
        for (w, &logit) in weights.iter_mut().zip(part) {
            *w = math::exp(logit - max);
        }
        total += math::sum(weights);
    }
    let log_total = f64::from(max) + total.ln();
    let logprob = |logit: f32| (f64::from(logit) - log_total) as f32;
    let own = logits[token_id as usize];
    let (before, after) = logits.split_at(token_id as usize);
    let better = before.iter().filter(|&&l| l >= own).count() + after.iter().filter(|&&l| l > own).count();
    top::select(logits, num_top, f32::NEG_INFINITY, selected);
    TokenLogprobs {
        logprob: logprob(own),
        rank: better as u32 + 1,
        top: selected.iter().map(|&(logit, id)| (id, logprob(logit))).collect(),
    }
}
