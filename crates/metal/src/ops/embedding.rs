//! [`Embedding`] on a GPU: a threadgroup per token.

use vllm_apple_ops::{Embedding, Result};

use crate::gpu::{Gpu, Kernel, Value, Work};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::pipelines::kernels_by_dtype;
use crate::recorder::region::Region;
use crate::weight::PackedWeight;

kernels_by_dtype!(kernel, ["weight.metal"], "embedding.metal", "embedding");

const OF_CODES: Kernel = Kernel {
    file: "codes_embedding.metal",
    source: concat!(
        "#line 1 \"weight.metal\"\n",
        include_str!("../../kernels/weight.metal"),
        "#line 1 \"codes.metal\"\n",
        include_str!("../../kernels/codes.metal"),
        "#line 1 \"codes_embedding.metal\"\n",
        include_str!("../../kernels/codes_embedding.metal"),
    ),
    function: "codes_embedding",
};

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &Embedding<'_, Region<G>, PackedWeight<G>>) -> Result<()> {
    let (dtype, k) = (op.table.packed().dtype, op.table.cols());
    let work = Work::bytes(op.rows, 8 * k);
    let (name, ids, out, scale) =
        (vllm_apple_ops::embedding::NAME, Arg::read_items(op.ids, 1), Arg::write_rows(op.out), Arg::bytes(&op.scale));
    let grid = |loads: usize| {
        let threads = loads.next_multiple_of(32).min(256);
        Grid { threadgroups: [op.rows, 1, 1], threads, work }
    };
    let [part0, part1, part2] = &op.table.packed().parts;
    let [c0, c1, c2, c3, c4] = PackedWeight::constants(op.table);
    match op.table.packed().codes() {
        None => {
            let args = [ids, Arg::Constant(part0), Arg::Constant(part1), Arg::Constant(part2), out, scale];
            let loads = k.div_ceil(16 / dtype.size());
            recorder.dispatch(name, kernel(dtype), &[c0, c1, c2, c3, c4], args, grid(loads))
        }
        Some(layout) => {
            let [c11, c12, c13, c14, c15, c16] = layout.constants();
            let none = Value::U32(0);
            let constants = [c0, c1, c2, c3, c4, none, none, none, none, none, none, c11, c12, c13, c14, c15, c16];
            let args = [ids, Arg::Constant(part0), out, scale];
            recorder.dispatch(name, OF_CODES, &constants, args, grid(layout.lane_loads(k)))
        }
    }
}
