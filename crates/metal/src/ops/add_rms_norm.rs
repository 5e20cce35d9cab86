//! [`AddRmsNorm`] on a GPU: a threadgroup per row, as in `rms_norm`.

use vllm_apple_ops::{AddRmsNorm, Result};

use super::rms_norm::threads;
use crate::gpu::{Gpu, Value, Work};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::pipelines::kernels_by_dtype;
use crate::recorder::region::Region;

kernels_by_dtype!(kernel, "add_rms_norm.metal", "add_rms_norm");

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &AddRmsNorm<'_, Region<G>>) -> Result<()> {
    let hidden = op.weight.cols();
    let threads = threads(recorder, vllm_apple_ops::add_rms_norm::NAME, hidden)?;
    let constants = [Value::U32(hidden as u32), Value::U32(threads as u32)];
    let (residual, delta) = (Arg::write_rows(op.residual), Arg::read_rows(op.delta));
    recorder.dispatch(
        vllm_apple_ops::add_rms_norm::NAME,
        kernel(op.out.dtype()),
        &constants,
        [residual, delta, Arg::read(op.weight), Arg::write_rows(op.out), Arg::bytes(&op.eps)],
        Grid { threadgroups: [op.rows, 1, 1], threads, work: Work::bytes(op.rows, 16 * hidden) },
    )
}
