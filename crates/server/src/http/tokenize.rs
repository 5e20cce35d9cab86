//! `POST /tokenize` and `POST /detokenize`. Know the tokenizer and the chat template, but no engine.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::App;
use super::chat_messages::Conversation;
use super::error::ApiError;
use super::field_names::Unsupported;
use super::fields::{Fields, Known, Rest, naming};
use super::lists::ids;
use super::respond::held_until_sent;

/// The tokens of a `prompt`, or of `messages` as chat would send them to the model.
pub async fn tokenize(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let model = Arc::clone(app.model_named(fields.optional::<String>("model")?.as_deref())?);
    let trusts_template = app.config.trust_request_chat_template;
    let (input, with_strings, Rest { mut held, mut without_effect, .. }) =
        app.text.read(fields.bytes, move || Input::take(fields, trusts_template)).await?;
    let tokenizer = Arc::new(model.tokenizer.to_count());
    let tokens = match input {
        Input::Conversation(conversation) => {
            without_effect.extend(conversation.without_effect(&model));
            conversation.tokenize_by(tokenizer, &app.text, &held, &model).await?
        }
        Input::Text { text, add_special_tokens } => {
            let (bytes, weighs) = (text.len(), Arc::clone(&tokenizer));
            let weigh = move |text: &String| weighs.normalized_len(text);
            let encode = move |text: String| {
                let ids = tokenizer.encode(&text, add_special_tokens);
                ids.map_err(|error| ApiError::from(error).about("prompt"))
            };
            app.text.tokenize(bytes, &held, text, weigh, encode).await?
        }
    };
    let (got, most) = (tokens.len(), model.max_model_len);
    held.grow(got * if with_strings { PER_STRING } else { PER_ID })?;
    let word = move || {
        let strings = || tokens.iter().map(|&id| model.tokenizer.token(id));
        word(&Tokenized {
            count: got,
            max_model_len: most,
            tokens: &tokens,
            token_strs: with_strings.then(|| strings().collect()),
        })
    };
    let answer = app.text.convert(got * BYTES_OF_TOKEN, &held, word).await?;
    Ok(naming(held_until_sent(vec![answer], held), &without_effect))
}

/// Bytes counted for each token of an answer, and for each with its string: as numbers, as strings, and as JSON.
const PER_ID: usize = 24;
const PER_STRING: usize = 128;

/// A token has a few letters.
const BYTES_OF_TOKEN: usize = 4;

#[derive(Serialize)]
struct Tokenized<'a> {
    count: usize,
    max_model_len: usize,
    tokens: &'a [u32],
    token_strs: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Detokenized {
    prompt: String,
}

fn word(answer: &impl Serialize) -> Result<Bytes, ApiError> {
    serde_json::to_vec(answer).map(Bytes::from).map_err(|error| ApiError::internal(error.to_string()))
}

/// What is to become tokens.
enum Input {
    Conversation(Box<Conversation>),
    Text { text: String, add_special_tokens: bool },
}

impl Input {
    /// Takes it, whether the tokens' strings are wanted, and the rest.
    fn take(mut fields: Fields, trusts_template: bool) -> Result<(Self, bool, Rest), ApiError> {
        let with_strings = fields.flag("return_token_strs")?;
        let input = if fields.has("messages") {
            Self::Conversation(Box::new(Conversation::take(&mut fields, trusts_template)?))
        } else {
            let text = fields.required("prompt")?;
            Self::Text { text, add_special_tokens: fields.optional("add_special_tokens")?.unwrap_or(true) }
        };
        Ok((input, with_strings, fields.finish(&[])?))
    }
}

/// What a request may have.
pub fn known(fields: Fields) -> Result<Vec<Known>, ApiError> {
    Ok(Input::take(fields, false)?.2.known)
}

/// What one of `/detokenize` may have.
pub fn known_to_detokenize(fields: Fields) -> Result<Vec<Known>, ApiError> {
    Ok(take_tokens(fields)?.1.known)
}

fn take_tokens(mut fields: Fields) -> Result<(Vec<u32>, Rest), ApiError> {
    Ok((ids(fields.required("tokens")?), fields.finish(OF_DETOKENIZE)?))
}

/// Fields that only other servers' `/detokenize` know.
const OF_DETOKENIZE: &[Unsupported] = &[("skip_special_tokens", "false", "the text has all tokens")];

/// The text of `tokens`, special tokens included.
pub async fn detokenize(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let model = Arc::clone(app.model_named(fields.optional::<String>("model")?.as_deref())?);
    let (tokens, Rest { mut held, without_effect, .. }) =
        app.text.read(fields.bytes, move || take_tokens(fields)).await?;
    let (got, most) = (tokens.len(), model.max_model_len);
    if got > most {
        let message = format!("`tokens` has {got} tokens, but the model's length is {most}: send them in parts");
        return Err(ApiError::param("tokens", message));
    }
    let vocab_size = model.engine.info().vocab_size;
    if let Some(at) = tokens.iter().position(|&token| token as usize >= vocab_size) {
        let param = format!("tokens[{at}]");
        let message = format!("`{param}` is {}, but token ids are below {vocab_size}", tokens[at]);
        return Err(ApiError::param(param, message));
    }
    held.grow(got * PER_STRING)?;
    let decode = move || {
        let prompt = model.tokenizer.decode(&tokens, false).map_err(|error| ApiError::from(error).about("tokens"))?;
        word(&Detokenized { prompt })
    };
    let answer = app.text.convert(got * BYTES_OF_TOKEN, &held, decode).await?;
    Ok(naming(held_until_sent(vec![answer], held), &without_effect))
}
