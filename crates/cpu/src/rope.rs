//! Rotates query heads in place, with the kernel of `rope_kv_write`.

use vllm_apple_ops::{Result, Rope};

use crate::CpuBackend;
use crate::memory::Memory;
use crate::memory::{elements, elements_mut};
use crate::rope_kv_write::{check, rotate};
use crate::rows::for_rows;
use crate::simd::{Kernel, Simd};

pub(crate) fn run(backend: &CpuBackend, op: Rope<'_, Memory>) -> Result<()> {
    let positions: &[u32] = &elements(op.positions, 1)[..op.rows];
    check(vllm_apple_ops::rope::NAME, "positions", positions, op.table.cos.rows())?;
    let (cos, sin) = (elements(&op.table.cos, op.table.cos.rows()), elements(&op.table.sin, op.table.cos.rows()));
    let (half, width) = (op.table.cos.cols(), op.q.cols());
    let q: &mut [f32] = elements_mut(op.q, op.rows);
    for_rows::<_, ()>(&backend.pool, op.rows, q, &mut [], |first, q, _| {
        backend.dispatch.run(Rows { q, width, half, positions: &positions[first..], cos, sin });
    });
    Ok(())
}

struct Rows<'a> {
    q: &'a mut [f32],
    /// Elements of a row.
    width: usize,
    /// Half the elements of a head.
    half: usize,
    positions: &'a [u32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (row, &position) in self.q.chunks_exact_mut(self.width).zip(self.positions) {
            let at = position as usize * self.half;
            let (cos, sin) = (&self.cos[at..][..self.half], &self.sin[at..][..self.half]);
            for head in row.chunks_exact_mut(2 * self.half) {
                rotate(s, head, cos, sin);
            }
        }
    }
}
