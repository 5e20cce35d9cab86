//! [`GatedActivation`] on a GPU: a thread per four outputs.

use vllm_apple_ops::{Activation, GatedActivation, Result};

use crate::gpu::{Gpu, Value};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::pipelines::kernels_by_dtype;
use crate::recorder::region::{self, Region};

kernels_by_dtype!(kernel, "gated_activation.metal", "gated_activation");

/// Read and written for four outputs: eight f32, and four numbers of at most their size.
const QUAD_BYTES: usize = 48;

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &GatedActivation<'_, Region<G>>) -> Result<()> {
    let cols = op.out.cols();
    let grid_of = |rows| Grid::of_rows(rows, cols.div_ceil(4), QUAD_BYTES);
    // Rows of a piece begin where loads of 16 bytes may.
    let most = recorder.pace.pieces(grid_of(8).0.work).saturating_mul(8);
    (0..op.rows).step_by(most).try_for_each(|first| {
        let rows = most.min(op.rows - first);
        let (grid, threads) = grid_of(rows);
        let (gate_up, out) = (region::rows(op.gate_up, first, rows), region::rows(op.out, first, rows));
        recorder.dispatch(
            vllm_apple_ops::gated_activation::NAME,
            kernel(op.out.dtype()),
            &[Value::U32(cols as u32), Value::Bool(op.activation == Activation::GeluTanh), threads],
            [Arg::Read(&gate_up), Arg::Write(&out)],
            grid,
        )
    })
}
