//! Routing: the softmax of a token's router logits and its largest entries.

use vllm_apple_ops::{TopkSoftmax, exp};

use crate::CpuBackend;
use crate::memory::Memory;
use crate::memory::{elements, elements_mut};
use crate::rows::for_rows;
use crate::simd::{Kernel, LANES, Simd, load_padded};

pub(crate) fn run(backend: &CpuBackend, op: TopkSoftmax<'_, Memory>) {
    let experts = op.logits.cols();
    let logits = elements(op.logits, op.rows);
    let ids: &mut [u32] = elements_mut(op.ids, op.rows);
    let weights: &mut [f32] = elements_mut(op.weights, op.rows);
    let top_k = ids.len() / op.rows.max(1);
    for_rows(&backend.pool, op.rows, ids, weights, |first, ids, weights| {
        let logits = &logits[first * experts..];
        backend.dispatch.run(Rows { logits, experts, top_k, renormalize: op.renormalize, ids, weights });
    });
}

struct Rows<'a> {
    logits: &'a [f32],
    experts: usize,
    top_k: usize,
    renormalize: bool,
    ids: &'a mut [u32],
    weights: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let chosen = self.ids.chunks_exact_mut(self.top_k).zip(self.weights.chunks_exact_mut(self.top_k));
        for (logits, (ids, weights)) in self.logits.chunks_exact(self.experts).zip(chosen) {
            choose(logits, ids);
            let max = logits[ids[0] as usize];
            for (weight, &id) in weights.iter_mut().zip(&*ids) {
                *weight = exp(logits[id as usize] - max);
            }
            let divisor = if self.renormalize { weights.iter().sum() } else { sum_of_exp(s, logits, max) };
            for weight in weights {
                *weight /= divisor;
            }
        }
    }
}

/// The `ids.len()` largest logits, largest first, ties to the smaller id. In a total order, so that even NaN gives valid ids.
#[inline(always)]
fn choose(logits: &[f32], ids: &mut [u32]) {
    let before = |a: usize, b: usize| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)).is_lt();
    for rank in 0..ids.len() {
        let mut best = None;
        for id in 0..logits.len() {
            let free = rank == 0 || before(ids[rank - 1] as usize, id);
            if free && best.is_none_or(|best| before(id, best)) {
                best = Some(id);
            }
        }
        ids[rank] = best.expect("fewer choices than experts") as u32;
    }
}

#[inline(always)]
fn sum_of_exp<S: Simd>(s: S, logits: &[f32], max: f32) -> f32 {
    let mut sum = s.splat(0.0);
    for logits in logits.chunks(LANES) {
        let mut padded = [f32::MIN; LANES];
        padded[..logits.len()].copy_from_slice(logits);
        sum = s.add(sum, s.exp(s.sub(load_padded(s, &padded), s.splat(max))));
    }
    s.sum(sum)
}
