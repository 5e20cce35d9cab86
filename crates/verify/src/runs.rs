//! Requests below an engine, and their answers to the bit. It knows no sections.

use std::collections::HashMap;

use vllm_apple_engine::{Engine, EngineRequest, Prompt, RequestId};
use vllm_apple_executor::{Executor, SamplingParams};

use crate::subject::VerifyError;

/// Tokens, each with the bits of its log-probability and of the most likely ones.
pub(crate) type Answer = Vec<(u32, Vec<u32>)>;

/// How many of the most likely tokens are compared.
const TOP: u32 = 4;

/// How requests are answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    /// A prefix cache of its own for each.
    pub salt: &'static str,
    pub max_tokens: u32,
    /// Draws at temperature 1; without one the likeliest token is taken.
    pub seed: Option<u64>,
}

/// The answers to prompts that are submitted together, in their order.
pub(crate) fn answers(
    engine: &mut Engine<Box<dyn Executor>>,
    prompts: &[&[u32]],
    how: How,
) -> Result<Vec<Answer>, VerifyError> {
    let params = SamplingParams {
        temperature: if how.seed.is_some() { 1.0 } else { 0.0 },
        seed: how.seed,
        ignore_eos: true,
        max_tokens: Some(how.max_tokens),
        logprobs: Some(TOP),
        ..SamplingParams::default()
    };
    let mut ids: Vec<RequestId> = Vec::new();
    for prompt in prompts {
        ids.push(engine.submit(EngineRequest::new(Prompt::salted(prompt.to_vec(), Some(how.salt)), params.clone()))?);
    }
    let mut found: HashMap<RequestId, Answer> = HashMap::new();
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        engine.step(&mut outputs).map_err(|error| VerifyError::Input(error.to_string()))?;
        for output in &outputs {
            let Some(sample) = &output.sample else { continue };
            let bits = sample.logprobs.iter().flat_map(|logprobs| {
                let top = logprobs.top.iter().flat_map(|top| [top.0, top.1.to_bits()]);
                std::iter::once(logprobs.logprob.to_bits()).chain(top)
            });
            found.entry(output.id).or_default().push((sample.token_id, bits.collect()));
        }
    }
    Ok(ids.iter().map(|id| found.remove(id).unwrap_or_default()).collect())
}

/// The answer to each prompt alone.
pub(crate) fn alone(
    engine: &mut Engine<Box<dyn Executor>>,
    prompts: &[&[u32]],
    how: How,
) -> Result<Vec<Answer>, VerifyError> {
    let mut all = Vec::new();
    for prompt in prompts {
        all.extend(answers(engine, &[prompt], how)?);
    }
    Ok(all)
}
