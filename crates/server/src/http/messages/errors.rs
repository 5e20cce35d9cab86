//! Errors in Anthropic's form: `{"type": "error", "error": {"type", "message"}}`. Knows the paths that have it.

use axum::Json;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::request::THREAD;
use crate::http::error::ApiError;

/// Puts the errors of Anthropic's paths into its form, those of keys, methods and bodies among them.
pub async fn worded(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_anthropics = path == "/v1/messages" || path.starts_with("/v1/messages/");
    let mut response = next.run(request).await;
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    if !is_anthropics {
        return response;
    }
    let mut worded = (response.status(), Json(to_json(&error))).into_response();
    for (name, value) in response.headers() {
        if *name != header::CONTENT_LENGTH {
            worded.headers_mut().insert(name, value.clone());
        }
    }
    worded
}

/// The error object.
pub fn to_json(error: &ApiError) -> Value {
    let kind = match error.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    // By these words clients know that they must shorten the conversation.
    let message = match error.overflow {
        Some([tokens, most]) => format!("prompt is too long: {tokens} tokens > {most} maximum. {}", error.message),
        None => error.message.clone(),
    };
    let mut worded = json!({"type": kind, "message": message});
    if error.param.as_deref() == Some(THREAD) {
        // By this its client knows that it must send all messages itself.
        worded["details"] = json!({"error_code": "thread_unsupported_request", "unsupported": [THREAD]});
    }
    json!({"type": "error", "error": worded})
}
