//! The gated activation, elementwise.

use vllm_apple_ops::SiluMul;

use crate::CpuBackend;
use crate::memory::Memory;
use crate::memory::{elements, elements_mut};
use crate::rows::for_rows;
use crate::simd::{Element, Kernel, LANES, Simd, exp, load_padded, store_part};

pub(crate) fn run<T: Element>(backend: &CpuBackend, op: SiluMul<'_, Memory>) {
    let cols = op.out.cols();
    let gate_up = elements(op.gate_up, op.rows);
    let out: &mut [T] = elements_mut(op.out, op.rows);
    for_rows::<_, ()>(&backend.pool, op.rows, out, &mut [], |first, out, _| {
        let gate_up = &gate_up[first * 2 * cols..][..2 * out.len()];
        backend.dispatch.run(Rows { gate_up, cols, out });
    });
}

struct Rows<'a, T> {
    gate_up: &'a [f32],
    cols: usize,
    out: &'a mut [T],
}

impl<T: Element> Kernel for Rows<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let one = s.splat(1.0);
        for (row, out) in self.gate_up.chunks_exact(2 * self.cols).zip(self.out.chunks_exact_mut(self.cols)) {
            let (gate, up) = row.split_at(self.cols);
            for ((gate, up), out) in gate.chunks(LANES).zip(up.chunks(LANES)).zip(out.chunks_mut(LANES)) {
                let (gate, up) = (load_padded(s, gate), load_padded(s, up));
                let denominator = s.add(one, exp(s, s.sub(s.splat(0.0), gate)));
                store_part(s, s.mul(s.div(gate, denominator), up), out);
            }
        }
    }
}
