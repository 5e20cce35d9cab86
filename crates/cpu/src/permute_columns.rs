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
/// If a column is not below `x`'s, or an expert has no order, which the caller has promised.
pub(crate) fn run<T: Pod + Send + Sync>(backend: &CpuBackend, op: PermuteColumns<'_, Memory>) {
    let (cols, top_k) = (op.x.cols(), op.top_k());
    let pairs = op.rows * top_k;
    let (x, orders): (&[T], &[u32]) = (elements(op.x, op.rows), elements(op.order, op.order.rows()));
    let ids: Option<&[u32]> = op.ids.map(|ids| elements(ids, op.rows));
    let out: &mut [T] = elements_mut(op.out, pairs);
    for_rows::<_, ()>(&backend.pool, pairs, out, &mut [], |first, out, _| {
        for (to, pair) in out.chunks_exact_mut(cols).zip(first..) {
            let from = &x[pair / top_k * cols..][..cols];
            let order = &orders[ids.map_or(0, |ids| ids[pair] as usize) * cols..][..cols];
            to.iter_mut().zip(order).for_each(|(to, &column)| *to = from[column as usize]);
        }
    });
}
