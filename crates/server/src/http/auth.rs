//! The API key of a request. Knows which paths need one, and nothing else of the request.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::{Choice, ConstantTimeEq};

use super::App;
use super::error::ApiError;

/// Lets a request through that needs no key or brings a right one as `Authorization: Bearer KEY`, or as `x-api-key: KEY` as Anthropic's clients do.
/// Some send both, one of them with a key that is meant for another server.
pub async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.config.api_keys.is_empty() || !needs_key(request.uri().path()) {
        return next.run(request).await;
    }
    let authorization = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let own = request.headers().get("x-api-key").map(|value| value.as_bytes());
    let keys = [authorization.and_then(bearer), own];
    let has_key = keys.iter().any(Option::is_some);
    if keys.iter().flatten().any(|key| is_known(key, &app.config.api_keys)) {
        return next.run(request).await;
    }
    let message = if has_key {
        "the API key is not one of this server's"
    } else {
        "no API key: send the header `Authorization: Bearer KEY`"
    };
    ApiError::unauthorized(message).into_response()
}

/// Everything but probes, metrics and the description: they stay open for the machinery around the server, as in vLLM.
fn needs_key(path: &str) -> bool {
    const OPEN: [&str; 6] = ["/health", "/ping", "/load", "/version", "/metrics", "/openapi.json"];
    !OPEN.contains(&path)
}

fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = authorization.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
}

/// Compares with every key in full, so that the time taken tells nothing about them but their length.
fn is_known(key: &[u8], known: &[String]) -> bool {
    known.iter().fold(Choice::from(0), |found, known| found | known.as_bytes().ct_eq(key)).into()
}
