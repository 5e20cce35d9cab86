//! Causal attention of new tokens over the paged KV cache, for decodes and prefill chunks alike.

use crate::error::{ensure, ensure_floats};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "paged_attention";

/// For token at position `p` of its request and query head `h` with key head `g = h / (num_heads / num_kv_heads)`:
/// `s[j] = scale * dot(q[h], K[j, g])` for the positions `j <= p` (and `j > p - window` if there is a window),
/// `out[h] = sum_j softmax(s)[j] * V[j, g]`. In f32, rounded once to `out`'s type.
///
/// With sinks, `exp(sinks[h])` is added to the sum that the weights are divided by, once: a position that all see and that has no value.
///
/// Keys and values are read from the cache in its type, also those written in this very step, so that neither chunking
/// nor caching can be seen. Positions are taken in parts that begin at fixed multiples of a backend's constant; parts are
/// combined in ascending order.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | qkv | f32 | `[>= num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]`, or `num_heads * head_dim`; queries rotated |
/// | sinks | f32 | `[1, num_heads]` |
/// | out | float | `[>= num_tokens, num_heads * head_dim]` |
pub struct PagedAttention<'a, M> {
    /// The step's requests.
    pub sequences: &'a Sequences<M>,
    /// Query heads at the start of each row; the rest of the row is not read.
    pub qkv: &'a Tensor<M>,
    /// Query heads, a multiple of the key heads.
    pub num_heads: usize,
    /// Factor of the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Positions that a token sees, itself included: Mistral's sliding window.
    pub window: Option<usize>,
    /// Scores of heads without a value (attention sinks, gpt-oss): they take part in the softmax when all positions have.
    pub sinks: Option<&'a Tensor<M>>,
    /// The layer's cache.
    pub cache: &'a KvCache<M>,
    /// Attention output.
    pub out: &'a mut Tensor<M>,
}

/// Where each request's tokens are: the step's tables in the backend's memory. Lengths are those of [`Sequences::num_requests`].
#[derive(Debug)]
pub struct Sequences<M> {
    /// Requests in the step, `R`.
    pub num_requests: usize,
    /// Tokens in the step, `T`.
    pub num_tokens: usize,
    /// Longest of `seq_lens`.
    pub max_seq_len: usize,
    /// Sum of `seq_lens`.
    pub sum_seq_lens: usize,
    /// Most new tokens of one request.
    pub max_query_len: usize,
    /// u32 `[1, >= R + 1]`: tokens of request `r` are `query_start_loc[r]..query_start_loc[r + 1]`.
    pub query_start_loc: Tensor<M>,
    /// u32 `[1, >= R]`: positions that the request's last token sees without a window.
    pub seq_lens: Tensor<M>,
    /// u32 `[1, >= R * block_table_stride]`: block ids of each request.
    pub block_table: Tensor<M>,
    /// Length of a row of `block_table`.
    pub block_table_stride: usize,
}

impl<M> PagedAttention<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let KvSpec { num_kv_heads, head_dim, .. } = self.cache.spec;
        let s = self.sequences;
        let grouped = num_kv_heads > 0 && self.num_heads.is_multiple_of(num_kv_heads);
        ensure(grouped, NAME, "num_heads", format_args!("a multiple of {num_kv_heads}"), self.num_heads)?;
        let queries = self.num_heads * head_dim;
        let cols = if self.qkv.cols() == queries { queries } else { queries + 2 * num_kv_heads * head_dim };
        error::ensure_tensor(NAME, "qkv", self.qkv, DType::F32, s.num_tokens, cols)?;
        ensure_floats(NAME, "out", self.out, s.num_tokens, self.num_heads * head_dim)?;
        for (what, t, len) in [
            ("query_start_loc", &s.query_start_loc, s.num_requests + 1),
            ("seq_lens", &s.seq_lens, s.num_requests),
            ("block_table", &s.block_table, s.num_requests * s.block_table_stride),
        ] {
            let fits = t.dtype() == DType::U32 && t.cols() >= len;
            ensure(fits, NAME, what, format_args!("uint32 [1, at least {len}]"), t)?;
        }
        if let Some(sinks) = self.sinks {
            error::ensure_tensor(NAME, "sinks", sinks, DType::F32, 1, self.num_heads)?;
        }
        ensure(self.window != Some(0), NAME, "window", "at least 1", 0)?;
        Ok(())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.paged_attention(self)
    }
}

/// Plain loops for one query head at position `position`, whose sink is `sink`: `keys` and `values` are `[> position, head_dim]`.
pub fn reference(
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    position: usize,
    scale: f32,
    window: Option<usize>,
    sink: Option<f32>,
) -> Vec<f32> {
    let d = q.len();
    let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
    let score = |j: usize| -> f64 {
        let dot: f64 = q.iter().zip(&keys[j * d..]).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        dot * f64::from(scale)
    };
    let scores: Vec<f64> = (first..=position).map(score).collect();
    let sink = sink.map_or(f64::NEG_INFINITY, f64::from);
    let max = scores.iter().copied().fold(sink, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total = weights.iter().sum::<f64>() + (sink - max).exp();
    (0..d)
        .map(|i| {
            let sum: f64 = weights.iter().zip(first..).map(|(w, j)| w * f64::from(values[j * d + i])).sum();
            (sum / total) as f32
        })
        .collect()
}
