//! The memory of a step: its inputs and every activation, allocated once for the largest step. It computes nothing.

use crate::load::config::{Head, MlpConfig, ModelConfig, MoeConfig};
use crate::load::survey::Permutes;
use vllm_apple_executor::Batch;
use vllm_apple_executor::ExecutorInfo;
use vllm_apple_ops::{Backend, DType, ModelSize, Result, Sequences, StepSize, Tensor};

/// Buffers of a step in a backend's memory `M`. Where shapes depend on the tokens they hold `max_num_batched_tokens` rows.
pub(crate) struct Scratch<M> {
    pub(crate) token_ids: Tensor<M>,
    pub(crate) positions: Tensor<M>,
    pub(crate) slot_mapping: Tensor<M>,
    pub(crate) sequences: Sequences<M>,
    pub(crate) logit_rows: Tensor<M>,
    /// The residual stream.
    pub(crate) residual: Tensor<M>,
    /// Its norm: what the matmuls read.
    pub(crate) hidden: Tensor<M>,
    pub(crate) qkv: Tensor<M>,
    /// Queries of layers that share another layer's KV cache.
    pub(crate) q: Option<Tensor<M>>,
    pub(crate) attention: Tensor<M>,
    /// What attention or MLP adds to the residual.
    pub(crate) delta: Tensor<M>,
    /// Its norm, in models that normalise it.
    pub(crate) normed_delta: Option<Tensor<M>>,
    /// `hidden` and `attention` with their columns in another order, in models that have them so and where the other is not as wide and free.
    pub(crate) ordered_hidden: Option<Tensor<M>>,
    pub(crate) ordered_attention: Option<Tensor<M>>,
    pub(crate) mlp: Option<MlpScratch<M>>,
    pub(crate) moe: Option<MoeScratch<M>>,
    /// Rows of `hidden` that are wanted, or whose logits are.
    pub(crate) logit_hidden: Tensor<M>,
    /// Of models with an output head.
    pub(crate) logits: Option<Tensor<M>>,
}

/// Buffers of a gated MLP.
pub(crate) struct MlpScratch<M> {
    pub(crate) gate_up: Tensor<M>,
    pub(crate) activation: Tensor<M>,
}

/// Buffers of a mixture of experts. A pair is a token and an expert that it uses.
pub(crate) struct MoeScratch<M> {
    pub(crate) router: Tensor<M>,
    pub(crate) ids: Tensor<M>,
    pub(crate) weights: Tensor<M>,
    /// The input of each pair, in the order of its expert.
    pub(crate) ordered: Option<Tensor<M>>,
    pub(crate) pairs: MlpScratch<M>,
    pub(crate) pair_out: Tensor<M>,
    pub(crate) shared: Option<SharedScratch<M>>,
}

/// Buffers of a shared expert.
pub(crate) struct SharedScratch<M> {
    pub(crate) mlp: MlpScratch<M>,
    pub(crate) out: Tensor<M>,
    pub(crate) gate: Tensor<M>,
}

/// Makes a buffer of this type, rows and columns, or only counts its bytes.
pub(crate) type Allocate<'a, M> = &'a mut dyn FnMut(DType, usize, usize) -> Result<Tensor<M>>;

impl<M> Scratch<M> {
    /// All buffers, for steps within the limits of `info`; `permutes`: the weights that take their input's columns in another order.
    pub(crate) fn new(
        c: &ModelConfig,
        info: &ExecutorInfo,
        dtype: DType,
        permutes: Permutes,
        new: Allocate<'_, M>,
    ) -> Result<Self> {
        let (tokens, seqs, logits) = (info.max_num_batched_tokens, info.max_num_seqs, info.max_logit_rows);
        let max_blocks = info.max_model_len.div_ceil(info.block_size);
        let dense = c.layers.iter().find_map(|layer| match &layer.mlp {
            MlpConfig::Dense { intermediate_size, .. } => Some(*intermediate_size),
            MlpConfig::Moe(_) => None,
        });
        let moe = c.layers.iter().find_map(|layer| match &layer.mlp {
            MlpConfig::Dense { .. } => None,
            MlpConfig::Moe(moe) => Some(moe),
        });
        let heads = c.num_attention_heads * c.head_dim;
        let needs_ordered = permutes.inputs && heads != c.hidden_size;
        let sharing = c.layers.iter().find(|layer| layer.kv_sharing_target.is_some());
        Ok(Self {
            token_ids: new(DType::U32, 1, tokens)?,
            positions: new(DType::U32, 1, tokens)?,
            slot_mapping: new(DType::U32, 1, tokens)?,
            sequences: Sequences {
                num_requests: 0,
                num_tokens: 0,
                max_seq_len: 0,
                sum_seq_lens: 0,
                max_query_len: 0,
                query_start_loc: new(DType::U32, 1, seqs + 1)?,
                seq_lens: new(DType::U32, 1, seqs)?,
                block_table: new(DType::U32, 1, seqs * max_blocks)?,
                block_table_stride: 0,
            },
            logit_rows: new(DType::U32, 1, logits)?,
            residual: new(DType::F32, tokens, c.hidden_size)?,
            hidden: new(dtype, tokens, c.hidden_size)?,
            qkv: new(DType::F32, tokens, c.qkv_size())?,
            q: sharing.map(|layer| new(DType::F32, tokens, c.projection_size(layer))).transpose()?,
            attention: new(dtype, tokens, heads)?,
            delta: new(DType::F32, tokens, c.hidden_size)?,
            normed_delta: c.out_norms.then(|| new(DType::F32, tokens, c.hidden_size)).transpose()?,
            ordered_hidden: needs_ordered.then(|| new(dtype, tokens, c.hidden_size)).transpose()?,
            ordered_attention: needs_ordered.then(|| new(dtype, tokens, heads)).transpose()?,
            mlp: dense.map(|width| MlpScratch::new(tokens, width, dtype, new)).transpose()?,
            moe: moe.map(|moe| MoeScratch::new(c, moe, tokens, permutes.pairs, dtype, new)).transpose()?,
            logit_hidden: new(dtype, logits, c.hidden_size)?,
            logits: match c.head {
                Head::Logits => Some(new(DType::F32, logits, c.vocab_size)?),
                Head::Hidden => None,
            },
        })
    }

    /// Copies a batch, which must be within the limits, to the step's inputs.
    pub(crate) fn write_inputs<B: Backend<Memory = M>>(&mut self, backend: &B, batch: &Batch) {
        let write = |tensor: &mut Tensor<M>, values: &[u32]| backend.write(tensor, bytemuck::cast_slice(values));
        write(&mut self.token_ids, &batch.token_ids);
        write(&mut self.positions, &batch.positions);
        write(&mut self.slot_mapping, &batch.slot_mapping);
        write(&mut self.logit_rows, &batch.logit_rows);
        let s = &mut self.sequences;
        write(&mut s.query_start_loc, &batch.query_start_loc);
        write(&mut s.seq_lens, &batch.seq_lens);
        write(&mut s.block_table, &batch.block_table);
        s.block_table_stride = batch.block_table_stride;
        s.num_requests = batch.num_requests();
        s.num_tokens = batch.num_tokens();
        s.max_seq_len = batch.seq_lens.iter().copied().max().unwrap_or(0) as usize;
        s.sum_seq_lens = batch.seq_lens.iter().map(|&len| len as usize).sum();
        s.max_query_len = batch.query_start_loc.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0) as usize;
    }

    /// The size of the step whose inputs were written last.
    pub(crate) fn step_size(&self, model: ModelSize, batch: &Batch) -> StepSize {
        StepSize {
            num_tokens: self.sequences.num_tokens,
            num_requests: self.sequences.num_requests,
            max_query_len: self.sequences.max_query_len,
            max_seq_len: self.sequences.max_seq_len,
            num_logit_rows: batch.logit_rows.len(),
            model,
        }
    }
}

impl Scratch<()> {
    /// Bytes of all buffers.
    pub(crate) fn bytes(config: &ModelConfig, info: &ExecutorInfo, dtype: DType, permutes: Permutes) -> u128 {
        let mut bytes = 0;
        let mut count = |dtype: DType, rows: usize, cols: usize| {
            bytes += (rows as u128) * (cols as u128) * (dtype.size() as u128);
            Ok(Tensor::new((), dtype, rows, cols))
        };
        // Counting cannot fail.
        let _ = Self::new(config, info, dtype, permutes, &mut count);
        bytes
    }
}

impl<M> MlpScratch<M> {
    fn new(rows: usize, width: usize, dtype: DType, new: Allocate<'_, M>) -> Result<Self> {
        Ok(Self { gate_up: new(DType::F32, rows, 2 * width)?, activation: new(dtype, rows, width)? })
    }
}

impl<M> MoeScratch<M> {
    fn new(
        c: &ModelConfig,
        moe: &MoeConfig,
        tokens: usize,
        permutes: bool,
        dtype: DType,
        new: Allocate<'_, M>,
    ) -> Result<Self> {
        let pairs = tokens * moe.top_k;
        let shared = match moe.shared_intermediate_size {
            None => None,
            Some(width) => Some(SharedScratch {
                mlp: MlpScratch::new(tokens, width, dtype, new)?,
                out: new(DType::F32, tokens, c.hidden_size)?,
                gate: new(DType::F32, tokens, 1)?,
            }),
        };
        Ok(Self {
            router: new(DType::F32, tokens, moe.num_experts)?,
            ids: new(DType::U32, tokens, moe.top_k)?,
            weights: new(DType::F32, tokens, moe.top_k)?,
            ordered: permutes.then(|| new(dtype, pairs, c.hidden_size)).transpose()?,
            pairs: MlpScratch::new(pairs, moe.intermediate_size, dtype, new)?,
            pair_out: new(DType::F32, pairs, c.hidden_size)?,
            shared,
        })
    }
}
