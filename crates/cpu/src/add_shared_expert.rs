//! Adds the shared expert behind each token's gate.

use vllm_apple_ops::{AddSharedExpert, exp};

use crate::CpuBackend;
use crate::memory::Memory;
use crate::memory::{elements, elements_mut};
use crate::rows::for_rows;
use crate::simd::{Kernel, LANES, Simd, load_padded, store_part};

pub(crate) fn run(backend: &CpuBackend, op: AddSharedExpert<'_, Memory>) {
    let hidden = op.out.cols();
    let (x, gate) = (elements(op.x, op.rows), elements(op.gate, op.rows));
    let out: &mut [f32] = elements_mut(op.out, op.rows);
    for_rows::<_, ()>(&backend.pool, op.rows, out, &mut [], |first, out, _| {
        backend.dispatch.run(Rows { x: &x[first * hidden..], gate: &gate[first..], hidden, out });
    });
}

struct Rows<'a> {
    x: &'a [f32],
    gate: &'a [f32],
    hidden: usize,
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.out.chunks_exact_mut(self.hidden).zip(self.x.chunks_exact(self.hidden));
        for ((out, x), &gate) in rows.zip(self.gate) {
            // Of what is no number, [`exp`] is 0.
            let sigmoid = s.splat(if gate.is_nan() { gate } else { 1.0 / (1.0 + exp(-gate)) });
            for (out, x) in out.chunks_mut(LANES).zip(x.chunks(LANES)) {
                let sum = s.mul_add(load_padded(s, x), sigmoid, load_padded(s, out));
                store_part(s, sum, out);
            }
        }
    }
}
