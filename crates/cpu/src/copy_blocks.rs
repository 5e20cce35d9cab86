//! Copies of blocks of the KV cache, one after the other: a block is a run of bytes in keys and in values.

use vllm_apple_ops::{CopyBlocks, Result};

use crate::CpuBackend;
use crate::memory::elements;
use crate::rope_kv_write::check;

pub(crate) fn run(op: CopyBlocks<'_, CpuBackend>) -> Result<()> {
    let pairs: &[u32] = &elements(op.pairs, 1)[..2 * op.num_pairs];
    let spec = op.cache.spec;
    check("copy_blocks", "pairs", pairs, spec.num_blocks)?;
    let bytes = spec.bytes() / 2 / spec.num_blocks;
    for memory in [&mut op.cache.keys, &mut op.cache.values] {
        for pair in pairs.chunks_exact(2) {
            let (from, to) = (pair[0] as usize * bytes, pair[1] as usize * bytes);
            memory.bytes_mut().copy_within(from..from + bytes, to);
        }
    }
    Ok(())
}
