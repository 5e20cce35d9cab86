//! Where keys and values of a token lie in the cache. It knows no arithmetic.
//!
//! Of a block and head, 16 tokens' keys are `[head_dim][16]`, so that 16 tokens are a vector and a query element meets them all at once; values
//! are `[block_size][head_dim]`, so that a weight meets 16 elements of its value at once. Of bf16, two rows after each other lie together in
//! pairs, `[head_dim / 2][16][2]` and `[block_size / 2][head_dim][2]`: vectors widen them with the least work, and matrices take them as they
//! lie.

use vllm_apple_ops::{DType, Error, KvSpec, MAX_HEAD_DIM, Result};

use crate::simd::LANES;

/// Element offsets in the two arrays of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KvLayout {
    pub block_size: usize,
    pub head_dim: usize,
    pub num_kv_heads: usize,
    /// Elements of rows that lie together: 2 for bf16, or else 1.
    pub together: usize,
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
        let together = if spec.dtype == DType::BF16 { 2 } else { 1 };
        Ok(Self { block_size: spec.block_size, head_dim: spec.head_dim, num_kv_heads: spec.num_kv_heads, together })
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
        let (block, at, together) = (slot / self.block_size, slot % self.block_size, self.together);
        let keys = self.start(block, head) + at / LANES * LANES * self.head_dim;
        keys + (d / together * LANES + at % LANES) * together + d % together
    }

    /// Value element `d` at `slot`.
    pub(crate) fn value(&self, slot: usize, head: usize, d: usize) -> usize {
        let (block, at, together) = (slot / self.block_size, slot % self.block_size, self.together);
        self.start(block, head) + (at / together * self.head_dim + d) * together + at % together
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_a_place_of_its_own() {
        for (dtype, block_size, head_dim) in [(DType::BF16, 48, 24), (DType::F16, 32, 8), (DType::F32, 16, 40)] {
            let spec = KvSpec { dtype, num_blocks: 3, block_size, num_kv_heads: 2, head_dim };
            let layout = KvLayout::new(&spec).unwrap();
            for place in [KvLayout::key, KvLayout::value] {
                let elements = (0..3 * block_size).flat_map(|slot| (0..2 * head_dim).map(move |e| (slot, e)));
                let mut places: Vec<_> =
                    elements.map(|(slot, e)| place(&layout, slot, e / head_dim, e % head_dim)).collect();
                places.sort_unstable();
                assert!(places.iter().copied().eq(0..3 * block_size * 2 * head_dim), "{dtype}");
            }
        }
    }
}
