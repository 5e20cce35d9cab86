//! Attention with a model's own heads, in its own cache: before the first request, its blocks are nobody's.

use std::collections::BTreeSet;

use vllm_apple_ops::{DType, Kind, KvCache, KvSpec, PagedAttention, Result, Sequences, conformance, paged_attention};

use super::{integers, judge, numbers, run_or_leave, tensor};
use crate::gpu::Gpu;
use crate::kv_layout::KvLayout;
use crate::ops;
use crate::recorder::Recorder;
use crate::recorder::region::Region;

/// Positions of the sequence that is attended to, if there is room: of two splits.
const LEN: usize = 600;
/// Tokens of prompts: of few tiles, and of as many as any model has wide ones for.
const TOKENS: [usize; 3] = [1, 33, 520];

/// Attention of a model.
pub(super) struct Attention<G: Gpu> {
    cache: KvCache<Region<G>>,
    num_heads: usize,
    scale: f32,
    window: Option<usize>,
    /// Elements of a row of queries.
    width: usize,
    out: DType,
    /// The most tokens of a request, and the longest sequence.
    tokens: usize,
    len: usize,
}

impl<G: Gpu> Attention<G> {
    pub fn of(op: &PagedAttention<'_, Region<G>>) -> Self {
        let KvCache { keys, values, spec } = op.cache;
        Self {
            cache: KvCache { keys: keys.clone(), values: values.clone(), spec: *spec },
            num_heads: op.num_heads,
            scale: op.scale,
            window: op.window,
            width: op.qkv.cols(),
            out: op.out.dtype(),
            tokens: op.sequences.max_query_len,
            len: op.sequences.max_seq_len,
        }
    }

    /// Whether the same pipelines compute it.
    pub fn is_like(&self, other: &Self) -> bool {
        let key = |of: &Self| (of.cache.spec, of.num_heads, of.scale.to_bits(), of.window, of.width, of.out);
        key(self) == key(other)
    }

    /// Takes in the sizes of another step.
    pub fn grow(&mut self, other: &Self) {
        (self.tokens, self.len) = (self.tokens.max(other.tokens), self.len.max(other.len));
    }

    pub fn kind(&self) -> Kind {
        Kind::of_heads(paged_attention::NAME, self.cache.spec.dtype, self.cache.spec.head_dim)
    }

    /// # Errors
    /// The device gets it wrong or refuses it.
    pub fn test(&self, recorder: &mut Recorder<G>) -> Result<()> {
        let KvSpec { num_blocks, block_size, .. } = self.cache.spec;
        let len = LEN.min(self.len).min(num_blocks * block_size);
        let cached = Cached::fill(recorder, &self.cache, len);
        TOKENS
            .into_iter()
            .filter(|&tokens| tokens <= self.tokens.min(len))
            .try_for_each(|tokens| self.test_step(recorder, &cached, tokens, len))
    }

    /// The last tokens of a sequence.
    fn test_step(&self, recorder: &mut Recorder<G>, cached: &Cached, tokens: usize, len: usize) -> Result<()> {
        let KvSpec { block_size, num_kv_heads, head_dim, .. } = self.cache.spec;
        let blocks: Vec<u32> = (0..len.div_ceil(block_size) as u32).collect();
        let sequences = Sequences {
            num_requests: 1,
            num_tokens: tokens,
            max_seq_len: len,
            sum_seq_lens: len,
            max_query_len: tokens,
            query_start_loc: integers(recorder, &[0, tokens as u32])?,
            seq_lens: integers(recorder, &[len as u32])?,
            block_table: integers(recorder, &blocks)?,
            block_table_stride: blocks.len(),
        };
        let queries = numbers(tokens * self.width);
        let qkv = tensor(recorder, DType::F32, self.width, &queries)?;
        let mut out = recorder.tensor(self.out, tokens, self.num_heads * head_dim)?;
        let &Self { num_heads, scale, window, .. } = self;
        run_or_leave(recorder, |recorder| {
            let (sequences, qkv, cache, out) = (&sequences, &qkv, &self.cache, &mut out);
            ops::paged_attention::run(
                recorder,
                &PagedAttention { sequences, qkv, num_heads, scale, window, cache, out },
            )
        })?;
        let got = self.out.decode(recorder.read(&out));
        let mut worst = 0.0f64;
        for token in BTreeSet::from([0, tokens / 2, tokens - 1]) {
            for head in BTreeSet::from([0, num_heads / 2, num_heads - 1]) {
                let kv_head = head / (num_heads / num_kv_heads);
                let query = &queries[token * self.width + head * head_dim..][..head_dim];
                let (keys, values) = (&cached.keys[kv_head], &cached.values[kv_head]);
                let row =
                    conformance::AttentionRow { query, keys, values, position: len - tokens + token, scale, window };
                worst = worst.max(row.judge(&got[(token * num_heads + head) * head_dim..][..head_dim], self.out));
            }
        }
        let case = format!("{tokens} tokens of {len}, {num_heads} heads of {head_dim} over {num_kv_heads}");
        judge(recorder, paged_attention::NAME, worst, &case)
    }
}

/// Keys and values of each head, `[positions, head_dim]`, as they are in the cache.
struct Cached {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl Cached {
    /// Fills the cache's first blocks.
    fn fill<G: Gpu>(recorder: &Recorder<G>, cache: &KvCache<Region<G>>, len: usize) -> Self {
        let KvSpec { dtype, num_kv_heads, head_dim, .. } = cache.spec;
        let layout = KvLayout::new(&cache.spec);
        let all = numbers(2 * num_kv_heads * len * head_dim);
        let mut heads = all.chunks_exact(len * head_dim).map(<[f32]>::to_vec);
        let cached = Self { keys: heads.by_ref().take(num_kv_heads).collect(), values: heads.collect() };
        let write = |region: &Region<G>, heads: &[Vec<f32>], at: &dyn Fn(usize, usize, usize) -> usize| {
            let mut region = region.clone();
            let bytes = recorder.bytes_mut(&mut region);
            for (head, values) in heads.iter().enumerate() {
                for (i, value) in dtype.encode(values).chunks_exact(dtype.size()).enumerate() {
                    bytes[at(i / head_dim, head, i % head_dim) * dtype.size()..][..dtype.size()].copy_from_slice(value);
                }
            }
        };
        write(&cache.keys, &cached.keys, &|slot, head, d| layout.key(slot, head, d));
        write(&cache.values, &cached.values, &|slot, head, d| layout.value(slot, head, d));
        cached
    }
}
