//! [`PermuteColumns`] on a GPU: a thread per element.

use vllm_apple_ops::{PermuteColumns, Result, Tensor};

use crate::gpu::{Gpu, Kernel, Value};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::region::Region;

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &PermuteColumns<'_, Region<G>>) -> Result<()> {
    let (cols, size) = (op.x.cols(), op.x.dtype().size());
    let function = if size == 4 { "permute_columns_4" } else { "permute_columns_2" };
    let source = include_str!("../../kernels/permute_columns.metal");
    let (grid, threads) = Grid::of_rows(op.rows * op.top_k(), cols, 2 * size + 4);
    let top_k = op.ids.map_or(0, Tensor::cols);
    // Without experts these are not read.
    let ids = Arg::read(op.ids.unwrap_or(op.order));
    recorder.dispatch(
        vllm_apple_ops::permute_columns::NAME,
        Kernel { file: "permute_columns.metal", source, function },
        &[Value::U32(cols as u32), threads, Value::U32(top_k as u32)],
        [Arg::read_rows(op.x), Arg::read(op.order), Arg::write_rows(op.out), ids],
        grid,
    )
}
