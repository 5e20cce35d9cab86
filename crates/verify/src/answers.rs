//! What a model answers, to the bit: how sections compare ways of computing the same. It knows no section.

use std::collections::HashMap;

use vllm_apple_engine::{Engine, EngineRequest, Prompt, RequestId};
use vllm_apple_executor::{Executor, SamplingParams};

use crate::subject::VerifyError;

/// A token, and the bits of its own log-probability and of those of the most likely tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The token.
    pub id: u32,
    /// Its log-probability.
    pub logprob: u32,
    /// The most likely tokens with theirs.
    pub top: Vec<(u32, u32)>,
}

/// The most likely tokens that are compared: any change of the hidden state moves one of them.
const TOP: u32 = 5;

/// How requests are answered.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// Tokens of an answer.
    pub len: u32,
    /// Draws at temperature 1; without one the likeliest token is taken.
    pub seed: Option<u64>,
    /// Prompts find in the prefix cache what was computed with the same.
    pub salt: &'static str,
}

impl How {
    /// The likeliest tokens.
    pub const fn greedy(len: u32, salt: &'static str) -> Self {
        Self { len, seed: None, salt }
    }
}

/// The answer to each prompt alone.
///
/// # Errors
/// As [`answers`].
pub fn alone<E: Executor>(
    engine: &mut Engine<E>,
    prompts: &[Vec<u32>],
    how: How,
) -> Result<Vec<Vec<Token>>, VerifyError> {
    let mut all = Vec::new();
    for prompt in prompts {
        all.extend(answers(engine, std::slice::from_ref(prompt), how)?);
    }
    Ok(all)
}

/// The answers to prompts that run together, in their order.
///
/// # Errors
/// A prompt is refused, or a step fails.
pub fn answers<E: Executor>(
    engine: &mut Engine<E>,
    prompts: &[Vec<u32>],
    how: How,
) -> Result<Vec<Vec<Token>>, VerifyError> {
    let params = SamplingParams {
        temperature: if how.seed.is_some() { 1.0 } else { 0.0 },
        seed: how.seed,
        ignore_eos: true,
        max_tokens: Some(how.len),
        logprobs: Some(TOP),
        ..SamplingParams::default()
    };
    let mut ids: Vec<RequestId> = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        ids.push(engine.submit(EngineRequest::new(Prompt::salted(prompt.clone(), Some(how.salt)), params.clone()))?);
    }
    let mut found: HashMap<RequestId, Vec<Token>> = HashMap::new();
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        engine.step(&mut outputs)?;
        for output in &outputs {
            let sample = VerifyError::token(output)?;
            let logprobs = sample.logprobs.as_ref();
            let bits = |(id, logprob): &(u32, f32)| (*id, logprob.to_bits());
            found.entry(output.id).or_default().push(Token {
                id: sample.token_id,
                logprob: logprobs.map_or(0, |logprobs| logprobs.logprob.to_bits()),
                top: logprobs.map_or_else(Vec::new, |logprobs| logprobs.top.iter().map(bits).collect()),
            });
        }
    }
    Ok(ids.iter().map(|id| found.remove(id).unwrap_or_default()).collect())
}
