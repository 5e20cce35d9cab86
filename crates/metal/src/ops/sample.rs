//! [`Sample`] on a GPU: a threadgroup per row.

use vllm_apple_ops::{Result, Sample};

use crate::gpu::{Gpu, Kernel, Value, Work};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::region::Region;

const KERNEL: Kernel =
    Kernel { file: "sample.metal", source: include_str!("../../kernels/sample.metal"), function: "sample" };

/// Threads of a row: the kernel's `THREADS`.
const THREADS: usize = 512;

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &Sample<'_, Region<G>>) -> Result<()> {
    // A row's logits are read nine times at most.
    let work = Work::bytes(op.rows, 9 * 4 * op.logits.cols());
    let (logits, adjustments) = (Arg::write(op.logits), Arg::write(op.adjustments));
    recorder.dispatch(
        vllm_apple_ops::sample::NAME,
        KERNEL,
        &[Value::U32(op.logits.cols() as u32)],
        [
            logits,
            Arg::read_rows(op.params),
            adjustments,
            Arg::read(op.masks),
            Arg::write_rows(op.picked),
            Arg::write_rows(op.top),
        ],
        Grid { threadgroups: [op.rows, 1, 1], threads: THREADS, work },
    )
}
