//! [`GatedActivation`] on a GPU: a thread per four outputs.

use vllm_apple_ops::{GatedActivation, Result};

use super::matmul::Gated;
use crate::gpu::{Gpu, Value};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::pipelines::kernels_by_dtype;
use crate::recorder::region::Region;

kernels_by_dtype!(kernel, "gated_activation.metal", "gated_activation");

/// Read and written for four outputs: eight f32, and four numbers of at most their size.
const QUAD_BYTES: usize = 48;

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &GatedActivation<'_, Region<G>>) -> Result<()> {
    let cols = op.out.cols();
    let (grid, threads) = Grid::of_rows(op.rows, cols.div_ceil(4), QUAD_BYTES);
    recorder.dispatch(
        vllm_apple_ops::gated_activation::NAME,
        kernel(op.out.dtype()),
        &[Value::U32(cols as u32), Value::U32(Gated::from(op.activation) as u32), threads],
        [Arg::read_rows(op.gate_up), Arg::write_rows(op.out)],
        grid,
    )
}
