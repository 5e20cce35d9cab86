//! What the server's owner learns of refused requests: those for want of room are counted, and each is a line of a log that asks for details.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::App;
use super::error::ApiError;

/// What such an error's code is.
const FULL: [&str; 2] = ["queue_full", "out_of_request_memory"];

pub async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let code = response.extensions().get::<ApiError>().and_then(|error| error.code);
    if let (Some(code), Ok(model)) = (code.filter(|code| FULL.contains(code)), app.model()) {
        model.metrics.refused(code);
    }
    response
}

/// Logs what a refused request asked for, and which field was wrong. What it sent stays out of the log, and so do messages, which may repeat it.
pub async fn log(request: Request, next: Next) -> Response {
    let path = tracing::enabled!(tracing::Level::DEBUG).then(|| request.uri().path().to_owned());
    let response = next.run(request).await;
    if let (Some(path), Some(error)) = (path, response.extensions().get::<ApiError>()) {
        let ApiError { status, code, param, .. } = error;
        let field = param.as_deref().map(|param| format!(", field {param}")).unwrap_or_default();
        tracing::debug!("{} {path}: {}{field}", status.as_u16(), code.unwrap_or("invalid request"));
    }
    response
}
