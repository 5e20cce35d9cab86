//! [`RmsNorm`] on a GPU: a threadgroup per row.

use vllm_apple_ops::{Result, RmsNorm};

use crate::backend::MetalBackend;
use crate::encode::{Arg, Grid};
use crate::gpu::{Gpu, Value};
use crate::pipelines::kernels_by_dtype;

kernels_by_dtype!(kernel, "rms_norm.metal", "rms_norm");

/// Threads of a row: a multiple of a simdgroup, from `hidden` alone, so that the order of its sum is too.
pub(crate) fn threads(hidden: usize) -> usize {
    hidden.div_ceil(4).next_multiple_of(32).clamp(32, 256)
}

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, op: RmsNorm<'_, MetalBackend<G>>) -> Result<()> {
    let hidden = op.weight.cols();
    let threads = threads(hidden);
    let constants = [Value::U32(hidden as u32), Value::U32(threads as u32)];
    backend.dispatch(
        "rms_norm",
        kernel(op.out.dtype()),
        &constants,
        [Arg::read(op.x), Arg::read(op.weight), Arg::write(op.out), Arg::bytes(&op.eps)],
        Grid { threadgroups: [op.rows, 1, 1], threads },
    )
}
