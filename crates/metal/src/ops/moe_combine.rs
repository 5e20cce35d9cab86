//! [`MoeCombine`] on a GPU: a thread per four outputs.

use vllm_apple_ops::{MoeCombine, Result};

use crate::gpu::{Gpu, Kernel, Value};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::region::Region;

const KERNEL: Kernel = Kernel {
    file: "moe_combine.metal",
    source: include_str!("../../kernels/moe_combine.metal"),
    function: "moe_combine",
};

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &MoeCombine<'_, Region<G>>) -> Result<()> {
    let (hidden, top_k) = (op.out.cols(), op.weights.cols());
    let (grid, threads) = Grid::of_rows(op.rows, hidden.div_ceil(4), 16 * (top_k + 1));
    recorder.dispatch(
        vllm_apple_ops::moe_combine::NAME,
        KERNEL,
        &[Value::U32(hidden as u32), Value::U32(top_k as u32), threads],
        [Arg::read_items(op.x, top_k * hidden), Arg::read_rows(op.weights), Arg::write_rows(op.out)],
        grid,
    )
}
