//! [`SiluMul`] on a GPU: a thread per four outputs.

use vllm_apple_ops::{Result, SiluMul};

use crate::gpu::{Gpu, Value};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::pipelines::kernels_by_dtype;
use crate::recorder::region::Region;

kernels_by_dtype!(kernel, "silu_mul.metal", "silu_mul");

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &SiluMul<'_, Region<G>>) -> Result<()> {
    let cols = op.out.cols();
    let (grid, threads) = Grid::of_rows(op.rows, cols.div_ceil(4));
    recorder.dispatch(
        vllm_apple_ops::silu_mul::NAME,
        kernel(op.out.dtype()),
        &[Value::U32(cols as u32), threads],
        [Arg::read(op.gate_up), Arg::write(op.out)],
        grid,
    )
}
