//! The `prompt` of a completion, or the `input` of an embedding: text or token ids, one or several. Knows the tokenizer, no sampling.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use vllm_apple_engine::{Prompt, SubmitError};

use super::error::ApiError;
use super::lists::{TokenId, ids, push};
use super::memory::Held;
use super::text_queue::TextQueue;
use crate::served::ServedModel;
use crate::text::Truncation;

/// Most prompts that are read; how many a request may have is the engine's to say, and less.
const MAX_PROMPTS: usize = 1 << 16;

/// What OpenAI's `prompt` may be.
#[derive(Debug)]
pub enum PromptInput {
    /// Texts; one text is a list of one.
    Texts(Vec<String>),
    /// Prompts as tokens; one prompt is a list of one.
    TokenIds(Vec<Vec<u32>>),
}

/// A prompt ready for the engine.
#[derive(Debug, Clone)]
pub struct TokenizedPrompt {
    /// Its tokens.
    pub tokens: Prompt,
    /// Its text, where it came as text and is wanted.
    pub text: Option<Arc<str>>,
}

/// Where prompts stand in a body: in fields of these names, one after the other, with so many prompts each.
#[derive(Debug, Clone)]
pub struct Places(pub Vec<(&'static str, usize)>);

impl Places {
    /// Where the prompt of a number stands.
    pub fn field(&self, mut index: usize) -> String {
        for &(name, num_prompts) in &self.0 {
            match num_prompts {
                1 if index == 0 => return name.to_owned(),
                _ if index < num_prompts => return format!("{name}[{index}]"),
                _ => index -= num_prompts,
            }
        }
        String::new()
    }
}

/// How prompts become tokens.
#[derive(Debug, Clone)]
pub struct Tokenizing {
    /// Where they stand.
    pub places: Places,
    /// Whether the tokenizer adds its special tokens to a text.
    pub add_special_tokens: bool,
    /// Whether texts are kept.
    pub keep_text: bool,
    /// That of [`Prompt::salted`].
    pub cache_salt: Option<String>,
    /// Tokens that must follow a prompt.
    pub min_output_tokens: usize,
    /// How long prompts may be, of which the rest is cut off.
    pub truncation: Option<Truncation>,
}

impl PromptInput {
    /// The number of prompts.
    pub fn len(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::TokenIds(prompts) => prompts.len(),
        }
    }

    /// The tokens of each prompt, and its text if that is kept.
    pub async fn tokenize(
        self,
        queue: &TextQueue,
        held: &Held,
        model: &Arc<ServedModel>,
        how: Tokenizing,
    ) -> Result<Vec<TokenizedPrompt>, ApiError> {
        let Tokenizing { places, add_special_tokens, keep_text, cache_salt, min_output_tokens, truncation } = how;
        let salted = move |ids| Prompt::salted(ids, cache_salt.as_deref());
        let texts = match self {
            Self::TokenIds(prompts) => {
                let cut = |ids| match truncation {
                    None => ids,
                    Some(truncation) => truncation.of_tokens(&model.tokenizer, ids),
                };
                let prompt = |ids| TokenizedPrompt { tokens: salted(cut(ids)), text: None };
                return Ok(prompts.into_iter().map(prompt).collect());
            }
            Self::Texts(texts) => texts,
        };
        let (weighs, model) = (Arc::clone(model), Arc::clone(model));
        let weigh = move |texts: &Vec<String>| texts.iter().map(|text| weighs.tokenizer.normalized_len(text)).sum();
        // Dropped with this request, when its client leaves.
        let present = Arc::new(());
        let client = Arc::downgrade(&present);
        let encode = move |(index, text): (usize, String)| {
            if client.strong_count() == 0 {
                return Err(ApiError::internal("the client has left"));
            }
            let field = || places.field(index);
            let ids = match truncation {
                None => model.tokenizer.encode(&text, add_special_tokens),
                Some(truncation) => truncation.encode(&model.tokenizer, &text, add_special_tokens),
            };
            let ids = ids.map_err(|error| ApiError::from(error).about(&field()))?;
            // The engine would say so, too, but only once all others are tokenized.
            let (prompt_tokens, max_model_len) = (ids.len(), model.max_model_len);
            if prompt_tokens + min_output_tokens > max_model_len {
                let error = SubmitError::TooLong { prompt_tokens, min_output_tokens, max_model_len };
                return Err(ApiError::refused(error, &field()));
            }
            Ok(TokenizedPrompt { tokens: salted(ids), text: keep_text.then(|| text.into()) })
        };
        let bytes = texts.iter().map(String::len).sum();
        let encode_all = move |texts: Vec<String>| texts.into_iter().enumerate().map(encode).collect();
        let tokenized = queue.tokenize(bytes, held, texts, weigh, encode_all).await;
        drop(present);
        tokenized
    }
}

impl<'de> Deserialize<'de> for PromptInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyPrompt)
    }
}

/// What stands in a list of prompts.
enum Item {
    Text(String),
    TokenId(TokenId),
    TokenIds(Vec<TokenId>),
}

const EXPECTED: &str = "a string, a list of strings, a list of token ids or a list of lists of token ids";

struct AnyPrompt;

impl<'de> Visitor<'de> for AnyPrompt {
    type Value = PromptInput;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PromptInput, E> {
        Ok(PromptInput::Texts(vec![text.to_owned()]))
    }

    /// The first item says what all must be.
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<PromptInput, A::Error> {
        match items.next_element()? {
            None => Ok(PromptInput::TokenIds(vec![Vec::new()])),
            Some(Item::Text(first)) => Ok(PromptInput::Texts(rest(first, items, MAX_PROMPTS)?)),
            Some(Item::TokenIds(first)) => {
                Ok(PromptInput::TokenIds(rest(first, items, MAX_PROMPTS)?.into_iter().map(ids).collect()))
            }
            Some(Item::TokenId(first)) => Ok(PromptInput::TokenIds(vec![ids(rest(first, items, usize::MAX)?)])),
        }
    }
}

fn rest<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(first: T, mut items: A, max: usize) -> Result<Vec<T>, A::Error> {
    let mut list = vec![first];
    while let Some(item) = items.next_element()? {
        push(&mut list, item, max)?;
    }
    Ok(list)
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyItem;
        impl<'de> Visitor<'de> for AnyItem {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Item, E> {
                Ok(Item::Text(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Item, E> {
                TokenId::whole(id).map(Item::TokenId)
            }

            fn visit_f64<E: Error>(self, id: f64) -> Result<Item, E> {
                TokenId::spelled(id).map(Item::TokenId)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Item, A::Error> {
                match items.next_element()? {
                    None => Ok(Item::TokenIds(Vec::new())),
                    Some(first) => Ok(Item::TokenIds(rest(first, items, usize::MAX)?)),
                }
            }
        }
        deserializer.deserialize_any(AnyItem)
    }
}
