//! What a client or a monitor asks about the server itself: models, health, version, metrics. Knows no prompts.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::App;
use super::error::ApiError;
use crate::metrics;
use crate::served::ServedModel;

/// `GET /v1/models`
pub async fn models(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let model = app.model()?;
    let cards: Vec<_> = model.names.iter().map(|name| card(model, name)).collect();
    Ok(Json(json!({"object": "list", "data": cards})))
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

fn card(model: &ServedModel, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "vllm-apple",
        "root": model.root,
        "parent": null,
        "max_model_len": model.max_model_len,
    })
}

/// `GET /health`: 200 while requests are answered, 503 with the reason while they are not.
pub async fn health(State(app): State<Arc<App>>) -> Result<(), ApiError> {
    app.model()?.engine.health().map_err(|reason| ApiError::unavailable("engine_dead", reason))
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
