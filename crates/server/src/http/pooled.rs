//! What embeddings, scores and ranks have in common: fields, prompts to vectors, and how an answer is written. Knows no endpoint.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use serde_json::{Value, json};
use vllm_apple_engine::Prompt;
use vllm_apple_model::Pooler;

use super::App;
use super::error::ApiError;
use super::field_names::Unsupported;
use super::fields::Fields;
use super::memory::{Held, PER_CHOICE};
use super::prompt::{PromptInput, Tokenizing};
use super::sampling;
use crate::embedding::{self, EmbeddingError, Vectors};
use crate::served::ServedModel;
use crate::text::{Side, Truncation};

/// Most texts of a request, which is OpenAI's bound.
pub const MAX_INPUTS: usize = 2048;

/// Bytes of an element of a vector, with what is made of it on the way.
const PER_ELEMENT: usize = 2 * size_of::<f32>();

/// Fields of vLLM's pooling requests that cannot be honoured.
const NOT_HONOURED: &[Unsupported] = &[
    ("chat_template_kwargs", "{}", "texts are read as they are"),
    ("messages", "[]", "texts are read as they are"),
    ("normalize", "null", "use `use_activation`"),
    ("padding", "\"do_not_pad\"", "tokens that pad would be part of the text"),
];

/// Fields that all have.
pub struct Common {
    pub request_id: Option<String>,
    pub cache_salt: Option<String>,
    /// Whether vectors are made as long as one; `None`: as the model does.
    pub use_activation: Option<bool>,
    truncation: Option<(i64, Option<Side>)>,
    /// What was given without what it belongs to.
    pub without_effect: Vec<&'static str>,
}

impl Common {
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        fields.refuse(NOT_HONOURED)?;
        let side = match fields.optional::<String>("truncation_side")?.as_deref() {
            None => None,
            Some("left") => Some(Side::Left),
            Some("right") => Some(Side::Right),
            Some(_) => return Err(ApiError::param("truncation_side", "`truncation_side` must be left or right")),
        };
        let truncation = fields.optional("truncate_prompt_tokens")?.map(|tokens| (tokens, side));
        let is_alone = side.is_some() && truncation.is_none();
        Ok(Self {
            request_id: sampling::take_request_id(fields)?,
            cache_salt: sampling::take_cache_salt(fields)?,
            use_activation: fields.optional("use_activation")?,
            truncation,
            without_effect: is_alone.then_some("truncation_side").into_iter().collect(),
        })
    }

    /// What a prompt of this model is shortened to.
    pub fn truncation(&self, model: &ServedModel) -> Result<Option<Truncation>, ApiError> {
        let most = model.max_model_len;
        let Some((tokens, side)) = self.truncation else { return Ok(None) };
        let max_tokens = match tokens {
            -1 => Some(most),
            tokens => usize::try_from(tokens).ok().filter(|tokens| (1..=most).contains(tokens)),
        };
        let name = "truncate_prompt_tokens";
        let wrong = || ApiError::param(name, format!("`{name}` must be -1 or from 1 to {most}, got {tokens}"));
        Ok(Some(Truncation { max_tokens: max_tokens.ok_or_else(wrong)?, side }))
    }
}

/// The vectors of inputs, and what they cost.
pub struct Answered {
    pub vectors: Vec<Vec<f32>>,
    pub usage: Value,
}

/// Computes the vectors of all inputs.
pub async fn answer(
    app: &App,
    (model, pooler): (&Arc<ServedModel>, &Pooler),
    input: PromptInput,
    how: Tokenizing,
    held: &mut Held,
    arrived: Instant,
) -> Result<Answered, ApiError> {
    let num_inputs = input.len();
    let places = how.places.clone();
    if let Some((name, got)) = places.0.iter().find(|(_, num_texts)| *num_texts > MAX_INPUTS) {
        let message = format!("`{name}` has {got} texts, more than the {MAX_INPUTS} that a request may have");
        return Err(ApiError::param(*name, message));
    }
    let size = model.engine.info().embedding_size.unwrap_or(0);
    held.grow(num_inputs * (size * PER_ELEMENT + PER_CHOICE))?;
    let tokenized = input.tokenize(&app.text, held, model, how).await?;
    let prompts: Vec<Prompt> = tokenized.into_iter().map(|prompt| prompt.tokens).collect();
    let num_tokens: usize = prompts.iter().map(|prompt| prompt.len()).sum();
    held.grow(num_tokens * size_of::<u32>())?;
    let refused = |error| match error {
        EmbeddingError::Refused(index, error) => ApiError::refused(error, &places.field(index)),
        EmbeddingError::Failed(reason) => ApiError::internal(format!("the embedding failed: {reason}")),
        EmbeddingError::EngineDied(reason) => ApiError::unavailable("engine_dead", reason),
        EmbeddingError::Ended => ApiError::unavailable("shutting_down", "the server ends: send it elsewhere"),
    };
    let Vectors { vectors, num_cached_tokens } =
        embedding::vectors(model, pooler.pooling, &prompts, arrived).await.map_err(refused)?;
    let usage = json!({
        "prompt_tokens": num_tokens,
        "total_tokens": num_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": num_cached_tokens},
    });
    Ok(Answered { vectors, usage })
}

/// The name of an answer.
pub fn id(prefix: &str, request_id: Option<String>) -> String {
    let id = request_id.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
    format!("{prefix}-{id}")
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// An answer as text.
pub fn written(answer: &Value) -> Result<Bytes, ApiError> {
    let text = serde_json::to_vec(answer).map(Bytes::from);
    text.map_err(|error| ApiError::internal(format!("the answer cannot be written as JSON: {error}")))
}
