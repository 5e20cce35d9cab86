//! The `prompt` of a completion: text or token ids, one or several. Knows the tokenizer, no sampling.

use std::sync::Arc;

use serde::Deserialize;

use super::error::ApiError;
use crate::served::ServedModel;

/// What OpenAI's `prompt` may be.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids or a list of lists of token ids"
)]
pub enum Prompt {
    /// One text.
    Text(String),
    /// One prompt as tokens.
    TokenIds(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several prompts as tokens.
    ManyTokenIds(Vec<Vec<u32>>),
}

/// A prompt ready for the engine.
#[derive(Debug, Clone)]
pub struct TokenizedPrompt {
    /// Its tokens.
    pub token_ids: Arc<[u32]>,
    /// Its text, where it came as text.
    pub text: Option<String>,
}

impl Prompt {
    /// The tokens of each prompt.
    pub async fn tokenize(
        self,
        model: &Arc<ServedModel>,
        add_special_tokens: bool,
    ) -> Result<Vec<TokenizedPrompt>, ApiError> {
        let texts = match self {
            Self::TokenIds(ids) => return Ok(vec![from_ids(ids)]),
            Self::ManyTokenIds(prompts) => return Ok(prompts.into_iter().map(from_ids).collect()),
            Self::Text(text) => vec![text],
            Self::Texts(texts) => texts,
        };
        let model = Arc::clone(model);
        let encode = move |text: String| match model.tokenizer.encode(&text, add_special_tokens) {
            Ok(ids) => Ok(TokenizedPrompt { token_ids: ids.into(), text: Some(text) }),
            Err(error) => Err(ApiError::from(error).about("prompt")),
        };
        blocking(move || texts.into_iter().map(encode).collect()).await
    }
}

fn from_ids(ids: Vec<u32>) -> TokenizedPrompt {
    TokenizedPrompt { token_ids: ids.into(), text: None }
}

/// Runs work that takes longer than a network thread should be held: tokenizing a book, for instance.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ApiError::internal(format!("a tokenizer task failed: {error}"))),
    }
}
