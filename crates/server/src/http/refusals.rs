//! Counts requests that were refused for want of room. Knows errors by their codes only.

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
