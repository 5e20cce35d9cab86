//! `POST /tokenize` and `POST /detokenize`. Know the tokenizer and the chat template, but no engine.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::App;
use super::chat_messages::Conversation;
use super::error::ApiError;
use super::fields::Fields;

/// The tokens of a `prompt`, or of `messages` as chat would send them to the model.
pub async fn tokenize(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Json<Value>, ApiError> {
    let model = Arc::clone(app.model_named(fields.optional::<String>("model")?.as_deref())?);
    let with_strings = fields.flag("return_token_strs")?;
    let tokens = if fields.has("messages") {
        let conversation = Conversation::take(&mut fields, &app)?;
        let held = fields.finish(&[])?;
        conversation.tokenize(&app.text, &held, &model).await?
    } else {
        let text: String = fields.required("prompt")?;
        let add_special_tokens = fields.optional("add_special_tokens")?.unwrap_or(true);
        let held = fields.finish(&[])?;
        let bytes = text.len();
        let (model, about) = (Arc::clone(&model), |error| ApiError::from(error).about("prompt"));
        let encode = move || model.tokenizer.encode(&text, add_special_tokens).map_err(about);
        app.text.tokenize(bytes, &held, encode).await?
    };
    let strings: Option<Vec<_>> =
        with_strings.then(|| tokens.iter().map(|&id| model.tokenizer.token_text(id)).collect());
    Ok(Json(json!({
        "count": tokens.len(),
        "max_model_len": model.max_model_len,
        "tokens": tokens,
        "token_strs": strings,
    })))
}

/// The text of `tokens`, special tokens included.
pub async fn detokenize(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Json<Value>, ApiError> {
    let model = Arc::clone(app.model_named(fields.optional::<String>("model")?.as_deref())?);
    let tokens: Vec<u32> = fields.required("tokens")?;
    let held = fields.finish(&[])?;
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
    // A token has a few letters.
    let bytes = 4 * tokens.len();
    let decode = move || model.tokenizer.decode(&tokens, false).map_err(|error| ApiError::from(error).about("tokens"));
    let prompt = app.text.tokenize(bytes, &held, decode).await?;
    Ok(Json(json!({"prompt": prompt})))
}
