//! [`AddRmsNorm`] on a GPU: a threadgroup per row, as in `rms_norm`.

use vllm_apple_ops::{AddRmsNorm, Result};

use crate::backend::MetalBackend;
use crate::encode::{Arg, Grid};
use crate::gpu::{Gpu, Value};
use crate::memory::Region;
use crate::pipelines::kernels_by_dtype;
use crate::rms_norm::threads;

kernels_by_dtype!(kernel, "add_rms_norm.metal", "add_rms_norm");

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, op: &AddRmsNorm<'_, Region<G>>) -> Result<()> {
    let hidden = op.weight.cols();
    let threads = threads(backend, "add_rms_norm", hidden)?;
    let constants = [Value::U32(hidden as u32), Value::U32(threads as u32)];
    let (residual, delta) = (Arg::write(op.residual), Arg::read(op.delta));
    backend.dispatch(
        "add_rms_norm",
        kernel(op.out.dtype()),
        &constants,
        [residual, delta, Arg::read(op.weight), Arg::write(op.out), Arg::bytes(&op.eps)],
        Grid { threadgroups: [op.rows, 1, 1], threads },
    )
}
