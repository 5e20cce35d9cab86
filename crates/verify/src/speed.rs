//! How fast an engine computes requests that run together, and the least that it must cost. It measures and judges nothing by itself:
//! `bench` and the sections of a report do.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::time::{Duration, Instant};

use vllm_apple_engine::{Engine, EngineRequest};
use vllm_apple_executor::{Executor, SamplingParams};
use vllm_apple_model::{ModelConfig, ModelTypes, StepCost};

use crate::subject::VerifyError;

/// One run: the time until every request had its first token, and each step after that which computed a token of every request.
#[derive(Debug, Clone)]
pub struct Timed {
    /// Until every request had its first token.
    pub prefill: Duration,
    /// Every step after that in which every request got a token: none if some had ended or waited.
    pub decode_steps: Vec<Duration>,
    /// The first token of every request.
    pub first: Vec<u32>,
}

/// Computes requests with these prompts together, each until it has `output_len` tokens.
///
/// # Errors
/// A request is refused, or a step fails.
pub fn timed<E: Executor>(
    engine: &mut Engine<E>,
    prompts: impl IntoIterator<Item = Vec<u32>>,
    output_len: u32,
) -> Result<Timed, VerifyError> {
    let params = SamplingParams {
        temperature: 0.0,
        ignore_eos: true,
        max_tokens: Some(output_len),
        ..SamplingParams::default()
    };
    let mut ids = Vec::new();
    for prompt in prompts {
        ids.push(engine.submit(EngineRequest::new(prompt, params.clone()))?);
    }
    let mut run = Timed {
        prefill: Duration::ZERO,
        decode_steps: Vec::with_capacity(output_len as usize),
        first: vec![0; ids.len()],
    };
    let mut started = HashSet::with_capacity(ids.len());
    let mut outputs = Vec::with_capacity(ids.len());
    while engine.has_unfinished_requests() {
        let start = Instant::now();
        engine.step(&mut outputs)?;
        let took = start.elapsed();
        // Before this step, some request still had no token.
        if started.len() < ids.len() {
            run.prefill += took;
        } else if outputs.len() == ids.len() {
            run.decode_steps.push(took);
        }
        for output in &outputs {
            let sample = VerifyError::token(output)?;
            if started.insert(output.id)
                && let Some(at) = ids.iter().position(|id| *id == output.id)
            {
                run.first[at] = sample.token_id;
            }
        }
    }
    Ok(run)
}

/// The upper median.
///
/// # Panics
/// If there is no value.
pub fn median<T: PartialOrd + Copy>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    values[values.len() / 2]
}

/// The least that `batch` prompts of so many tokens cost until their first tokens.
pub fn prefill_cost(config: &ModelConfig, types: ModelTypes, batch: usize, input: usize) -> StepCost {
    StepCost::of_requests(config, types, batch, 0, input)
}

/// The least that a step costs that computes the next token of `batch` requests with `context` tokens each.
pub fn decode_cost(config: &ModelConfig, types: ModelTypes, batch: usize, context: usize) -> StepCost {
    StepCost::of_requests(config, types, batch, context.saturating_sub(1), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_median_is_taken() {
        assert_eq!(median(vec![3, 1, 2]), 2);
        assert_eq!(median(vec![4, 1, 3, 2]), 3);
    }
}
