//! vLLM's sampling parameters as Python hands them over. It picks no token.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use vllm_apple_executor::SamplingParams;

use crate::thinking::Thinking;

/// A dictionary with these keys; names and meaning are vLLM's.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub struct Params {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    frequency_penalty: f32,
    presence_penalty: f32,
    logit_bias: Vec<(u32, f32)>,
    /// With the end tokens: `min_tokens` holds back all of them.
    stop_token_ids: Vec<u32>,
    min_tokens: u32,
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
    /// Of the request, or chosen for it.
    pub seed: u64,
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Token sequences that must not be completed.
    pub bad_words: Vec<Vec<u32>>,
    /// What a request ends with that has no token.
    pub eos_token_id: Option<u32>,
    pub thinking: Option<Thinking>,
}

impl Params {
    pub fn sampling_params(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            logit_bias: self.logit_bias.clone().into(),
            seed: Some(self.seed),
            stop_token_ids: self.stop_token_ids.clone().into(),
            min_tokens: self.min_tokens,
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            // When a request ends is vLLM's to decide.
            ..SamplingParams::default()
        }
    }
}

/// Raises ValueError if a parameter is out of its range.
#[pyfunction]
pub fn check_params(params: Params, vocab_size: usize) -> PyResult<()> {
    let mut params = params.sampling_params();
    // A bias of -inf bans a token, which the executor knows, and its range of biases does not.
    let finite = |&(token, bias): &(u32, f32)| (token, if bias == f32::NEG_INFINITY { 0.0 } else { bias });
    params.logit_bias = params.logit_bias.iter().map(finite).collect();
    params.validate(vocab_size).map_err(|e| PyValueError::new_err(e.to_string()))
}
