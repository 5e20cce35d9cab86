//! The residual addition and the norm after it: a row is added to and normalised while it is in the cache.

use vllm_apple_ops::AddRmsNorm;

use crate::CpuBackend;
use crate::memory::Memory;
use crate::memory::{elements, elements_mut};
use crate::rms_norm::normalize;
use crate::rows::for_rows;
use crate::simd::{Element, Kernel, LANES, Simd, load_padded, store_part};

pub(crate) fn run<T: Element>(backend: &CpuBackend, op: AddRmsNorm<'_, Memory>) {
    let hidden = op.weight.cols();
    let (delta, weight) = (elements(op.delta, op.rows), elements(op.weight, 1));
    let residual: &mut [f32] = elements_mut(op.residual, op.rows);
    let out: &mut [T] = elements_mut(op.out, op.rows);
    for_rows(&backend.pool, op.rows, residual, out, |first, residual, out| {
        let delta = &delta[first * hidden..][..out.len()];
        backend.dispatch.run(Rows { residual, delta, weight, eps: op.eps, out });
    });
}

struct Rows<'a, T> {
    residual: &'a mut [f32],
    delta: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [T],
}

impl<T: Element> Kernel for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let hidden = self.weight.len();
        let rows = self.residual.chunks_exact_mut(hidden).zip(self.delta.chunks_exact(hidden));
        for ((residual, delta), out) in rows.zip(self.out.chunks_exact_mut(hidden)) {
            for (r, d) in residual.chunks_mut(LANES).zip(delta.chunks(LANES)) {
                let sum = s.add(load_padded(s, r), load_padded(s, d));
                store_part(s, sum, r);
            }
            normalize(s, residual, self.weight, self.eps, out);
        }
    }
}
