//! `/v1/messages`: Anthropic's Messages API, as another wording of what chat does. Knows its endpoints.

mod answer;
mod content;
mod documents;
mod errors;
mod request;
mod tools;

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::json;

pub use errors::worded as in_anthropics_form;

use super::App;
use super::chat::Prepared;
use super::error::ApiError;
use super::fields::{Fields, Known, naming};
use super::item_answer::ItemJob;
use answer::MessageWording;
use request::in_words;

/// `POST /v1/messages`
pub async fn create(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let model = Arc::clone(app.generator(Some(&fields.required::<String>("model")?))?);
    let (bytes, trusts_template) = (fields.bytes, app.config.trust_request_chat_template);
    let read = move || {
        let max_tokens = request::take_max_tokens(&mut fields)?;
        Ok((max_tokens, request::take(fields, Some(max_tokens), trusts_template)?))
    };
    let (max_tokens, request) = app.text.read(bytes, read).await?;
    let streams = request.streams();
    let wording = MessageWording::new(model.name().to_owned(), max_tokens, request.request_id());
    let Prepared { request, telling, held, without_effect, .. } =
        request.prepare(&app, &model).await.map_err(in_words)?;
    let job = ItemJob {
        model,
        request,
        streams,
        prompt_field: "messages",
        telling,
        wording,
        held,
        keep_alive: app.config.keep_alive,
    };
    Ok(naming(job.run(arrived).await.map_err(in_words)?, &without_effect))
}

/// What a request may have.
pub fn known(mut fields: Fields) -> Result<Vec<Known>, ApiError> {
    let max_tokens = request::take_max_tokens(&mut fields)?;
    Ok(request::take(fields, Some(max_tokens), false)?.known())
}

/// What one that counts may have.
pub fn known_to_count(fields: Fields) -> Result<Vec<Known>, ApiError> {
    Ok(request::take(fields, None, false)?.known())
}

/// `POST /v1/messages/count_tokens`
pub async fn count_tokens(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let model = Arc::clone(app.generator(Some(&fields.required::<String>("model")?))?);
    let (bytes, trusts_template) = (fields.bytes, app.config.trust_request_chat_template);
    let request = app.text.read(bytes, move || request::take(fields, None, trusts_template)).await?;
    let (input_tokens, rest) = request.tokenize(&app, &model).await.map_err(in_words)?;
    Ok(naming(Json(json!({"input_tokens": input_tokens})).into_response(), &rest.without_effect))
}
