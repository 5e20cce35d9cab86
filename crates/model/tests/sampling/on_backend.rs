//! Sampling from given logits on any backend, and random rows.

use vllm_apple_executor::{ExecutorInfo, RowResult, SamplingRow};
use vllm_apple_model::run::sampler::Sampler;
use vllm_apple_ops::{Backend, DType, Tensor};

/// A sampler with its backend.
pub struct OnBackend<B: Backend> {
    pub backend: B,
    vocab_size: usize,
    sampler: Sampler<B::Memory>,
    logits: Tensor<B::Memory>,
}

/// Rows of logits that a sampler may be given.
const MAX_LOGIT_ROWS: usize = 16;

impl<B: Backend> OnBackend<B> {
    /// A sampler for steps of so many requests.
    pub fn new(backend: B, vocab_size: usize, max_num_seqs: usize) -> Self {
        let info = ExecutorInfo {
            vocab_size,
            max_model_len: 4096,
            max_num_batched_tokens: 64,
            costly_context: None,
            embedding_size: None,
            max_num_seqs,
            max_logit_rows: MAX_LOGIT_ROWS,
            block_size: 16,
            num_blocks: 16,
        };
        let sampler = Sampler::new(&info, &mut |dtype, rows, cols| backend.allocate(dtype, rows, cols)).unwrap();
        let logits = backend.allocate(DType::F32, MAX_LOGIT_ROWS, vocab_size).unwrap();
        Self { backend, vocab_size, sampler, logits }
    }

    /// Answers the rows, in turns.
    pub fn sample(&mut self, logits: &[f32], mut rows: &[SamplingRow<'_>]) -> Result<Vec<RowResult>, String> {
        let num_logit_rows = logits.len() / self.vocab_size;
        self.backend.write(&mut self.logits, bytemuck::cast_slice(logits));
        let mut out = Vec::new();
        while !rows.is_empty() {
            let (turn, rest) = rows.split_at(self.sampler.prepare(&self.backend, rows, num_logit_rows)?);
            self.sampler.record(&mut self.backend, &mut self.logits).unwrap();
            self.backend.synchronize().unwrap();
            self.sampler.answer(&self.backend, &self.logits, turn, &mut out);
            rows = rest;
        }
        let after = &self.backend.read(&self.logits)[..4 * logits.len()];
        assert_eq!(after, bytemuck::cast_slice::<f32, u8>(logits), "sampling has left a trace");
        Ok(out)
    }
}
