//! [`GatherRows`] on a GPU: a thread per word of the largest size that divides a row.

use vllm_apple_ops::{GatherRows, Result};

use crate::gpu::{Gpu, Kernel, Value};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::region::Region;

/// The kernel that copies words of so many bytes.
fn kernel(word: usize) -> Kernel {
    let function = match word {
        16 => "gather_rows_16",
        4 => "gather_rows_4",
        _ => "gather_rows_2",
    };
    Kernel { file: "gather_rows.metal", source: include_str!("../../kernels/gather_rows.metal"), function }
}

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &GatherRows<'_, Region<G>>) -> Result<()> {
    let bytes = op.x.cols() * op.x.dtype().size();
    let word = [16, 4, 2].into_iter().find(|word| bytes.is_multiple_of(*word)).unwrap_or(2);
    let (grid, threads) = Grid::of_rows(op.rows, bytes / word, 2 * word);
    recorder.dispatch(
        vllm_apple_ops::gather_rows::NAME,
        kernel(word),
        &[Value::U32((bytes / word) as u32), threads],
        [Arg::read(op.x), Arg::read_items(op.indices, 1), Arg::write_rows(op.out)],
        grid,
    )
}
