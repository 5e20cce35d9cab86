//! What a client or a monitor asks about the server itself: models, health, version, metrics. Knows no prompts.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::App;
use super::error::ApiError;
use crate::metrics;
use crate::served::ServedModel;

/// `GET /v1/models`: OpenAI's list, with the fields by which Anthropic's clients turn its pages.
pub async fn models(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let model = app.model()?;
    let cards: Vec<_> = model.names.iter().map(|name| card(model, name)).collect();
    let (first, last) = (model.names.first(), model.names.last());
    Ok(Json(json!({"object": "list", "data": cards, "has_more": false, "first_id": first, "last_id": last})))
}

/// `GET /v1/models/{id}`
pub async fn model(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|error| ApiError::body(format!("the path names no model: {error}")))?;
    let model = app.model_named(Some(&id))?;
    Ok(Json(card(model, &id)))
}

/// A model as OpenAI, vLLM and, by `type` and `display_name`, Anthropic describe one.
fn card(model: &ServedModel, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": model.created,
        "owned_by": "vllm-apple",
        "root": model.root,
        "parent": null,
        "max_model_len": model.max_model_len,
    })
}

/// `GET /health`: 200 while requests are taken, 503 with the reason while they are not: whoever shares them out sends them elsewhere then.
pub async fn health(State(app): State<Arc<App>>) -> Result<(), ApiError> {
    app.model()?.engine.check_serving().map_err(|error| ApiError::refused(error, "prompt"))
}

/// `GET /version`
pub async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// `GET /metrics`
pub async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let metrics = &app.model()?.metrics;
    let text = metrics.recent().await.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

/// `GET /load`: requests that are being answered.
pub async fn load(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({"server_load": app.model()?.engine.num_requests()})))
}

/// `POST /reset_prefix_cache`: whether no request ran, so that the cache could be emptied.
pub async fn reset_prefix_cache(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Value>, ApiError> {
    for name in ["reset_running_requests", "reset_external"] {
        if uri.query().is_some_and(|query| query.split('&').any(|pair| pair == format!("{name}=true"))) {
            return Err(ApiError::unsupported(name, "wait until no request runs; the cache is this process's alone"));
        }
    }
    Ok(Json(json!({"success": app.model()?.engine.reset_prefix_cache().await})))
}

/// `GET /tokenizer_info`: tokenizer_config.json, with the chat template that is in use.
pub async fn tokenizer_info(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let model = app.model()?;
    let mut info = model.tokenizer.special_tokens().config();
    if let Some(template) = model.chat_template.text() {
        info.insert("chat_template".to_owned(), template.into());
    }
    Ok(Json(Value::Object(info)))
}
