//! [`Rope`] on a GPU: a thread per four rotated pairs of elements.

use vllm_apple_ops::{Result, Rope};

use crate::gpu::{Gpu, Kernel, Value};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::region::Region;

const KERNEL: Kernel =
    Kernel { file: "rope.metal", source: include_str!("../../kernels/rope.metal"), function: "rope" };

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &Rope<'_, Region<G>>) -> Result<()> {
    let half = op.table.cos.cols();
    let (grid, threads) = Grid::of_rows(op.rows, op.num_heads * half.div_ceil(4), 64);
    recorder.dispatch(
        vllm_apple_ops::rope::NAME,
        KERNEL,
        &[Value::U32(half as u32), Value::U32(op.num_heads as u32), threads],
        [Arg::write_rows(op.q), Arg::read_items(op.positions, 1), Arg::read(&op.table.cos), Arg::read(&op.table.sin)],
        grid,
    )
}
