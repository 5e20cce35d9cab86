//! The [`Executor`] of a real model: loads a checkpoint into a backend, checks each batch, runs decoder and sampler.

use crate::batch::Batch;
use crate::batch_check::BatchCheck;
use crate::checkpoint::Checkpoint;
use crate::config::LayerConfig;
use crate::decoder::Decoder;
use crate::error::LoadError;
use crate::executor::{Executor, ExecutorError, ExecutorInfo, Sample, SamplingRow};
use crate::memory::{LoadOptions, MemoryPlan, kv_spec, largest_step};
use crate::sampler::Sampler;
use crate::scratch::Scratch;
use crate::weights::Weights;
use vllm_apple_ops::{Backend, DType, Error, RopeTable};

/// A model that is ready to compute steps.
pub struct ModelExecutor<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
    plan: MemoryPlan,
    dtype: DType,
    check: BatchCheck,
    sampler: Sampler,
    /// Rows of logits that the last step left.
    num_logit_rows: usize,
}

impl<B: Backend> ModelExecutor<B> {
    /// Loads the weights and allocates everything that steps need.
    ///
    /// # Errors
    /// A fault of the checkpoint, an option out of range, or too little memory.
    pub fn load(mut backend: B, checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Self, LoadError> {
        let config = checkpoint.config().clone();
        let dtype = options.dtype.unwrap_or_else(|| checkpoint.dtype());
        let plan = MemoryPlan::new(&config, dtype, options, &backend)?;
        plan.log();
        let info = &plan.info;
        let weights = Weights::load(&backend, checkpoint, dtype)?;
        let values = config.rope.values(config.head_dim, config.max_position_embeddings, info.max_model_len);
        let table = |values: &[f32]| -> Result<_, LoadError> {
            let mut tensor = backend.allocate(DType::F32, info.max_model_len, config.head_dim / 2)?;
            backend.write(&mut tensor, bytemuck::cast_slice(values));
            Ok(tensor)
        };
        let rope = RopeTable { cos: table(&values.cos)?, sin: table(&values.sin)? };
        let spec = kv_spec(&config, dtype, info);
        let cache = |layer: &LayerConfig| match layer.kv_sharing_target {
            None => backend.allocate_kv_cache(spec).map(Some),
            Some(_) => Ok(None),
        };
        let caches = config.layers.iter().map(cache).collect::<Result<_, _>>()?;
        let scratch = Scratch::new(&config, info, dtype, &mut |dtype, rows, cols| backend.allocate(dtype, rows, cols))?;
        backend.prepare(&largest_step(&config, dtype, info))?;
        let check = BatchCheck::new(info);
        let sampler = Sampler::new(info.vocab_size, info.max_logit_rows);
        let decoder = Decoder { config, weights, rope, caches, scratch };
        Ok(Self { backend, decoder, dtype, check, sampler, plan, num_logit_rows: 0 })
    }

    /// The memory that the model takes.
    pub fn memory_plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// Type of weights, activations and KV cache.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device that computes.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The logits of the last step, `[logit_rows, vocab_size]`.
    pub fn logits(&self) -> &[f32] {
        let all: &[f32] = bytemuck::cast_slice(self.backend.read(&self.decoder.scratch.logits));
        &all[..self.num_logit_rows * self.plan.info.vocab_size]
    }
}

impl<B: Backend> Executor for ModelExecutor<B> {
    fn info(&self) -> &ExecutorInfo {
        &self.plan.info
    }

    fn forward(&mut self, batch: &Batch) -> Result<(), ExecutorError> {
        self.num_logit_rows = 0;
        self.check.check(batch, &self.plan.info).map_err(ExecutorError::Step)?;
        if batch.num_tokens() == 0 {
            return Ok(());
        }
        self.decoder.forward(&mut self.backend, batch).map_err(|e| {
            self.backend.discard();
            match e {
                Error::Device { .. } => ExecutorError::Fatal(e.to_string()),
                _ => ExecutorError::Step(e.to_string()),
            }
        })?;
        self.num_logit_rows = batch.logit_rows.len();
        Ok(())
    }

    fn sample(&mut self, rows: &[SamplingRow<'_>], out: &mut Vec<Sample>) -> Result<(), ExecutorError> {
        let all: &[f32] = bytemuck::cast_slice(self.backend.read(&self.decoder.scratch.logits));
        let logits = &all[..self.num_logit_rows * self.plan.info.vocab_size];
        let parallel = |n: usize, f: &(dyn Fn(usize) + Sync)| self.backend.host_parallel(n, f);
        self.sampler.sample(logits, rows, out, &parallel).map_err(ExecutorError::Step)
    }
}
