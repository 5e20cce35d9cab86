//! [`CopyBlocks`] on a GPU: a thread per 16 bytes of keys and of values.

use vllm_apple_ops::{CopyBlocks, Result};

use crate::backend::MetalBackend;
use crate::encode::{Arg, Grid};
use crate::gpu::{Gpu, Kernel, Value};

const KERNEL: Kernel =
    Kernel { file: "copy_blocks.metal", source: include_str!("../kernels/copy_blocks.metal"), function: "copy_blocks" };

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, op: &CopyBlocks<'_, MetalBackend<G>>) -> Result<()> {
    let spec = op.cache.spec;
    let block = spec.bytes() / 2 / spec.num_blocks.max(1);
    if !block.is_multiple_of(16) {
        return Err(backend.unsupported("copy_blocks", format!("blocks of {block} bytes; multiples of 16 work")));
    }
    let words = block / 16;
    let (grid, threads) = Grid::of_rows(op.num_pairs, words);
    backend.dispatch(
        "copy_blocks",
        KERNEL,
        &[Value::U32(words as u32), threads],
        [Arg::read(op.pairs), Arg::Write(&op.cache.keys), Arg::Write(&op.cache.values)],
        grid,
    )
}
