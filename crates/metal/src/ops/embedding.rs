//! [`Embedding`] on a GPU: a threadgroup per token.

use vllm_apple_ops::{Embedding, Result};

use crate::gpu::{Gpu, Work};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::pipelines::kernels_by_dtype;
use crate::recorder::region::Region;
use crate::weight::PackedWeight;

kernels_by_dtype!(kernel, ["weight.metal"], "embedding.metal", "embedding");

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &Embedding<'_, Region<G>, PackedWeight<G>>) -> Result<()> {
    let dtype = op.table.packed().dtype;
    let loads = op.table.cols().div_ceil(16 / dtype.size());
    let work = Work::bytes(op.rows, 8 * op.table.cols());
    let [part0, part1, part2] = &op.table.packed().parts;
    recorder.dispatch(
        vllm_apple_ops::embedding::NAME,
        kernel(dtype),
        &PackedWeight::constants(op.table),
        [
            Arg::read_items(op.ids, 1),
            Arg::Constant(part0),
            Arg::Constant(part1),
            Arg::Constant(part2),
            Arg::write_rows(op.out),
            Arg::bytes(&op.scale),
        ],
        Grid { threadgroups: [op.rows, 1, 1], threads: loads.next_multiple_of(32).min(256), work },
    )
}
