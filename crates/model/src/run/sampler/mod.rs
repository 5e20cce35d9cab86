//! Picks or scores a token from each row of logits, with vLLM's semantics: tells the op `sample` about the rows, and reads its answers. It
//! knows no backend, and no requests beyond a row's own parameters.
//!
//! Order, as in vLLM's V1 engine: the grammar's mask; log-probabilities of the logits that it leaves; `min_tokens`, `logit_bias`,
//! penalties; then the largest logit, or temperature, `min_p`, `top_k`, `top_p` and one draw.
//! A row's result depends on nothing but the row: not on other rows, their order, the number of threads or the backend.
//!
//! What a call of the op may hold is bounded: all rows of a step, tables for the usual penalties of each, and the largest tables that any
//! one row can have. Rows that do not fit are sampled in another turn, by the same op.

mod adjustments;
mod plan;

use crate::run::scratch::Allocate;
use plan::Plan;
use vllm_apple_executor::{
    ExecutorInfo, MAX_LOGPROBS, RowError, RowResult, RowTask, Sample, SamplingRow, TokenLogprobs, allows,
};
use vllm_apple_ops as ops;
use vllm_apple_ops::sample::{Adjustment, MAX_TOP, Picked, SampleRow, mask_words};
use vllm_apple_ops::{Backend, DType, Tensor};

const _: () = assert!(MAX_LOGPROBS as usize <= MAX_TOP, "what a request may ask for is what the op reports");

/// Samples rows in a backend's memory `M`. All memory is allocated once.
///
/// Rows are sampled in turns: while some are left, [`Sampler::prepare`], [`Sampler::record`], the backend's `synchronize`,
/// [`Sampler::answer`].
pub struct Sampler<M> {
    buffers: Buffers<M>,
    plan: Plan,
    /// The logits that the turn changes for a while, as they were.
    kept: Vec<f32>,
}

/// The op's arguments and answers.
struct Buffers<M> {
    params: Tensor<M>,
    adjustments: Tensor<M>,
    masks: Tensor<M>,
    picked: Tensor<M>,
    top: Tensor<M>,
}

/// The most that a turn holds.
#[derive(Debug, Clone, Copy)]
struct Limits {
    vocab_size: usize,
    rows: usize,
    adjustments: usize,
    masks: usize,
}

impl Limits {
    /// Tokens of each request that biases and the penalties of its output usually concern, at most.
    const USUAL_ADJUSTMENTS: usize = 2048;

    fn new(info: &ExecutorInfo) -> Self {
        Self {
            vocab_size: info.vocab_size,
            rows: info.max_logit_rows,
            // A row's tokens differ, so that any row fits.
            adjustments: info.vocab_size.max(info.max_num_seqs * Self::USUAL_ADJUSTMENTS),
            // Of what is allowed, and of what was seen.
            masks: 2 * info.max_num_seqs,
        }
    }
}

impl<M> Buffers<M> {
    fn new(limits: Limits, new: Allocate<'_, M>) -> ops::Result<Self> {
        Ok(Self {
            params: new(DType::U32, limits.rows, SampleRow::WORDS)?,
            adjustments: new(DType::U32, limits.adjustments, Adjustment::WORDS)?,
            masks: new(DType::U32, limits.masks, mask_words(limits.vocab_size))?,
            picked: new(DType::U32, limits.rows, Picked::WORDS)?,
            top: new(DType::U32, limits.rows, 2 * MAX_TOP)?,
        })
    }
}

impl Sampler<()> {
    /// Bytes that a sampler takes in the backend's memory and, for what it tells the backend, in its own.
    pub(crate) fn bytes(info: &ExecutorInfo) -> u128 {
        let mut bytes = 0;
        let mut count = |dtype: DType, rows: usize, cols: usize| {
            bytes += (rows * cols * dtype.size()) as u128;
            Ok(Tensor::new((), dtype, rows, cols))
        };
        let limits = Limits::new(info);
        // Counting cannot fail.
        let _ = Buffers::new(limits, &mut count);
        2 * bytes + 4 * (info.vocab_size + limits.adjustments) as u128
    }
}

impl<M> Sampler<M> {
    /// A sampler of the steps that `info` allows, in memory that `new` allocates.
    ///
    /// # Errors
    /// What `new` says.
    pub fn new(
        info: &ExecutorInfo,
        new: &mut dyn FnMut(DType, usize, usize) -> ops::Result<Tensor<M>>,
    ) -> ops::Result<Self> {
        let limits = Limits::new(info);
        let kept = Vec::with_capacity(limits.adjustments);
        Ok(Self { buffers: Buffers::new(limits, new)?, plan: Plan::new(limits), kept })
    }

    /// Tells the backend about the first of the `rows`, of `num_logit_rows` rows of logits, and returns how many they are: at least one if
    /// there are any. Nothing may be recorded.
    ///
    /// # Errors
    /// A row, a token or a number of alternatives that is not there: a fault of the caller.
    pub fn prepare<B: Backend<Memory = M>>(
        &mut self,
        backend: &B,
        rows: &[SamplingRow<'_>],
        num_logit_rows: usize,
    ) -> Result<usize, String> {
        let num_rows = self.plan.make(rows, num_logit_rows)?;
        backend.write(&mut self.buffers.params, bytemuck::cast_slice(self.plan.params()));
        backend.write(&mut self.buffers.adjustments, bytemuck::cast_slice(self.plan.adjustments()));
        backend.write(&mut self.buffers.masks, bytemuck::cast_slice(self.plan.masks()));
        Ok(num_rows)
    }

    /// Keeps the logits that the op will change for a while: whatever becomes of its commands, [`Sampler::put_back`] makes them what they
    /// were. Nothing may be recorded.
    pub(crate) fn keep<B: Backend<Memory = M>>(&mut self, backend: &B, logits: &Tensor<M>) {
        let all: &[f32] = bytemuck::cast_slice(backend.read(logits));
        self.kept.clear();
        self.kept.extend(self.plan.changes().map(|(row, token)| all[row * logits.cols() + token]));
    }

    /// See [`Sampler::keep`].
    pub(crate) fn put_back<B: Backend<Memory = M>>(&self, backend: &B, logits: &mut Tensor<M>) {
        let cols = logits.cols();
        let mut all: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(backend.read(logits));
        for ((row, token), logit) in self.plan.changes().zip(&self.kept) {
            all[row * cols + token] = *logit;
        }
        backend.write(logits, bytemuck::cast_slice(&all));
    }

    /// Records the op for the rows of the turn.
    ///
    /// # Errors
    /// What the backend says.
    pub fn record<B: Backend<Memory = M>>(&mut self, backend: &mut B, logits: &mut Tensor<M>) -> ops::Result<()> {
        let rows = self.plan.params().len();
        let Buffers { params, adjustments, masks, picked, top } = &mut self.buffers;
        ops::Sample { rows, logits, params, adjustments, masks, picked, top }.run(backend)
    }

    /// Appends to `out` the answers to `rows`, which are those of the turn. A row for which no token may be picked, or whose `logits` are not
    /// numbers, has a [`RowError`].
    pub fn answer<B: Backend<Memory = M>>(
        &self,
        backend: &B,
        logits: &Tensor<M>,
        rows: &[SamplingRow<'_>],
        out: &mut Vec<RowResult>,
    ) {
        let all: &[f32] = bytemuck::cast_slice(backend.read(logits));
        let picked: &[u32] = bytemuck::cast_slice(backend.read(&self.buffers.picked));
        let top: &[u32] = bytemuck::cast_slice(backend.read(&self.buffers.top));
        let words = picked.as_chunks().0.iter().zip(top.chunks_exact(2 * MAX_TOP));
        out.extend(rows.iter().zip(words).map(|(row, (picked, top))| {
            let picked = Picked::of_words(*picked);
            result(row, picked, top, &all[row.logit_row * logits.cols()..][..self.plan.vocab_size()])
        }));
    }
}

fn result(row: &SamplingRow<'_>, picked: Picked, top: &[u32], logits: &[f32]) -> RowResult {
    let vocab_size = logits.len();
    if !picked.max.is_finite() {
        let error = RowError::new(&row.task, vocab_size, picked.max);
        // Which the op counts as smallest.
        let is_nan = matches!(error, RowError::NotFinite { .. }) && logits.iter().any(|logit| logit.is_nan());
        return Err(if is_nan { RowError::NotFinite { max: f32::NAN.to_string() } } else { error });
    }
    if row.num_logprobs.is_some() && picked.logprob.is_nan() {
        // The row has an infinite logit, which the request does not allow: beside it no other has a probability.
        return Err(RowError::NotFinite { max: f32::INFINITY.to_string() });
    }
    let logprobs = row.num_logprobs.map(|num_top| {
        let entries = top.as_chunks::<2>().0[..num_top].iter().take_while(|[id, _]| *id != u32::MAX);
        let mut top = Vec::with_capacity(num_top);
        top.extend(entries.map(|&[id, logprob]| (id, f32::from_bits(logprob))));
        if let RowTask::Sample { allowed_tokens: Some(mask), .. } = row.task {
            // The op lists what has a probability.
            let forbidden = (0..vocab_size as u32).filter(|&token| !allows(mask, token));
            top.extend(forbidden.take(num_top - top.len()).map(|token| (token, f32::NEG_INFINITY)));
        }
        TokenLogprobs { logprob: picked.logprob, rank: picked.rank, top }
    });
    Ok(Sample { token_id: picked.token, logprobs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_apple_cpu::CpuBackend;
    use vllm_apple_executor::SamplingParams;

    #[test]
    fn logits_that_are_changed_for_a_while_can_be_put_back() {
        let info = ExecutorInfo {
            vocab_size: 300,
            max_model_len: 64,
            max_num_batched_tokens: 8,
            costly_context: None,
            embedding_size: None,
            max_num_seqs: 4,
            max_logit_rows: 4,
            block_size: 16,
            num_blocks: 16,
        };
        let mut backend = CpuBackend::new(Some(1));
        let mut sampler = Sampler::new(&info, &mut |dtype, rows, cols| backend.allocate(dtype, rows, cols)).unwrap();
        let mut logits = backend.allocate(DType::F32, 4, 300).unwrap();
        let values: Vec<f32> = (0..4 * 300).map(|i| (i % 37) as f32).collect();
        backend.write(&mut logits, bytemuck::cast_slice(&values));
        let params =
            SamplingParams { logit_bias: [(3, 4.0), (299, -3.0)].into(), presence_penalty: 1.0, ..Default::default() };
        let task = RowTask::Sample {
            params: &params,
            seed: 1,
            prompt_token_ids: &[],
            output_token_ids: &[7, 9],
            eos_token_ids: &[],
            allowed_tokens: None,
        };
        let rows = [SamplingRow { logit_row: 2, task, num_logprobs: None }];
        assert_eq!(sampler.prepare(&backend, &rows, 4), Ok(1));
        sampler.keep(&backend, &logits);
        // Ended half way, and with the answer.
        let mut changed = values.clone();
        for token in [3, 7, 299] {
            changed[2 * 300 + token] = -1.0;
        }
        backend.write(&mut logits, bytemuck::cast_slice(&changed));
        sampler.put_back(&backend, &mut logits);
        assert_eq!(bytemuck::cast_slice::<u8, f32>(backend.read(&logits)), values);
        sampler.record(&mut backend, &mut logits).unwrap();
        sampler.put_back(&backend, &mut logits);
        assert_eq!(bytemuck::cast_slice::<u8, f32>(backend.read(&logits)), values);
    }

    /// What is counted before anything is allocated is what is allocated.
    #[test]
    fn bytes_are_those_of_the_buffers_and_of_their_copies_on_the_host() {
        for (vocab_size, max_num_seqs) in [(300, 5), (9000, 1)] {
            let info = ExecutorInfo {
                vocab_size,
                max_model_len: 4096,
                max_num_batched_tokens: 64,
                costly_context: None,
                embedding_size: None,
                max_num_seqs,
                max_logit_rows: 9,
                block_size: 16,
                num_blocks: 16,
            };
            let mut allocated = 0;
            let sampler = Sampler::new(&info, &mut |dtype, rows, cols| {
                let bytes = dtype.size() * rows * cols;
                allocated += bytes;
                Ok(Tensor::new(vec![0u8; bytes], dtype, rows, cols))
            })
            .unwrap();
            let on_host = 4 * (vocab_size + sampler.kept.capacity());
            assert_eq!(Sampler::bytes(&info), (2 * allocated + on_host) as u128);
            let on_host = sampler.plan.bytes();
            assert!(on_host > allocated / 2 && on_host <= allocated + 4 * vocab_size, "{on_host} {allocated}");
        }
    }
}
