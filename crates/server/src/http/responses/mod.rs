//! `/v1/responses`: OpenAI's Responses API, as another wording of what chat does. Knows its endpoints and what is kept between requests.

mod answer;
mod custom;
mod input;
mod item;
mod listing;
mod names;
mod parts;
mod request;
mod store;
mod tool_choice;
mod tools;

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

pub use listing::list as input_items;
pub use store::Store;
pub use tools::placed;

use super::App;
use super::chat::{ChatRequest, Prepared};
use super::error::ApiError;
use super::fields::{Fields, Known, naming};
use super::item_answer::ItemJob;
use super::respond::held_until_sent;
use answer::ResponseWording;
use request::{Asked, in_words};

/// Bytes that are held for each of a body's: events and what is kept repeat instructions and tools, two at a time.
const PER_REPEATED_BYTE: usize = 4;

/// `POST /v1/responses`
pub async fn create(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let model = Arc::clone(app.generator(fields.optional::<String>("model")?.as_deref())?);
    let (trusts_template, store) = (app.config.trust_request_chat_template, Arc::clone(&app.responses));
    let fields_bytes = fields.bytes;
    fields.held.grow(PER_REPEATED_BYTE * fields_bytes)?;
    let read = move || request::take(fields, &store, trusts_template);
    let (asked, request): (Asked, _) = app.text.read(fields_bytes, read).await?;
    let streams = request.streams();
    let Prepared { request, telling, held, without_effect, .. } =
        request.prepare(&app, &model).await.map_err(in_words)?;
    let wording = ResponseWording {
        id: names::response(),
        created_at: now(),
        completed_at: None,
        model: model.name().to_owned(),
        asked,
        temperature: request.params.temperature,
        top_p: request.params.top_p,
        store: Arc::clone(&app.responses),
        item_ids: Vec::new(),
        custom_input: None,
        sequence_number: 0,
    };
    let job = ItemJob {
        model,
        request,
        streams,
        prompt_field: "input",
        telling,
        wording,
        held,
        keep_alive: app.config.keep_alive,
    };
    Ok(naming(job.run(arrived).await.map_err(in_words)?, &without_effect))
}

/// What a request may have.
pub fn known(fields: Fields) -> Result<Vec<Known>, ApiError> {
    Ok(request::take(fields, &Store::new(0), false)?.1.known())
}

/// `POST /v1/responses/input_tokens`: the tokens of a request's prompt.
pub async fn input_tokens(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let model = Arc::clone(app.generator(fields.optional::<String>("model")?.as_deref())?);
    let (trusts_template, store) = (app.config.trust_request_chat_template, Arc::clone(&app.responses));
    let bytes = fields.bytes;
    let read = move || take_to_count(fields, &store, trusts_template);
    let request = app.text.read(bytes, read).await?;
    let (input_tokens, rest) = request.tokenize(&app, &model).await.map_err(in_words)?;
    let counted = json!({"object": "response.input_tokens", "input_tokens": input_tokens});
    Ok(naming(Json(counted).into_response(), &rest.without_effect))
}

/// What one that counts may have.
pub fn known_to_count(fields: Fields) -> Result<Vec<Known>, ApiError> {
    Ok(take_to_count(fields, &Store::new(0), false)?.known())
}

fn take_to_count(fields: Fields, store: &Store, trusts_template: bool) -> Result<ChatRequest, ApiError> {
    if !fields.has("input") {
        return Err(ApiError::param("input", "`input` is required"));
    }
    Ok(request::take(fields, store, trusts_template)?.1)
}

/// `GET /v1/responses/{id}`
pub async fn get(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    app.generator(None)?;
    let id = id_of(id)?;
    let is_whole = |field: &&str| *field == "stream=false" || !["stream", "starting_after"].contains(&name_of(field));
    if let Some(field) = query.as_deref().unwrap_or_default().split('&').find(|field| !is_whole(field)) {
        return Err(ApiError::unsupported(name_of(field), "what is kept comes whole: leave it out"));
    }
    let stored = app.responses.get(&id).ok_or_else(|| ApiError::unknown_response(&id))?;
    let mut held = app.memory.hold();
    held.grow(stored.response.len())?;
    Ok(held_until_sent(vec![stored.response.clone()], held))
}

/// `DELETE /v1/responses/{id}`
pub async fn delete(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    app.generator(None)?;
    let id = id_of(id)?;
    match app.responses.delete(&id) {
        true => Ok(Json(json!({"id": id, "object": "response", "deleted": true}))),
        false => Err(ApiError::unknown_response(&id)),
    }
}

fn id_of(id: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    let Path(id) = id.map_err(|error| ApiError::body(format!("the path names no response: {error}")))?;
    Ok(id)
}

/// The name of a field of a query.
fn name_of(field: &str) -> &str {
    field.split_once('=').map_or(field, |(name, _)| name)
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
