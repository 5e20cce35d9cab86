//! The fake executor, and what it must answer to the engine's requests. It knows no engine.

use vllm_apple_executor::ExecutorInfo;
pub use vllm_apple_executor::fake::{FakeConfig, FakeExecutor, Fault, expected_pooled, expected_prompt_logprobs};

use crate::request::{EngineRequest, FinishReason};

/// What the fake must answer to `request`: its output tokens and why it ends. Parameters that the fake ignores are
/// ignored. Only for requests that are greedy or have a seed.
///
/// # Panics
/// If the request is neither.
pub fn expected_output(info: &ExecutorInfo, request: &EngineRequest) -> (Vec<u32>, FinishReason) {
    let eos = &request.eos_token_ids;
    let (output, stop) = vllm_apple_executor::fake::expected_output(info, &request.prompt, &request.params, eos);
    (output, stop.map_or(FinishReason::Length, |token| FinishReason::Stop { token }))
}
