//! Errors as OpenAI's error object with their HTTP status. Knows which fault is whose, but no endpoint.

use std::collections::VecDeque;
use std::fmt::{self, Write};

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use vllm_apple_engine::SubmitError;

use crate::generation::GenerationError;
use crate::settings::word;
use crate::text::TextError;

/// A refused or failed request: OpenAI's `{"error": {"message", "type", "param", "code"}}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status of the answer.
    pub status: StatusCode,
    /// What was wrong, what was expected and what to do.
    pub message: String,
    /// The faulty parameter, as a path into the request's body.
    pub param: Option<String>,
    /// A word for programs.
    pub code: Option<&'static str>,
    /// Of a prompt that is too long: the tokens that it takes with what must follow, and the most that there may be.
    pub overflow: Option<[usize; 2]>,
}

impl ApiError {
    fn new(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status, message: shortened(message.into()), param: None, code, overflow: None }
    }

    /// 400: `param` is wrong.
    pub fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(shortened(param.into())), ..Self::body(message) }
    }

    /// 400: the body as a whole is wrong.
    pub fn body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, None, message)
    }

    /// 400: `param` is known, but this server cannot do it.
    pub fn unsupported(param: &str, advice: &str) -> Self {
        let error = Self::param(param, format!("`{param}` is not supported by this server: {advice}"));
        Self { code: Some("unsupported_parameter"), ..error }
    }

    /// 400: nobody knows `name`.
    pub fn unknown_field(name: &str, nearest: Option<&str>) -> Self {
        let meant = match nearest {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None => "leave it out".to_owned(),
        };
        let error = Self::param(name, format!("`{}` is not known to this server: {meant}", shortened(name.to_owned())));
        Self { code: Some("unknown_parameter"), ..error }
    }

    /// 401: no API key, or a wrong one.
    pub fn unauthorized(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), message)
    }

    /// 403: a browser asks for a page of another origin.
    pub fn origin_not_allowed(origin: &str) -> Self {
        let message = format!(
            "pages of {origin:?} may not read answers of this server: start it with --allowed-origins '[{origin:?}]', or with '[\"*\"]' \
             for the pages of all websites"
        );
        Self::new(StatusCode::FORBIDDEN, Some("origin_not_allowed"), message)
    }

    /// 404: another model is served.
    pub fn unknown_model(asked: &str, served: &[String]) -> Self {
        let message = format!("the model `{asked}` does not exist; this server has: {}", served.join(", "));
        let error = Self::new(StatusCode::NOT_FOUND, Some("model_not_found"), message);
        Self { param: Some("model".to_owned()), ..error }
    }

    /// 400: the model does another thing.
    pub fn wrong_task(what_it_does: &str) -> Self {
        let error = Self::param("model", format!("the model {what_it_does}"));
        Self { code: Some("unsupported_task"), ..error }
    }

    /// 404: no such response is kept.
    pub fn unknown_response(id: &str) -> Self {
        let message = format!("the response {id:?} is not kept: it never was, or it was deleted or is too old");
        Self::new(StatusCode::NOT_FOUND, Some("response_not_found"), message)
    }

    /// 404: no such path.
    pub fn unknown_path(path: &str, meant: Option<&str>) -> Self {
        let message = match meant {
            Some(meant) => format!("no endpoint at {path}: did you mean {meant}?"),
            None => format!("no endpoint at {path}; the OpenAI API is below /v1"),
        };
        Self::new(StatusCode::NOT_FOUND, Some("not_found"), message)
    }

    /// 405: the path exists, but not for this method.
    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        let message = format!("{path} does not answer {method} requests");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, Some("method_not_allowed"), message)
    }

    /// 413: the body is larger than the server reads.
    pub fn too_large(limit: usize) -> Self {
        let message =
            format!("the request's body is larger than {limit} bytes, the most this server reads (--max-body-size)");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, Some("request_too_large"), message)
    }

    /// 400: no server of this size could hold what the request asks for.
    pub fn too_much_memory(wanted: usize, limit: usize) -> Self {
        let message = format!(
            "the request would hold {wanted} bytes, more than the {limit} bytes that all requests may hold together: ask for less, or \
             start the server with a larger --max-request-memory"
        );
        Self { code: Some("request_too_large"), ..Self::body(message) }
    }

    /// 503: other requests hold the memory.
    pub fn out_of_request_memory(used: usize, limit: usize) -> Self {
        let message = format!(
            "requests hold {used} of the {limit} bytes that they may hold together (--max-request-memory): try again in a while"
        );
        Self::unavailable("out_of_request_memory", message)
    }

    /// 415: the body is not declared as JSON.
    pub fn not_json() -> Self {
        let message = "send the body as JSON, with the header `Content-Type: application/json`";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Some("unsupported_media_type"), message)
    }

    /// 415: the body is compressed.
    pub fn encoded() -> Self {
        let message = "send the body as it is, without `Content-Encoding`: compressed bodies are not read";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Some("unsupported_media_type"), message)
    }

    /// 500: a step failed, or the server is at fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Some("internal_error"), message)
    }

    /// 503: the server cannot answer now.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, Some(code), message)
    }

    /// The error object.
    pub fn to_json(&self) -> Value {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }

    /// The same error, with the name that the request used for the parameter `ours`.
    pub fn renamed(self, ours: &str, name: &str) -> Self {
        if self.param.as_deref() != Some(ours) && ours != "max_tokens" {
            return self;
        }
        let param = self.param.map(|param| if param == ours { name.to_owned() } else { param });
        Self { param, message: self.message.replace(ours, name), ..self }
    }

    /// The same error, in the words of another API: what stands for what, in paths and messages.
    pub fn in_words(self, words: &[(&str, &str)]) -> Self {
        let translate = |text: String| words.iter().fold(text, |text, (ours, theirs)| text.replace(ours, theirs));
        Self { param: self.param.map(translate), message: translate(self.message), ..self }
    }

    /// The same error, about `param`, where it had none.
    pub fn about(mut self, param: &str) -> Self {
        self.param.get_or_insert_with(|| param.to_owned());
        self
    }
}

/// Messages quote what clients sent; an answer must not be as long as what it quotes.
fn shortened(text: String) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        None => text,
        Some((end, _)) => format!("{} … ({} bytes in all)", &text[..end], text.len()),
    }
}

/// Characters of a message at most.
const MAX_CHARS: usize = 1000;

/// What an error says, shortened before it takes memory. Of a longer one the end is kept, too, which says what was expected.
pub fn shown(error: &impl fmt::Display) -> String {
    struct Shortened {
        begin: String,
        end: VecDeque<char>,
        left_out: usize,
    }
    impl Write for Shortened {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for c in text.chars() {
                if self.begin.len() < MAX_CHARS / 2 {
                    self.begin.push(c);
                    continue;
                }
                if self.end.len() == MAX_CHARS / 4 {
                    self.left_out += self.end.pop_front().map_or(0, char::len_utf8);
                }
                self.end.push_back(c);
            }
            Ok(())
        }
    }
    let mut shown = Shortened { begin: String::new(), end: VecDeque::new(), left_out: 0 };
    let _ = write!(shown, "{error}");
    let Shortened { mut begin, end, left_out } = shown;
    if left_out > 0 {
        begin.push_str(&format!(" … ({left_out} bytes) … "));
    }
    begin.extend(end);
    begin
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_json())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // Clients wait this many seconds before they try again.
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        // For APIs that have another form of errors.
        response.extensions_mut().insert(self);
        response
    }
}

impl ApiError {
    /// Why the engine refuses a request whose prompt stands in the field `prompt`.
    pub fn refused(error: SubmitError, prompt: &str) -> Self {
        let message = word(&error.to_string()).into_owned();
        match error {
            SubmitError::InvalidParam(invalid) => Self::param(invalid.param, message),
            SubmitError::QueueFull { .. } => Self::new(StatusCode::TOO_MANY_REQUESTS, Some("queue_full"), message),
            SubmitError::ShuttingDown => Self::unavailable("shutting_down", message),
            SubmitError::EngineDead(_) => Self::unavailable("engine_dead", message),
            SubmitError::TooLong { prompt_tokens, min_output_tokens, max_model_len } => Self {
                code: Some("context_length_exceeded"),
                overflow: Some([prompt_tokens + min_output_tokens, max_model_len]),
                ..Self::param(prompt, message)
            },
            SubmitError::NeverFits { .. } => Self { code: Some("context_length_exceeded"), ..Self::body(message) },
            SubmitError::WrongTask(_) => Self::body(message),
            SubmitError::EmptyPrompt | SubmitError::TokenOutOfVocab { .. } => Self::param(prompt, message),
        }
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        let message = word(&error.to_string()).into_owned();
        match error {
            TextError::TemplateProcess(_) => Self::internal(message),
            TextError::TooLong { least, max, .. } => {
                Self { code: Some("context_length_exceeded"), overflow: Some([least, max]), ..Self::body(message) }
            }
            TextError::TooLarge { .. } => Self { code: Some("request_too_large"), ..Self::body(message) },
            _ => Self::body(message),
        }
    }
}

impl From<GenerationError> for ApiError {
    fn from(error: GenerationError) -> Self {
        let message = word(&error.to_string()).into_owned();
        match error {
            GenerationError::Invalid(_) => Self::body(message),
            GenerationError::OutOfMemory(_) => Self::unavailable("out_of_request_memory", message),
            GenerationError::Engine(_) | GenerationError::Text(_) => Self::internal(message),
            GenerationError::EngineDied(_) => Self::unavailable("engine_dead", message),
        }
    }
}
