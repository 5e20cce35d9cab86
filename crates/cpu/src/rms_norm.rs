//! RMSNorm of rows, and the row kernel that `add_rms_norm` and `qk_norm` share.

use vllm_apple_ops::RmsNorm;

use crate::CpuBackend;
use crate::memory::Memory;
use crate::memory::{elements, elements_mut};
use crate::rows::for_rows;
use crate::simd::{Element, Kernel, LANES, Simd, load_padded, store_part};

/// Sums of squares that are kept apart, vector `i` of a row going to sum `i % SUMS`: enough to hide the latency of additions.
const SUMS: usize = 4;

pub(crate) fn run<T: Element>(backend: &CpuBackend, op: RmsNorm<'_, Memory>) {
    let hidden = op.weight.cols();
    let (x, weight) = (elements(op.x, op.rows), elements(op.weight, 1));
    let out: &mut [T] = elements_mut(op.out, op.rows);
    for_rows::<_, ()>(&backend.pool, op.rows, out, &mut [], |first, out, _| {
        let x = &x[first * hidden..][..out.len()];
        backend.dispatch.run(Rows { x, weight, eps: op.eps, out });
    });
}

struct Rows<'a, T> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [T],
}

impl<T: Element> Kernel for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let hidden = self.weight.len();
        for (x, out) in self.x.chunks_exact(hidden).zip(self.out.chunks_exact_mut(hidden)) {
            normalize(s, x, self.weight, self.eps, out);
        }
    }
}

/// `out = x / sqrt(mean(x^2) + eps) * weight`.
#[inline(always)]
pub(crate) fn normalize<S: Simd, T: Element>(s: S, x: &[f32], weight: &[f32], eps: f32, out: &mut [T]) {
    let scale = s.splat(inverse_rms(s, x, eps));
    let vectors = x.chunks(LANES).zip(weight.chunks(LANES)).zip(out.chunks_mut(LANES));
    for ((x, weight), out) in vectors {
        let scaled = s.mul(load_padded(s, x), scale);
        store_part(s, s.mul(scaled, load_padded(s, weight)), out);
    }
}

/// As [`normalize`], with the same bits, in place.
#[inline(always)]
pub(crate) fn normalize_in_place<S: Simd>(s: S, x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = s.splat(inverse_rms(s, x, eps));
    for (x, weight) in x.chunks_mut(LANES).zip(weight.chunks(LANES)) {
        let scaled = s.mul(load_padded(s, x), scale);
        store_part(s, s.mul(scaled, load_padded(s, weight)), x);
    }
}

#[inline(always)]
fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let mut sums = [s.splat(0.0); SUMS];
    for x in x.chunks(SUMS * LANES) {
        for (sum, x) in sums.iter_mut().zip(x.chunks(LANES)) {
            let x = load_padded(s, x);
            *sum = s.mul_add(x, x, *sum);
        }
    }
    let sum = s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]));
    1.0 / (s.sum(sum) / x.len() as f32 + eps).sqrt()
}
