//! The weighted sum of a token's experts, `j` ascending in every lane.

use vllm_apple_ops::MoeCombine;

use crate::CpuBackend;
use crate::memory::Memory;
use crate::memory::{elements, elements_mut};
use crate::rows::for_rows;
use crate::simd::{Kernel, LANES, Simd, load_padded, store_part};

pub(crate) fn run(backend: &CpuBackend, op: MoeCombine<'_, Memory>) {
    let (top_k, hidden) = (op.weights.cols(), op.out.cols());
    let (x, weights) = (elements(op.x, op.rows * top_k), elements(op.weights, op.rows));
    let out: &mut [f32] = elements_mut(op.out, op.rows);
    for_rows::<_, ()>(&backend.pool, op.rows, out, &mut [], |first, out, _| {
        let (x, weights) = (&x[first * top_k * hidden..], &weights[first * top_k..]);
        backend.dispatch.run(Rows { x, weights, top_k, hidden, out });
    });
}

struct Rows<'a> {
    x: &'a [f32],
    weights: &'a [f32],
    top_k: usize,
    hidden: usize,
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let pairs = self.x.chunks_exact(self.top_k * self.hidden).zip(self.weights.chunks_exact(self.top_k));
        for (out, (x, weights)) in self.out.chunks_exact_mut(self.hidden).zip(pairs) {
            for (i, out) in out.chunks_mut(LANES).enumerate() {
                let mut sum = s.splat(0.0);
                for (x, &weight) in x.chunks_exact(self.hidden).zip(weights) {
                    let x = load_padded(s, &x[i * LANES..][..out.len()]);
                    sum = s.mul_add(s.splat(weight), x, sum);
                }
                store_part(s, sum, out);
            }
        }
    }
}
