//! Copies of picked rows.

use vllm_apple_ops::GatherRows;

use crate::CpuBackend;
use crate::memory::Memory;
use crate::memory::elements;
use crate::rows::for_rows;

/// # Panics
/// If an index is not below `x`'s rows, which the caller has promised.
pub(crate) fn run(backend: &CpuBackend, op: GatherRows<'_, Memory>) {
    let row_bytes = op.x.cols() * op.x.dtype().size();
    let x = op.x.memory().bytes();
    let indices: &[u32] = elements(op.indices, 1);
    let out = &mut op.out.memory_mut().bytes_mut()[..op.rows * row_bytes];
    for_rows::<_, ()>(&backend.pool, op.rows, out, &mut [], |first, out, _| {
        for (row, &index) in out.chunks_exact_mut(row_bytes).zip(&indices[first..]) {
            row.copy_from_slice(&x[index as usize * row_bytes..][..row_bytes]);
        }
    });
}
