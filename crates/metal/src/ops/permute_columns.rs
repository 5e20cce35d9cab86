//! [`PermuteColumns`] on a GPU: a thread per element.

use vllm_apple_ops::{PermuteColumns, Result};

use crate::gpu::{Gpu, Kernel, Value};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::region::Region;

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &PermuteColumns<'_, Region<G>>) -> Result<()> {
    let (cols, size, top_k) = (op.x.cols(), op.x.dtype().size(), op.top_k());
    let function = if size == 4 { "permute_columns_4" } else { "permute_columns_2" };
    let source = include_str!("../../kernels/permute_columns.metal");
    let (grid, threads) = Grid::of_rows(op.rows, top_k * cols, 2 * size + 4);
    let constants = [Value::U32(cols as u32), threads, Value::U32(top_k as u32), Value::Bool(op.ids.is_some())];
    // Without experts these are not read.
    let ids = op.ids.map_or(Arg::read_rows(op.x), Arg::read_rows);
    recorder.dispatch(
        vllm_apple_ops::permute_columns::NAME,
        Kernel { file: "permute_columns.metal", source, function },
        &constants,
        [Arg::read_rows(op.x), Arg::read(op.order), ids, Arg::write_items(op.out, top_k * cols)],
        grid,
    )
}
