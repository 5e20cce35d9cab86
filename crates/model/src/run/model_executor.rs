//! The [`Executor`] of a real model: checks each batch, runs decoder and sampler.

use crate::load::config::LayerConfig;
use crate::load::error::LoadError;
use crate::load::mapped_file::WeightsFile;
use crate::load::types::ModelTypes;
use crate::plan::memory::{MemoryPlan, kv_spec};
use crate::run::batch_check::BatchCheck;
use crate::run::decoder::Decoder;
use crate::run::loaded_model::LoadedModel;
use crate::run::sampler::Sampler;
use std::sync::Arc;
use vllm_apple_executor::Batch;
use vllm_apple_executor::{Executor, ExecutorError, ExecutorInfo, RowResult, SamplingRow};
use vllm_apple_ops::{Backend, Error};

/// A model that is ready to compute steps.
pub struct ModelExecutor<B: Backend> {
    pub(crate) backend: B,
    pub(crate) decoder: Decoder<B>,
    pub(crate) plan: MemoryPlan,
    types: ModelTypes,
    /// Those that the backend computes on in place; none if it has copied the weights.
    pub(crate) weights_files: Vec<Arc<WeightsFile>>,
    check: BatchCheck,
    /// `None`: the model has no output head.
    pub(crate) sampler: Option<Sampler<B::Memory>>,
    /// Rows of logits, or of hidden states, that the last step left.
    num_logit_rows: usize,
    /// Why the backend did not compute the last step, if it is for that.
    pub(crate) failure: Option<Failure>,
}

/// Why a backend did not compute a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The system ended it though nothing is wrong with it: it may be computed again.
    Ended,
    /// The device failed or refused it.
    OfDevice,
    /// An argument, or no memory.
    Other,
}

impl Failure {
    fn of(error: &Error) -> Self {
        match error {
            Error::TooLong { .. } | Error::Discarded { .. } => Self::Ended,
            error if error.is_of_device() => Self::OfDevice,
            _ => Self::Other,
        }
    }
}

impl<B: Backend> LoadedModel<B> {
    /// The model with a KV cache of `num_blocks`.
    ///
    /// # Errors
    /// One sequence of `max_model_len` does not fit into them, or they do not fit into memory.
    pub fn allocate(self, num_blocks: usize) -> Result<ModelExecutor<B>, LoadError> {
        let LoadedModel { backend, config, size, weights, ropes, scratch, sampler, plan, types, weights_files, .. } =
            self;
        let plan = plan.with_blocks(num_blocks)?;
        plan.log();
        let info = &plan.info;
        let spec = kv_spec(&config, types.kv_cache, info);
        let cache = |layer: &LayerConfig| match layer.kv_sharing_target {
            None => backend.allocate_kv_cache(spec).map(Some),
            Some(_) => Ok(None),
        };
        let caches = config.layers.iter().map(cache).collect::<Result<_, _>>()?;
        let check = BatchCheck::new(info);
        let decoder = Decoder { config, size, weights, ropes, caches, scratch };
        Ok(ModelExecutor {
            backend,
            decoder,
            plan,
            types,
            weights_files,
            check,
            sampler,
            num_logit_rows: 0,
            failure: None,
        })
    }
}

impl<B: Backend> ModelExecutor<B> {
    /// The memory that the model takes.
    pub fn memory_plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// What its numbers are.
    pub fn types(&self) -> ModelTypes {
        self.types
    }

    /// The device that computes.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The same, between steps.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// The logits of the last step, `[logit_rows, vocab_size]`; none of a model without an output head.
    pub fn logits(&self) -> &[f32] {
        let Some(logits) = &self.decoder.scratch.logits else { return &[] };
        let all: &[f32] = bytemuck::cast_slice(self.backend.read(logits));
        &all[..self.num_logit_rows * self.plan.info.vocab_size]
    }
}

impl<B: Backend> Executor for ModelExecutor<B> {
    fn info(&self) -> &ExecutorInfo {
        &self.plan.info
    }

    fn forward(&mut self, batch: &Batch) -> Result<(), ExecutorError> {
        self.again_if_lost(|this| {
            this.record(batch)?;
            this.synchronize()?;
            this.num_logit_rows = batch.logit_rows.len();
            Ok(())
        })
    }

    fn sample(&mut self, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        let num_logit_rows = self.num_logit_rows;
        self.again_if_lost(|this| {
            // A failed turn gives the logits up.
            this.num_logit_rows = num_logit_rows;
            out.clear();
            this.sample_in_turns(rows, out)
        })
    }

    fn hidden(&mut self, out: &mut Vec<f32>) -> Result<(), ExecutorError> {
        out.clear();
        if self.plan.info.embedding_size.is_none() {
            return Err(ExecutorError::Step("the model answers with logits, not with hidden states".to_owned()));
        }
        let rows = &self.decoder.scratch.logit_hidden;
        let bytes = self.backend.read(rows);
        let len = self.num_logit_rows * rows.cols() * rows.dtype().size();
        rows.dtype().decode_into(&bytes[..len], out);
        Ok(())
    }

    fn step(&mut self, batch: &Batch, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        self.again_if_lost(|this| this.step_once(batch, rows, out))
    }
}

impl<B: Backend> ModelExecutor<B> {
    /// Runs a step, and once more if the system ended it though nothing is wrong with it: because it took too long, where the backend has
    /// divided it more finely then, or because of others' commands. What the first run wrote, the second writes again.
    fn again_if_lost(
        &mut self,
        mut run: impl FnMut(&mut Self) -> Result<(), ExecutorError>,
    ) -> Result<(), ExecutorError> {
        self.failure = None;
        match run(self) {
            Err(ExecutorError::Step(reason)) if self.failure == Some(Failure::Ended) => {
                tracing::warn!("the step is computed again: {reason}");
                self.failure = None;
                run(self)
            }
            result => result,
        }
    }

    fn step_once(
        &mut self,
        batch: &Batch,
        rows: &[SamplingRow<'_>],
        out: &mut Vec<RowResult>,
    ) -> Result<(), ExecutorError> {
        out.clear();
        // The sampler's tables are written before anything is recorded.
        let num_first = self.prepare_sampling(rows, batch.logit_rows.len())?;
        self.record(batch)?;
        if num_first > 0 {
            self.record_sampling()?;
        }
        self.synchronize()?;
        self.num_logit_rows = batch.logit_rows.len();
        let (first, rest) = rows.split_at(num_first);
        if let (Some(sampler), Some(logits)) = (&self.sampler, &self.decoder.scratch.logits) {
            sampler.answer(&self.backend, logits, first, out);
        }
        self.sample_in_turns(rest, out)
    }

    /// Checks the batch and records it.
    fn record(&mut self, batch: &Batch) -> Result<(), ExecutorError> {
        self.num_logit_rows = 0;
        self.check.check(batch, &self.plan.info).map_err(ExecutorError::Step)?;
        if batch.num_tokens() == 0 {
            return Ok(());
        }
        let result = self.decoder.forward(&mut self.backend, batch);
        self.recorded(result)
    }

    /// Tells the sampler about the first of the rows, and says how many they are.
    pub(crate) fn prepare_sampling(
        &mut self,
        rows: &[SamplingRow<'_>],
        num_logit_rows: usize,
    ) -> Result<usize, ExecutorError> {
        match &mut self.sampler {
            _ if rows.is_empty() => Ok(0),
            Some(sampler) => sampler.prepare(&self.backend, rows, num_logit_rows).map_err(ExecutorError::Step),
            None => Err(ExecutorError::Step("the model answers with hidden states, not with logits".to_owned())),
        }
    }

    /// Records the op for rows that were prepared, so that there is an output head.
    fn record_sampling(&mut self) -> Result<(), ExecutorError> {
        let (sampler, logits) = (self.sampler.as_mut(), self.decoder.scratch.logits.as_mut());
        let result = sampler.zip(logits).map_or(Ok(()), |(sampler, logits)| sampler.record(&mut self.backend, logits));
        self.recorded(result)
    }

    /// Answers the rows, from the logits of the last step.
    fn sample_in_turns(&mut self, mut rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        while !rows.is_empty() {
            let (turn, rest) = rows.split_at(self.prepare_sampling(rows, self.num_logit_rows)?);
            if let (Some(sampler), Some(logits)) = (&mut self.sampler, &self.decoder.scratch.logits) {
                sampler.keep(&self.backend, logits);
            }
            let sampled = self.record_sampling().and_then(|()| self.synchronize());
            if let (Some(sampler), Some(logits)) = (&self.sampler, &mut self.decoder.scratch.logits) {
                if sampled.is_err() && self.failure == Some(Failure::Ended) {
                    sampler.put_back(&self.backend, logits);
                }
                sampled?;
                sampler.answer(&self.backend, logits, turn, out);
            }
            rows = rest;
        }
        Ok(())
    }

    /// Runs what is recorded. What was computed from weights files that have changed is not for anybody.
    fn synchronize(&mut self) -> Result<(), ExecutorError> {
        let result = self.backend.synchronize();
        // First: whatever else has gone wrong may be because of it.
        if let Err(changed) = self.weights_files.iter().try_for_each(|file| file.check()) {
            self.num_logit_rows = 0;
            return Err(ExecutorError::Fatal(changed.to_string()));
        }
        self.recorded(result)
    }

    /// Gives the step up if recording or running it failed.
    fn recorded(&mut self, result: vllm_apple_ops::Result<()>) -> Result<(), ExecutorError> {
        result.map_err(|e| {
            self.backend.discard();
            self.num_logit_rows = 0;
            self.failure = Some(Failure::of(&e));
            match e {
                Error::Device { .. } => ExecutorError::Fatal(e.to_string()),
                _ => ExecutorError::Step(e.to_string()),
            }
        })
    }
}
