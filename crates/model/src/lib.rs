//! From a checkpoint on disk to an [`Executor`](vllm_apple_executor::Executor): configuration, weights, decoder, KV cache and sampler.
//! It knows no requests, no scheduling policy and no text.

mod batch_check;
pub mod checkpoint;
mod choices;
pub mod config;
pub mod cost;
mod decoder;
pub mod error;
mod families;
mod fields;
pub mod generation_config;
pub mod hub;
mod loaded_model;
mod map_fault;
mod mapped_file;
pub mod memory;
pub mod model_executor;
mod preflight;
pub mod rope;
pub mod sampler;
mod scratch;
mod types;
mod warm_up;
mod weights;

pub use checkpoint::Checkpoint;
pub use choices::choices;
pub use config::ModelConfig;
pub use cost::StepCost;
pub use error::LoadError;
pub use generation_config::GenerationConfig;
pub use loaded_model::LoadedModel;
pub use memory::{KvBlock, LoadOptions, MemoryPlan};
pub use model_executor::ModelExecutor;
pub use types::ModelTypes;
