//! What a model answers, to the bit: how sections compare ways of computing the same. It knows no section.

use std::collections::HashMap;

use vllm_apple_engine::{Engine, EngineRequest, Prompt, RequestId};
use vllm_apple_executor::{Executor, Sample, SamplingParams};

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
/// A prompt is refused, a step fails, or an answer has fewer tokens or log-probabilities than were asked for.
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
    let (longest, top) = (engine.info().max_model_len, engine.info().vocab_size.min(TOP as usize));
    let mut found: HashMap<RequestId, Vec<Token>> = HashMap::new();
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        engine.step(&mut outputs)?;
        for output in &outputs {
            found.entry(output.id).or_default().push(Token::of(VerifyError::token(output)?, top)?);
        }
    }
    let whole = |(id, prompt): (&RequestId, &Vec<u32>)| -> Result<Vec<Token>, VerifyError> {
        let answer = found.remove(id).unwrap_or_default();
        check_length(answer.len(), (how.len as usize).min(longest.saturating_sub(prompt.len())))?;
        Ok(answer)
    };
    ids.iter().zip(prompts).map(whole).collect()
}

impl Token {
    /// The token with its log-probability and those of the `top` most likely.
    fn of(sample: &Sample, top: usize) -> Result<Self, VerifyError> {
        let missing =
            || VerifyError::NotWhole("a token comes without the log-probabilities that were asked for".to_owned());
        let logprobs = sample.logprobs.as_ref().filter(|logprobs| logprobs.top.len() >= top).ok_or_else(missing)?;
        let bits = |(id, logprob): &(u32, f32)| (*id, logprob.to_bits());
        let top = logprobs.top.iter().map(bits).collect();
        Ok(Self { id: sample.token_id, logprob: logprobs.logprob.to_bits(), top })
    }
}

/// An answer of fewer tokens than were asked for, and have room, says nothing: another that is cut off is equal to it.
pub(crate) fn check_length(got: usize, asked: usize) -> Result<(), VerifyError> {
    match got < asked {
        true => Err(VerifyError::NotWhole(format!("it ends after {got} of {asked} tokens"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_apple_executor::TokenLogprobs;

    #[test]
    fn a_token_without_its_log_probabilities_is_an_error() {
        let sample = |logprobs| Sample { token_id: 3, logprobs };
        let logprobs = |top| Some(TokenLogprobs { logprob: -1.0, rank: 1, top });
        let whole = Token::of(&sample(logprobs(vec![(3, -1.0), (4, -2.0)])), 2).unwrap();
        assert_eq!(
            whole,
            Token { id: 3, logprob: (-1.0f32).to_bits(), top: vec![(3, whole.logprob), (4, (-2.0f32).to_bits())] }
        );
        for wrong in [None, logprobs(vec![(3, -1.0)])] {
            assert!(matches!(Token::of(&sample(wrong), 2), Err(VerifyError::NotWhole(_))));
        }
    }

    #[test]
    fn an_answer_that_is_cut_off_is_an_error() {
        assert!(check_length(6, 6).is_ok() && check_length(0, 0).is_ok());
        assert_eq!(check_length(0, 6).unwrap_err().to_string(), "an answer is not whole: it ends after 0 of 6 tokens");
    }
}
