//! From a checkpoint on disk to an [`Executor`]: configuration, weights, decoder, KV cache and sampler.
//! It knows no requests, no scheduling policy and no text.

pub mod batch;
pub mod executor;
pub mod sampling_params;

pub use batch::Batch;
pub use executor::{Executor, ExecutorError, ExecutorInfo, RowTask, Sample, SamplingRow, TokenLogprobs};
pub use sampling_params::{InvalidParam, SamplingParams};
