//! The paged KV cache of one layer: its sizes. Only `rope_kv_write` writes it and only `paged_attention` reads it, so the order of
//! elements within a block is the backend's own.

use crate::DType;

/// The largest head that every backend attends to, on the host if not on its device: scratch memory is made for it.
pub const MAX_HEAD_DIM: usize = 512;

/// Sizes of one layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSpec {
    /// Type in which keys and values are kept.
    pub dtype: DType,
    /// Blocks in the pool.
    pub num_blocks: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Elements of a head: an even number, see [`crate::Backend::check_kv_cache`].
    pub head_dim: usize,
}

impl KvSpec {
    /// Bytes of keys and values together.
    pub fn bytes(&self) -> usize {
        2 * self.num_slots() * self.num_kv_heads * self.head_dim * self.dtype.size()
    }

    /// Tokens that the cache holds.
    pub fn num_slots(&self) -> usize {
        self.num_blocks * self.block_size
    }
}

/// Keys and values of one layer. Token at `slot` is in block `slot / block_size` at offset `slot % block_size`.
#[derive(Debug)]
pub struct KvCache<M> {
    /// Keys.
    pub keys: M,
    /// Values.
    pub values: M,
    /// Sizes of both.
    pub spec: KvSpec,
}
