//! [`RmsNorm`] on a GPU: a threadgroup per row.

use vllm_apple_ops::{Result, RmsNorm};

use crate::gpu::{Gpu, Value, Work};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::pipelines::kernels_by_dtype;
use crate::recorder::region::Region;

kernels_by_dtype!(kernel, "rms_norm.metal", "rms_norm");

/// Quads that a thread can keep in registers: the kernels' `KEPT`.
const KEPT: usize = 16;
/// Most threads of a row. Shader validation may allow less than the 1024 of the hardware.
const MOST_THREADS: usize = 512;

/// Threads of a row: a multiple of a simdgroup, from `hidden` alone, so that the order of its sum is too.
///
/// # Errors
/// `Unsupported` for rows longer than so many threads can keep.
pub(crate) fn threads<G: Gpu>(recorder: &Recorder<G>, op: &'static str, hidden: usize) -> Result<usize> {
    // Four loads of 16 bytes in flight per thread.
    let quads = hidden.div_ceil(4);
    let threads = quads.div_ceil(4).next_multiple_of(32).clamp(32, MOST_THREADS);
    if quads <= KEPT * threads {
        return Ok(threads);
    }
    let reason = format!("rows of {hidden} elements; up to {} work", 4 * KEPT * MOST_THREADS);
    Err(recorder.unsupported(op, reason))
}

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &RmsNorm<'_, Region<G>>) -> Result<()> {
    let hidden = op.weight.cols();
    let threads = threads(recorder, vllm_apple_ops::rms_norm::NAME, hidden)?;
    let constants = [Value::U32(hidden as u32), Value::U32(threads as u32)];
    recorder.dispatch(
        vllm_apple_ops::rms_norm::NAME,
        kernel(op.out.dtype()),
        &constants,
        [Arg::read_rows(op.x), Arg::read(op.weight), Arg::write_rows(op.out), Arg::bytes(&op.eps)],
        Grid { threadgroups: [op.rows, 1, 1], threads, work: Work::bytes(op.rows, 8 * hidden) },
    )
}
