//! Where keys and values are within the KV cache of a layer. It knows no device.
//!
//! Keys: `[block][head][token in block][head_dim]`. Values: `[block][head][head_dim][token in block]`, so that attention reads
//! neighbouring tokens of one dimension together.

use vllm_apple_ops::{KvCache, KvSpec};

use crate::gpu::Gpu;
use crate::recorder::Recorder;

/// Sizes of a block.
pub(crate) struct KvLayout {
    pub block_size: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
}

impl KvLayout {
    /// The layout of a cache, whether attention's kernels can read it or not.
    pub fn new(&KvSpec { block_size, num_kv_heads, head_dim, .. }: &KvSpec) -> Self {
        Self { block_size, num_kv_heads, head_dim }
    }

    /// Index of element `d` of the key of `head` at `slot`.
    pub fn key(&self, slot: usize, head: usize, d: usize) -> usize {
        let (block, token) = (slot / self.block_size, slot % self.block_size);
        ((block * self.num_kv_heads + head) * self.block_size + token) * self.head_dim + d
    }

    /// Index of element `d` of the value of `head` at `slot`.
    pub fn value(&self, slot: usize, head: usize, d: usize) -> usize {
        let (block, token) = (slot / self.block_size, slot % self.block_size);
        ((block * self.num_kv_heads + head) * self.head_dim + d) * self.block_size + token
    }
}

/// The key and the value at `slot`, each `[num_kv_heads, head_dim]`.
pub(crate) fn read<G: Gpu>(
    recorder: &Recorder<G>,
    cache: &KvCache<crate::recorder::region::Region<G>>,
    slot: usize,
) -> (Vec<f32>, Vec<f32>) {
    let KvSpec { dtype, num_kv_heads, head_dim, .. } = cache.spec;
    let layout = KvLayout::new(&cache.spec);
    let get = |bytes: &[u8], at: usize| dtype.decode(&bytes[at * dtype.size()..][..dtype.size()])[0];
    let elements = || (0..num_kv_heads).flat_map(|h| (0..head_dim).map(move |d| (h, d)));
    let (keys, values) = (recorder.bytes(&cache.keys), recorder.bytes(&cache.values));
    let k = elements().map(|(h, d)| get(keys, layout.key(slot, h, d))).collect();
    let v = elements().map(|(h, d)| get(values, layout.value(slot, h, d))).collect();
    (k, v)
}
