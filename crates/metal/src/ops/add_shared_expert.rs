//! [`AddSharedExpert`] on a GPU: a thread per four outputs.

use vllm_apple_ops::{AddSharedExpert, Result};

use crate::gpu::{Gpu, Kernel, Value};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::region::Region;

const KERNEL: Kernel = Kernel {
    file: "add_shared_expert.metal",
    source: include_str!("../../kernels/add_shared_expert.metal"),
    function: "add_shared_expert",
};

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &AddSharedExpert<'_, Region<G>>) -> Result<()> {
    let hidden = op.out.cols();
    let (grid, threads) = Grid::of_rows(op.rows, hidden.div_ceil(4), 48);
    recorder.dispatch(
        vllm_apple_ops::add_shared_expert::NAME,
        KERNEL,
        &[Value::U32(hidden as u32), threads],
        [Arg::read_rows(op.x), Arg::read_rows(op.gate), Arg::write_rows(op.out)],
        grid,
    )
}
