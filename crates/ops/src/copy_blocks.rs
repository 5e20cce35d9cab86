//! Copies of whole blocks within the KV cache of a layer: for a request that goes on from another's blocks and will write to them.

use crate::error::ensure;
use crate::*;

/// For each pair `(from, to)`: keys and values of block `to` become those of block `from`. A copy: exact.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | pairs | u32 | `[1, >= 2 * num_pairs]`: `from` and `to` of each pair; ids below `num_blocks`, no `to` twice or also a `from`: the caller's promise |
pub struct CopyBlocks<'a, B: Backend> {
    /// Blocks to copy.
    pub num_pairs: usize,
    /// Which blocks, and where to.
    pub pairs: &'a Tensor<B::Memory>,
    /// The layer's cache.
    pub cache: &'a mut KvCache<B::Memory>,
}

impl<B: Backend> CopyBlocks<'_, B> {
    /// Checks the arguments and computes the op.
    pub fn run(self, backend: &mut B) -> Result<()> {
        let len = 2 * self.num_pairs;
        let fits = self.pairs.dtype() == DType::U32 && self.pairs.cols() >= len;
        ensure(fits, "copy_blocks", "pairs", format_args!("uint32 [1, at least {len}]"), self.pairs)?;
        backend.copy_blocks(self)
    }
}

/// Plain loops over one token's place in each block: `blocks[b]` is what block `b` holds there.
pub fn reference<T: Clone>(blocks: &[T], pairs: &[(u32, u32)]) -> Vec<T> {
    let mut out = blocks.to_vec();
    for &(from, to) in pairs {
        out[to as usize] = blocks[from as usize].clone();
    }
    out
}
