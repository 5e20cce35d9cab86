//! [`QkNorm`] on a GPU: a simdgroup per head.

use vllm_apple_ops::{QkNorm, Result};

use crate::gpu::{Gpu, Kernel, Value, Work};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::region::Region;

const KERNEL: Kernel =
    Kernel { file: "qk_norm.metal", source: include_str!("../../kernels/qk_norm.metal"), function: "qk_norm" };

/// Elements of a head that a simdgroup can keep in registers: 32 lanes, the kernel's `KEPT` quads.
const MAX_HEAD_DIM: usize = 32 * 2 * 4;
/// Most heads that share a threadgroup.
const MAX_SIMDGROUPS: usize = 8;

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &QkNorm<'_, Region<G>>) -> Result<()> {
    let head_dim = op.q_weight.cols();
    if head_dim > MAX_HEAD_DIM {
        let reason = format!("heads of {head_dim} elements; up to {MAX_HEAD_DIM} work");
        return Err(recorder.unsupported(vllm_apple_ops::qk_norm::NAME, reason));
    }
    let heads = op.num_heads + op.num_kv_heads;
    let simdgroups = heads.clamp(1, MAX_SIMDGROUPS);
    let work = Work::bytes(op.rows, 8 * heads * head_dim);
    let constants = [head_dim, op.num_heads, op.num_kv_heads, simdgroups].map(|v| Value::U32(v as u32));
    recorder.dispatch(
        vllm_apple_ops::qk_norm::NAME,
        KERNEL,
        &constants,
        [Arg::write_rows(op.qkv), Arg::read(op.q_weight), Arg::read(op.k_weight), Arg::bytes(&op.eps)],
        Grid { threadgroups: [op.rows, heads.div_ceil(simdgroups), 1], threads: 32 * simdgroups, work },
    )
}
