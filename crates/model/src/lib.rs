//! From a checkpoint on disk to an [`Executor`](vllm_apple_executor::Executor): configuration, weights, decoder, KV cache and sampler.
//! It knows no requests, no scheduling policy and no text.

pub mod load;
pub mod plan;
pub mod run;

pub use load::checkpoint::Checkpoint;
pub use load::config::ModelConfig;
pub use load::error::LoadError;
pub use load::generation_config::GenerationConfig;
pub use load::pooler::Pooler;
pub use load::quantization_option::{QuantizationOption, check_quantization};
pub use load::quantize::Quantization;
pub use load::types::ModelTypes;
pub use load::{file, hub, json};
pub use plan::choices::choices;
pub use plan::cost::StepCost;
pub use plan::memory::{KvBlock, LoadOptions, MemoryPlan};
pub use run::loaded_model::LoadedModel;
pub use run::model_executor::ModelExecutor;
pub use run::warm_up::{Phase, WarmUp};
