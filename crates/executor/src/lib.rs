//! The contract between scheduling and computing: a step's [`Batch`] goes in, a [`RowResult`] for each row of logits comes out.
//! It knows no tensor and no policy: any scheduler may drive any [`Executor`].

pub mod batch;
pub mod executor;
#[cfg(feature = "fake")]
pub mod fake;
pub mod info;
pub mod pooling;
pub mod sampling_params;

pub use batch::Batch;
pub use executor::{
    Executor, ExecutorError, NOT_FINITE, RowError, RowResult, RowTask, Sample, SamplingRow, TokenLogprobs, allows,
    recycle,
};
pub use info::ExecutorInfo;
pub use pooling::Pooling;
pub use sampling_params::{InvalidParam, MAX_LOGPROBS, SamplingParams, check_number};
