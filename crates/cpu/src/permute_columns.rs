//! Columns in another order, bits as they are.

use bytemuck::Pod;
use vllm_apple_ops::PermuteColumns;

use crate::CpuBackend;
use crate::memory::Memory;
use crate::memory::{elements, elements_mut};
use crate::rows::for_rows;

/// `T` is of the size of an element.
///
/// # Panics
/// If a column is not below `x`'s, which the caller has promised.
pub(crate) fn run<T: Pod + Send + Sync>(backend: &CpuBackend, op: PermuteColumns<'_, Memory>) {
    let cols = op.x.cols();
    let (x, order): (&[T], &[u32]) = (elements(op.x, op.rows), elements(op.order, 1));
    let out: &mut [T] = elements_mut(op.out, op.rows);
    for_rows::<_, ()>(&backend.pool, op.rows, out, &mut [], |first, out, _| {
        for (to, from) in out.chunks_exact_mut(cols).zip(x[first * cols..].chunks_exact(cols)) {
            to.iter_mut().zip(order).for_each(|(to, &column)| *to = from[column as usize]);
        }
    });
}
