//! Where keys and values of a token lie in the cache. It knows no types and no arithmetic.
//!
//! Keys of a block and head are `[head_dim][block_size]`, so that 16 tokens are a vector and a query element meets them all at
//! once; values are `[block_size][head_dim]`, so that a weight meets 16 elements of its value at once.

use vllm_apple_ops::{Error, KvSpec, MAX_HEAD_DIM, Result};

use crate::simd::LANES;

/// Element offsets in the two arrays of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KvLayout {
    pub block_size: usize,
    pub head_dim: usize,
    pub num_kv_heads: usize,
}

impl KvLayout {
    /// Checks that the backend can keep such a cache.
    pub(crate) fn new(spec: &KvSpec) -> Result<Self> {
        let refuse = |reason: String| {
            Err(Error::Unsupported { device: "cpu".into(), op: vllm_apple_ops::paged_attention::NAME, reason })
        };
        if spec.block_size == 0 || !spec.block_size.is_multiple_of(LANES) {
            return refuse(format!(
                "block size {} is not a multiple of {LANES}; use `block_size` {LANES}",
                spec.block_size
            ));
        }
        if spec.head_dim == 0 || !spec.head_dim.is_multiple_of(8) || spec.head_dim > MAX_HEAD_DIM {
            return refuse(format!("head size {} is not a multiple of 8 up to {MAX_HEAD_DIM}", spec.head_dim));
        }
        Ok(Self { block_size: spec.block_size, head_dim: spec.head_dim, num_kv_heads: spec.num_kv_heads })
    }

    /// Elements of keys, or of values, that a block and head take.
    pub(crate) fn head_block(&self) -> usize {
        self.block_size * self.head_dim
    }

    /// Start of a block and head in both arrays.
    pub(crate) fn start(&self, block: usize, head: usize) -> usize {
        (block * self.num_kv_heads + head) * self.head_block()
    }

    /// Key element `d` at `slot`.
    pub(crate) fn key(&self, slot: usize, head: usize, d: usize) -> usize {
        self.start(slot / self.block_size, head) + d * self.block_size + slot % self.block_size
    }

    /// Value element 0 at `slot`; the others follow.
    pub(crate) fn value(&self, slot: usize, head: usize) -> usize {
        self.start(slot / self.block_size, head) + slot % self.block_size * self.head_dim
    }
}
