//! Continuous batching over a paged KV cache: it decides which tokens each step computes. It knows no tensors and no text.
//!
//! A request has `num_tokens` it knows and `num_computed_tokens` in the cache; a step raises the second towards the first
//! within a token budget. Chunked prefill, decode, prefix hits and resuming after preemption are this one rule.
//!
//! ```
//! # #[cfg(feature = "fake")] {
//! use vllm_apple_engine::fake::{FakeConfig, FakeExecutor};
//! use vllm_apple_engine::{Engine, EngineConfig, EngineRequest};
//! use vllm_apple_executor::SamplingParams;
//!
//! let mut engine = Engine::new(FakeExecutor::new(FakeConfig::default()), EngineConfig::default()).unwrap();
//! let params = SamplingParams { max_tokens: Some(3), ..SamplingParams::default() };
//! let id = engine.submit(EngineRequest::new(vec![1, 2, 3], params)).unwrap();
//! let (mut tokens, mut outputs) = (Vec::new(), Vec::new());
//! while engine.has_unfinished_requests() {
//!     engine.step(&mut outputs).unwrap();
//!     for output in &outputs {
//!         assert_eq!(output.id, id);
//!         tokens.extend(output.sample.as_ref().map(|sample| sample.token_id));
//!     }
//! }
//! assert_eq!(tokens.len(), 3);
//! # }
//! ```

mod admission;
mod block_pool;
mod budget;
mod engine;
#[cfg(feature = "fake")]
pub mod fake;
mod grammar;
mod handle;
mod kv_cache_manager;
mod masks;
mod pooled;
mod prefix_index;
mod prompt;
mod request;
mod scheduler;
mod speculation;
mod stats;

pub use admission::{ConfigError, EngineConfig, SubmitError};
pub use engine::{Engine, EngineError};
pub use grammar::{Grammar, GrammarError, Matcher};
pub use handle::{EngineHandle, RequestStream, RequestTimes};
pub use prompt::Prompt;
pub use request::{EngineRequest, FinishReason, RequestId, RequestOutput};
pub use speculation::Speculation;
pub use stats::EngineStats;
