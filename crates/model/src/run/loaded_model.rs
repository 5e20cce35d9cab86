//! A model's weights on a backend, before it has a KV cache: who serves the model decides how large that is.

use crate::load::checkpoint::Checkpoint;
use crate::load::config::{Head, ModelConfig};
use crate::load::error::LoadError;
use crate::load::mapped_file::WeightsFile;
use crate::load::quantization_option::QuantizationOption;
use crate::load::rope::RopeConfig;
use crate::load::types::ModelTypes;
use crate::load::weights::Weights;
use crate::plan::memory::{KvBlock, LoadOptions, MemoryPlan, largest_step};
use crate::run::sampler::Sampler;
use crate::run::scratch::Scratch;
use crate::run::warm_up::{Phase, WarmUp};
use std::sync::Arc;
use vllm_apple_ops::{Backend, DType, ModelSize, RopeTable};

/// Weights, tables and scratch of a model. [`Self::kv_block`] says what a block of its KV cache costs, [`Self::num_blocks`] how many the
/// machine has room for, and [`Self::allocate`] makes the model ready.
pub struct LoadedModel<B: Backend> {
    pub(crate) backend: B,
    pub(crate) config: ModelConfig,
    /// What the backend's scratch is sized by.
    pub(crate) size: ModelSize,
    pub(crate) weights: Weights<B>,
    /// Those of [`ModelConfig::ropes`].
    pub(crate) ropes: Vec<RopeTable<B::Memory>>,
    pub(crate) scratch: Scratch<B::Memory>,
    /// `None`: the model has no output head.
    pub(crate) sampler: Option<Sampler<B::Memory>>,
    pub(crate) plan: MemoryPlan,
    pub(crate) types: ModelTypes,
    pub(crate) kv_cache_memory: Option<u64>,
    /// Those that the backend computes on in place; none if it has copied the weights.
    pub(crate) weights_files: Vec<Arc<WeightsFile>>,
}

impl<B: Backend> LoadedModel<B> {
    /// Loads the weights, and allocates what steps need beside the KV cache.
    ///
    /// # Errors
    /// A fault of the checkpoint, an option out of range, or too little memory.
    pub fn load(backend: B, checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Self, LoadError> {
        Self::load_with_progress(backend, checkpoint, options, &mut |_| {})
    }

    /// As [`Self::load`], and says how far it is with what takes long.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_with_progress(
        mut backend: B,
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        on_progress: &mut dyn FnMut(WarmUp),
    ) -> Result<Self, LoadError> {
        let config = checkpoint.config().clone();
        let types = options.types_for(checkpoint.dtype());
        let loaded = checkpoint.survey(options).and_then(|survey| {
            let plan = MemoryPlan::new(&config, &survey, types, options, &backend)?;
            let is_quantised_now = options.quantization.and_then(QuantizationOption::at_load).is_some();
            let phase = if is_quantised_now { Phase::Quantise } else { Phase::LayOut };
            let weights =
                Weights::load(&backend, checkpoint, types.weights, options.activation_dtype, &mut |done, total| {
                    on_progress(WarmUp { phase, done: done as u64, total: total as u64 });
                })?;
            Ok((survey, plan, weights))
        });
        // First: whatever else is wrong with a file that changes says nothing.
        checkpoint.check_unchanged()?;
        let (survey, plan, weights) = loaded?;
        let (info, size) = (&plan.info, config.size(survey.neediest(types.weights)));
        let weights_files = if backend.keeps_host_tensors() { checkpoint.weights_files() } else { Vec::new() };
        let table = |values: &[f32]| -> Result<_, LoadError> {
            let mut tensor = backend.allocate(DType::F32, info.max_model_len, config.head_dim / 2)?;
            backend.write(&mut tensor, bytemuck::cast_slice(values));
            Ok(tensor)
        };
        let rope = |rope: &RopeConfig| -> Result<_, LoadError> {
            let values = rope.values(config.head_dim, config.max_position_embeddings, info.max_model_len);
            Ok(RopeTable { cos: table(&values.cos)?, sin: table(&values.sin)? })
        };
        let ropes = config.ropes.iter().map(rope).collect::<Result<_, _>>()?;
        let mut new = |dtype, rows, cols| backend.allocate(dtype, rows, cols);
        let scratch = Scratch::new(&config, info, types.activations, survey.permutes(), &mut new)?;
        let sampler = match config.head {
            Head::Logits => Some(Sampler::new(info, &mut new)?),
            Head::Hidden => None,
        };
        backend.prepare(&largest_step(size, info))?;
        let types = ModelTypes { weights: survey.most(types.weights), ..types };
        let kv_cache_memory = options.kv_cache_memory;
        Ok(Self {
            backend,
            config,
            size,
            weights,
            ropes,
            scratch,
            sampler,
            plan,
            types,
            kv_cache_memory,
            weights_files,
        })
    }

    /// What a block of its KV cache is, and costs.
    pub fn kv_block(&self) -> KvBlock {
        self.plan.kv_block
    }

    /// The memory that it takes, still without a KV cache.
    pub fn memory_plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// What its numbers are.
    pub fn types(&self) -> ModelTypes {
        self.types
    }

    /// Blocks of the KV cache that the options ask for, or, without a wish, as many as [`MemoryPlan::num_blocks`] says.
    ///
    /// # Errors
    /// One sequence of `max_model_len` does not fit into them, or they do not fit into memory.
    pub fn num_blocks(&self) -> Result<usize, LoadError> {
        self.plan.num_blocks(self.kv_cache_memory)
    }
}
