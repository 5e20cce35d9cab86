//! Attention with a model's own heads, in its own cache: before the first request, its blocks are nobody's.

use std::collections::BTreeSet;

use vllm_apple_ops::{
    DType, Kind, KvCache, KvSpec, PagedAttention, Result, Sequences, Tensor, conformance, paged_attention,
};

use super::{handle, integers, judge, numbers, run_or_leave, tensor};
use crate::gpu::Gpu;
use crate::kv_layout::KvLayout;
use crate::ops;
use crate::ops::paged_attention::{SPLIT, Variant};
use crate::recorder::Recorder;
use crate::recorder::region::Region;

/// Positions of the sequences that are attended to, if there is room: of one split, and of two.
const LENS: [usize; 2] = [SPLIT, 600];
/// Tokens of prompts, beside those for which other pipelines were noted: of one tile, and of some with one that is not full.
const TOKENS: [usize; 2] = [1, 33];

/// Sizes of a step: requests that have as many tokens, the last of as long a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    requests: usize,
    tokens: usize,
    len: usize,
}

/// Attention of a model.
pub(super) struct Attention<G: Gpu> {
    cache: KvCache<Region<G>>,
    num_heads: usize,
    scale: f32,
    window: Option<usize>,
    sinks: Option<Tensor<Region<G>>>,
    /// Elements of a row of queries.
    width: usize,
    out: DType,
    /// The most tokens of a request, and the longest sequence.
    tokens: usize,
    len: usize,
    /// The smallest of the steps that the same pipelines compute.
    noted: Vec<(Variant, Step)>,
}

impl<G: Gpu> Attention<G> {
    pub fn of(op: &PagedAttention<'_, Region<G>>) -> Self {
        let KvCache { keys, values, spec } = op.cache;
        let s = op.sequences;
        let step = Step { requests: s.num_requests, tokens: s.max_query_len, len: s.max_seq_len };
        Self {
            cache: KvCache { keys: keys.clone(), values: values.clone(), spec: *spec },
            num_heads: op.num_heads,
            scale: op.scale,
            window: op.window,
            sinks: op.sinks.map(handle),
            width: op.qkv.cols(),
            out: op.out.dtype(),
            tokens: step.tokens,
            len: step.len,
            noted: vec![(Variant::of(op), step)],
        }
    }

    /// Whether the same pipelines compute it.
    pub fn is_like(&self, other: &Self) -> bool {
        let key = |of: &Self| {
            let sizes = (of.cache.spec, of.num_heads, of.scale.to_bits(), of.window, of.width, of.out);
            (sizes, of.sinks.is_some())
        };
        key(self) == key(other)
    }

    /// Takes in the sizes of another step.
    pub fn grow(&mut self, other: &Self) {
        (self.tokens, self.len) = (self.tokens.max(other.tokens), self.len.max(other.len));
        let size = |step: &Step| (step.requests * step.tokens, step.len);
        for &(variant, new) in &other.noted {
            match self.noted.iter_mut().find(|(known, _)| *known == variant) {
                Some((_, step)) if size(&new) < size(step) => *step = new,
                Some(_) => {}
                None => self.noted.push((variant, new)),
            }
        }
    }

    /// Steps that are computed by all the pipelines of those that were noted.
    fn steps(&self) -> BTreeSet<Step> {
        let room = self.cache.spec.num_blocks * self.cache.spec.block_size;
        let longest = self.len.min(room);
        let some = TOKENS.into_iter().flat_map(|tokens| LENS.map(|len| Step { requests: 1, tokens, len }));
        // Of the others, sequences need not be longer than the pipeline asks for: whether they are of one split.
        let noted = self.noted.iter().map(|&(_, step)| {
            let [one_split, more] = LENS;
            Step { len: if step.len <= SPLIT { one_split } else { more }.max(step.tokens), ..step }
        });
        let fits = |step: &Step| step.tokens <= self.tokens.min(step.len);
        some.chain(noted).map(|step| Step { len: step.len.min(longest), ..step }).filter(fits).collect()
    }

    pub fn kind(&self) -> Kind {
        Kind::of_heads(paged_attention::NAME, self.cache.spec.dtype, self.cache.spec.head_dim)
    }

    /// # Errors
    /// The device gets it wrong or refuses it.
    pub fn test(&self, recorder: &mut Recorder<G>) -> Result<()> {
        let steps = self.steps();
        let longest = steps.iter().map(|step| step.len).max().unwrap_or(0);
        let cached = Cached::fill(recorder, &self.cache, longest);
        steps.into_iter().try_for_each(|step| self.test_step(recorder, &cached, step))
    }

    /// What the requests are, all in the same blocks.
    fn sequences(&self, recorder: &Recorder<G>, Step { requests, tokens, len }: Step) -> Result<Sequences<Region<G>>> {
        let blocks: Vec<u32> = (0..len.div_ceil(self.cache.spec.block_size) as u32).collect();
        let starts: Vec<u32> = (0..=requests).map(|request| (request * tokens) as u32).collect();
        Ok(Sequences {
            num_requests: requests,
            num_tokens: requests * tokens,
            max_seq_len: len,
            sum_seq_lens: requests * len,
            max_query_len: tokens,
            query_start_loc: integers(recorder, &starts)?,
            seq_lens: integers(recorder, &vec![len as u32; requests])?,
            block_table: integers(recorder, &blocks.repeat(requests))?,
            block_table_stride: blocks.len(),
        })
    }

    fn test_step(&self, recorder: &mut Recorder<G>, cached: &Cached, step: Step) -> Result<()> {
        let KvSpec { num_kv_heads, head_dim, .. } = self.cache.spec;
        let Step { requests, tokens, len } = step;
        let sequences = self.sequences(recorder, step)?;
        let rows = requests * tokens;
        let queries = numbers(rows * self.width);
        let qkv = tensor(recorder, DType::F32, self.width, &queries)?;
        let mut out = recorder.tensor(self.out, rows, self.num_heads * head_dim)?;
        let &Self { num_heads, scale, window, .. } = self;
        run_or_leave(recorder, |recorder| {
            let (sequences, qkv, cache, out) = (&sequences, &qkv, &self.cache, &mut out);
            ops::paged_attention::run(
                recorder,
                &PagedAttention { sequences, qkv, num_heads, scale, window, sinks: self.sinks.as_ref(), cache, out },
            )
        })?;
        let got = self.out.decode(recorder.read(&out));
        let sinks: Option<&[f32]> = self.sinks.as_ref().map(|sinks| bytemuck::cast_slice(recorder.read(sinks)));
        let mut worst = 0.0f64;
        for row in BTreeSet::from([0, rows / 2, rows - 1]) {
            for head in BTreeSet::from([0, num_heads / 2, num_heads - 1]) {
                let kv_head = head / (num_heads / num_kv_heads);
                let query = &queries[row * self.width + head * head_dim..][..head_dim];
                let (keys, values) = (&cached.keys[kv_head], &cached.values[kv_head]);
                let position = len - tokens + row % tokens;
                let sink = sinks.map(|sinks| sinks[head]);
                let expected = conformance::AttentionRow { query, keys, values, position, scale, window, sink };
                worst = worst.max(expected.judge(&got[(row * num_heads + head) * head_dim..][..head_dim], self.out));
            }
        }
        let case =
            format!("{requests} times {tokens} tokens of {len}, {num_heads} heads of {head_dim} over {num_kv_heads}");
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::gpu::fake::FakeGpu;

    /// The step's attention of a model with so many heads, of which the device keeps as much as it is asked about.
    fn with_op<T>(
        recorder: &Recorder<FakeGpu>,
        [num_heads, num_kv_heads, head_dim]: [usize; 3],
        Step { requests, tokens, len }: Step,
        ask: impl FnOnce(&PagedAttention<'_, Region<FakeGpu>>) -> T,
    ) -> T {
        let spec = KvSpec { dtype: DType::BF16, num_blocks: 8192, block_size: 16, num_kv_heads, head_dim };
        let little = || recorder.region(16, "a test").unwrap();
        let cache = KvCache { keys: little(), values: little(), spec };
        let sequences = Sequences {
            num_requests: requests,
            num_tokens: requests * tokens,
            max_seq_len: len,
            sum_seq_lens: requests * len,
            max_query_len: tokens,
            query_start_loc: integers(recorder, &[0]).unwrap(),
            seq_lens: integers(recorder, &[0]).unwrap(),
            block_table: integers(recorder, &[0]).unwrap(),
            block_table_stride: 1,
        };
        let cols = (num_heads + 2 * num_kv_heads) * head_dim;
        let qkv = Tensor::new(little(), DType::F32, requests * tokens, cols);
        let mut out = Tensor::new(little(), DType::BF16, requests * tokens, num_heads * head_dim);
        let (sequences, qkv, cache, out) = (&sequences, &qkv, &cache, &mut out);
        ask(&PagedAttention { sequences, qkv, num_heads, scale: 1.0, window: None, sinks: None, cache, out })
    }

    #[test]
    fn every_pipeline_that_was_noted_is_tested() {
        let recorder = Recorder::new(FakeGpu::recording(), None);
        // Llama-8B, Qwen2-0.5B, and one without groups; heads of 256 have no wide tiles. Steps as of a start, of a model of 128 Ki positions.
        for heads in [[32, 8, 128], [14, 2, 64], [16, 16, 64], [8, 4, 256]] {
            for most in [64, 512, 2048] {
                let prompts = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048].into_iter().filter(|&n| n <= most);
                let prompts = prompts.flat_map(|tokens| [tokens, 131_072].map(|len| Step { requests: 1, tokens, len }));
                let decodes = [1, 2, 4, 8, 16, 32, 64, 128, 256];
                let decodes =
                    decodes.into_iter().flat_map(|requests| [1, 131_072].map(|len| Step { requests, tokens: 1, len }));
                let steps: Vec<Step> = prompts.chain(decodes).collect();
                let variant = |step| with_op(&recorder, heads, step, |op| format!("{:?}", Variant::of(op)));
                let attention = |step| with_op(&recorder, heads, step, Attention::of);
                let mut all = attention(steps[0]);
                steps.iter().for_each(|&step| all.grow(&attention(step)));
                let noted: BTreeSet<String> = steps.iter().map(|&step| variant(step)).collect();
                let mut tested = BTreeMap::<String, Vec<Step>>::new();
                for step in all.steps() {
                    assert!(step.len <= 2048 && step.tokens <= step.len, "a start is short: {step:?}");
                    tested.entry(variant(step)).or_default().push(step);
                }
                assert!(noted.iter().all(|variant| tested.contains_key(variant)), "{noted:?} {tested:?}");
                assert!(noted.len() >= 2, "split and not: {noted:?}");
            }
        }
    }
}
