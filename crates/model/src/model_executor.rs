//! The [`Executor`] of a real model: checks each batch, runs decoder and sampler.

use crate::batch_check::BatchCheck;
use crate::config::LayerConfig;
use crate::decoder::Decoder;
use crate::error::LoadError;
use crate::loaded_model::LoadedModel;
use crate::mapped_file::WeightsFile;
use crate::memory::{MemoryPlan, kv_spec};
use crate::sampler::Sampler;
use crate::sampler::device::DeviceSampler;
use crate::types::ModelTypes;
use std::sync::Arc;
use vllm_apple_executor::Batch;
use vllm_apple_executor::{Executor, ExecutorError, ExecutorInfo, RowResult, SamplingRow, recycle};
use vllm_apple_ops::{Backend, Error};

/// A model that is ready to compute steps.
pub struct ModelExecutor<B: Backend> {
    pub(crate) backend: B,
    pub(crate) decoder: Decoder<B>,
    pub(crate) plan: MemoryPlan,
    types: ModelTypes,
    /// Those that the backend computes on in place; none if it has copied the weights.
    weights_files: Vec<Arc<WeightsFile>>,
    check: BatchCheck,
    sampler: Sampler,
    /// If the backend samples.
    pub(crate) device_sampler: Option<DeviceSampler<B::Memory>>,
    /// Rows of a step that the device does not take, and what was picked; empty between steps.
    host_rows: Vec<SamplingRow<'static>>,
    host_samples: Vec<RowResult>,
    /// Rows of logits that the last step left.
    num_logit_rows: usize,
}

impl<B: Backend> ModelExecutor<B> {
    /// Of what is loaded. Allocates a KV cache of `num_blocks`.
    ///
    /// # Errors
    /// They do not fit, or are too few for one sequence of `max_model_len`.
    pub(crate) fn new(model: LoadedModel<B>, num_blocks: usize) -> Result<Self, LoadError> {
        let LoadedModel {
            backend, config, weights, ropes, scratch, device_sampler, plan, types, weights_files, ..
        } = model;
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
        let sampler = Sampler::new(info.vocab_size, info.max_logit_rows);
        let (host_rows, host_samples) =
            (Vec::with_capacity(info.max_logit_rows), Vec::with_capacity(info.max_logit_rows));
        let decoder = Decoder { config, weights, ropes, caches, scratch };
        Ok(Self {
            backend,
            decoder,
            plan,
            types,
            weights_files,
            check,
            sampler,
            device_sampler,
            host_rows,
            host_samples,
            num_logit_rows: 0,
        })
    }

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
        self.record(batch)?;
        self.synchronize()?;
        self.num_logit_rows = batch.logit_rows.len();
        Ok(())
    }

    fn sample(&mut self, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        if !self.prepare_device(rows, self.num_logit_rows) {
            return self.sample_on_host(rows, out);
        }
        self.record_sampling()?;
        self.synchronize()?;
        self.answer(rows, out)
    }

    fn step(&mut self, batch: &Batch, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        out.clear();
        // The device's tables are written before anything is recorded.
        let on_device = self.prepare_device(rows, batch.logit_rows.len());
        self.record(batch)?;
        if on_device {
            self.record_sampling()?;
        }
        self.synchronize()?;
        self.num_logit_rows = batch.logit_rows.len();
        match on_device {
            true => self.answer(rows, out),
            false if rows.is_empty() => Ok(()),
            false => self.sample_on_host(rows, out),
        }
    }
}

impl<B: Backend> ModelExecutor<B> {
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

    /// Tells the device about the rows that it takes. False: all rows are the host's.
    pub(crate) fn prepare_device(&mut self, rows: &[SamplingRow<'_>], num_logit_rows: usize) -> bool {
        match &mut self.device_sampler {
            Some(device) if self.backend.samples() => device.prepare(&self.backend, rows, num_logit_rows),
            _ => false,
        }
    }

    fn record_sampling(&mut self) -> Result<(), ExecutorError> {
        let device = self.device_sampler.as_mut().expect("rows were prepared for it");
        let result = device.record(&mut self.backend, &mut self.decoder.scratch.logits);
        self.recorded(result)
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
            match e {
                Error::Device { .. } => ExecutorError::Fatal(e.to_string()),
                _ => ExecutorError::Step(e.to_string()),
            }
        })
    }

    fn sample_on_host(&mut self, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        let all: &[f32] = bytemuck::cast_slice(self.backend.read(&self.decoder.scratch.logits));
        let logits = &all[..self.num_logit_rows * self.plan.info.vocab_size];
        let parallel = |n: usize, f: &(dyn Fn(usize) + Sync)| self.backend.host_parallel(n, f);
        self.sampler.sample(logits, rows, out, &parallel).map_err(ExecutorError::Step)
    }

    /// The device's answers, and the host's to the rows that the device did not take.
    fn answer(&mut self, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        let takes = |device: &Option<DeviceSampler<B::Memory>>, i: usize| device.as_ref().is_some_and(|d| d.takes(i));
        let mut host_rows: Vec<SamplingRow<'_>> = std::mem::take(&mut self.host_rows);
        host_rows.extend((0..rows.len()).filter(|&i| !takes(&self.device_sampler, i)).map(|i| rows[i].clone()));
        let mut host_samples = std::mem::take(&mut self.host_samples);
        host_samples.clear();
        let result = if host_rows.is_empty() { Ok(()) } else { self.sample_on_host(&host_rows, &mut host_samples) };
        self.host_rows = recycle(host_rows);
        result?;
        out.clear();
        let mut host = host_samples.drain(..);
        let mut num_answered = 0;
        for (i, row) in rows.iter().enumerate() {
            let sample = match &self.device_sampler {
                Some(device) if device.takes(i) => {
                    num_answered += 1;
                    device.answer(&self.backend, num_answered - 1, row)
                }
                _ => host.next().expect("the host answers each of its rows"),
            };
            out.push(sample);
        }
        drop(host);
        self.host_samples = host_samples;
        Ok(())
    }
}
