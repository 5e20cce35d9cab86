//! [`TopkSoftmax`] on a GPU: a simdgroup per token.

use vllm_apple_ops::{Result, TopkSoftmax};

use crate::gpu::{Gpu, Kernel, Value, Work};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::region::Region;

const KERNEL: Kernel = Kernel {
    file: "topk_softmax.metal",
    source: include_str!("../../kernels/topk_softmax.metal"),
    function: "topk_softmax",
};

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &TopkSoftmax<'_, Region<G>>) -> Result<()> {
    let (experts, top_k) = (op.logits.cols() as u32, op.ids.cols() as u32);
    recorder.dispatch(
        vllm_apple_ops::topk_softmax::NAME,
        KERNEL,
        &[Value::U32(experts), Value::U32(top_k), Value::Bool(op.renormalize)],
        [Arg::read_rows(op.logits), Arg::write_rows(op.ids), Arg::write_rows(op.weights)],
        Grid { threadgroups: [op.rows, 1, 1], threads: 32, work: Work::bytes(op.rows, 4 * op.logits.cols()) },
    )
}
