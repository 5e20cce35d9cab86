//! [`SiluMul`] on a GPU: a thread per four outputs.

use vllm_apple_ops::{Result, SiluMul};

use crate::backend::MetalBackend;
use crate::encode::{Arg, Grid};
use crate::gpu::{Gpu, Value};
use crate::memory::Region;
use crate::pipelines::kernels_by_dtype;

kernels_by_dtype!(kernel, "silu_mul.metal", "silu_mul");

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, op: &SiluMul<'_, Region<G>>) -> Result<()> {
    let cols = op.out.cols();
    let (grid, threads) = Grid::of_rows(op.rows, cols.div_ceil(4));
    backend.dispatch(
        "silu_mul",
        kernel(op.out.dtype()),
        &[Value::U32(cols as u32), threads],
        [Arg::read(op.gate_up), Arg::write(op.out)],
        grid,
    )
}
