//! Shares rows of tensors among threads. It knows no op.

use crate::pack::SendPtr;
use vllm_apple_ops::pool::Pool;

/// Elements that are worth a thread's attention: a microsecond of work.
pub(crate) const GRAIN: usize = 4 * 1024;

/// Calls `f(first_row, rows_of_a, rows_of_b)` for ranges of rows that together are all rows of `a` and `b`, each `rows` long.
/// `b` may be empty.
pub(crate) fn for_rows<A: Send, B: Send>(
    pool: &Pool,
    rows: usize,
    a: &mut [A],
    b: &mut [B],
    f: impl Fn(usize, &mut [A], &mut [B]) + Sync,
) {
    if rows == 0 {
        return;
    }
    let (a_cols, b_cols) = (a.len() / rows, b.len() / rows);
    let grain = (GRAIN / a_cols.max(b_cols).max(1)).max(1);
    let (a, b) = (SendPtr(a.as_mut_ptr()), SendPtr(b.as_mut_ptr()));
    pool.run_ranges(rows, grain, &|range, _| {
        // SAFETY: ranges do not overlap and end at `rows`, so each call has elements of `a` and `b` of its own.
        let (a, b) = unsafe {
            (
                std::slice::from_raw_parts_mut(a.get().add(range.start * a_cols), range.len() * a_cols),
                std::slice::from_raw_parts_mut(b.get().add(range.start * b_cols), range.len() * b_cols),
            )
        };
        f(range.start, a, b);
    });
}

/// Calls `f(row, thread, row_of_a, row_of_b)` for each row of `a` and `b`, each `rows` long, in any order: for rows that are much work, and
/// not all the same. No two calls of the same thread overlap.
pub(crate) fn for_each_row<A: Send, B: Send>(
    pool: &Pool,
    rows: usize,
    a: &mut [A],
    b: &mut [B],
    f: impl Fn(usize, usize, &mut [A], &mut [B]) + Sync,
) {
    let (a_cols, b_cols) = (a.len() / rows.max(1), b.len() / rows.max(1));
    let (a, b) = (SendPtr(a.as_mut_ptr()), SendPtr(b.as_mut_ptr()));
    pool.run(rows, &|row, thread| {
        // SAFETY: every row comes once and is below `rows`, so each call has elements of `a` and `b` of its own.
        let (a, b) = unsafe {
            (
                std::slice::from_raw_parts_mut(a.get().add(row * a_cols), a_cols),
                std::slice::from_raw_parts_mut(b.get().add(row * b_cols), b_cols),
            )
        };
        f(row, thread, a, b);
    });
}
