//! Vectors of prompts: what embeddings, scores and ranks share. Knows the engine and what is done with a vector, but no protocol.

use std::sync::Arc;
use std::time::Instant;

use futures_util::stream::{FuturesUnordered, StreamExt};
use vllm_apple_engine::{EngineRequest, FinishReason, Prompt, RequestStream, SubmitError};
use vllm_apple_executor::Pooling;

use crate::metrics::RequestTimer;
use crate::served::ServedModel;

/// Vectors, in the order of their prompts.
#[derive(Debug, Default)]
pub struct Vectors {
    /// One of each prompt.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of prompts that came from the prefix cache.
    pub num_cached_tokens: usize,
}

/// Why there are none.
#[derive(Debug)]
pub enum EmbeddingError {
    /// The engine refuses the prompt of this number.
    Refused(usize, SubmitError),
    /// The step that computed one failed.
    Failed(String),
    /// The engine is gone.
    EngineDied(String),
    /// The engine gave the request up, as the server ends.
    Ended,
}

/// Steps' worth of one call's prompts that are in the engine at once: the next step finds some that wait, and others do not wait long behind
/// them.
const STEPS_AHEAD: usize = 2;

/// The vectors of all prompts of a request that came in at `arrived`. Dropping the future aborts what runs.
///
/// # Errors
/// The first prompt that is refused or fails, and the others are given up.
pub async fn vectors(
    model: &Arc<ServedModel>,
    pooling: Pooling,
    prompts: &[Prompt],
    arrived: Instant,
) -> Result<Vectors, EmbeddingError> {
    let request = |prompt: &Prompt| EngineRequest::pooled(prompt.clone(), pooling);
    for (index, prompt) in prompts.iter().enumerate() {
        model.engine.check(request(prompt)).map_err(|error| EmbeddingError::Refused(index, error))?;
    }
    let info = model.engine.info();
    let [most_prompts, most_tokens] =
        [info.max_num_seqs, info.max_prompt_tokens()].map(|of_a_step| of_a_step.saturating_mul(STEPS_AHEAD));
    let mut vectors = Vectors { vectors: vec![Vec::new(); prompts.len()], num_cached_tokens: 0 };
    let mut waiting = prompts.iter().enumerate().peekable();
    let mut running = FuturesUnordered::new();
    let mut num_tokens = 0;
    loop {
        while running.len() < most_prompts
            && num_tokens < most_tokens
            && let Some(&(index, prompt)) = waiting.peek()
        {
            match model.engine.submit(request(prompt)) {
                Ok(stream) => running.push(one(model, index, stream, arrived)),
                // There is room again when one of these has ended.
                Err(SubmitError::QueueFull { .. }) if !running.is_empty() => break,
                Err(error) => return Err(EmbeddingError::Refused(index, error)),
            }
            num_tokens += prompt.len();
            waiting.next();
        }
        let Some(done) = running.next().await else { return Ok(vectors) };
        let (index, vector, num_cached_tokens) = done?;
        num_tokens -= prompts[index].len();
        vectors.vectors[index] = vector;
        vectors.num_cached_tokens += num_cached_tokens;
    }
}

/// The vector of the prompt of this number, and how many of its tokens were cached.
async fn one(
    model: &ServedModel,
    index: usize,
    mut stream: RequestStream,
    arrived: Instant,
) -> Result<(usize, Vec<f32>, usize), EmbeddingError> {
    let mut timer = RequestTimer::new(Arc::clone(&model.metrics), arrived);
    let output = stream.recv().await.ok_or(EmbeddingError::Ended)?;
    let error = match (output.finish, output.pooled) {
        (Some(FinishReason::Pooled), Some(vector)) => {
            timer.finish("stop", &stream.times());
            return Ok((index, vector, output.num_cached_tokens));
        }
        (Some(FinishReason::Error(reason)), _) => match model.engine.health() {
            Ok(()) => EmbeddingError::Failed(reason),
            Err(dead) => EmbeddingError::EngineDied(dead),
        },
        (Some(FinishReason::Abort), _) => return Err(EmbeddingError::Ended),
        (finish, _) => EmbeddingError::Failed(format!("the engine ended a prompt without a vector: {finish:?}")),
    };
    timer.finish("error", &stream.times());
    Err(error)
}

/// What is made of the model's vector.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The first elements alone.
    pub dimensions: Option<usize>,
    /// Then divided by its length.
    pub normalize: bool,
}

/// Shorter vectors are divided by this: PyTorch's `normalize`.
const LEAST_LENGTH: f64 = 1e-12;

impl Shape {
    /// The vector in this shape.
    pub fn of(self, mut vector: Vec<f32>) -> Vec<f32> {
        vector.truncate(self.dimensions.unwrap_or(usize::MAX));
        if self.normalize {
            let length = dot(&vector, &vector).sqrt().max(LEAST_LENGTH);
            vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
        }
        vector
    }
}

/// Shorter vectors count as this long: PyTorch's `cosine_similarity`.
const LEAST_PRODUCT: f64 = 1e-8;

/// The cosine of the angle between two vectors.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let lengths = dot(a, a).sqrt().max(LEAST_PRODUCT) * dot(b, b).sqrt().max(LEAST_PRODUCT);
    (dot(a, b) / lengths) as f32
}

/// The dot product. In f64, in which a product of two f32 is exact: a few thousand terms, on the host, need no speed.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_cut_before_they_are_made_as_long_as_one() {
        let vector = vec![3.0, 4.0, 12.0];
        let shape = |dimensions, normalize| Shape { dimensions, normalize }.of(vector.clone());
        assert_eq!(shape(None, false), vector);
        assert_eq!(shape(Some(2), false), [3.0, 4.0]);
        assert_eq!(shape(Some(2), true), [0.6, 0.8]);
        assert_eq!(shape(None, true), [3.0 / 13.0, 4.0 / 13.0, 12.0 / 13.0]);
        assert_eq!(Shape { dimensions: None, normalize: true }.of(vec![0.0; 3]), [0.0; 3]);
    }

    #[test]
    fn cosines_are_of_the_angle_alone() {
        assert_eq!(cosine(&[1.0, 0.0], &[5.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 2.0]), 0.0);
        assert_eq!(cosine(&[3.0, 4.0], &[-6.0, -8.0]), -1.0);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 1.0]), 0.0);
    }
}
