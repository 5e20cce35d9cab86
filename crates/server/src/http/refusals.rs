//! What the server's owner learns of refused requests: those for want of room are counted, and each is a line of a log that asks for details.

use std::borrow::Cow;
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

/// Logs what a refused request asked for and why it was refused. What it sent stays out of the log.
pub async fn log(request: Request, next: Next) -> Response {
    let path = tracing::enabled!(tracing::Level::DEBUG).then(|| request.uri().path().to_owned());
    let response = next.run(request).await;
    if let (Some(path), Some(error)) = (path, response.extensions().get::<ApiError>()) {
        tracing::debug!("{} {path}: {}", error.status.as_u16(), without_quotes(&error.message));
    }
    response
}

/// The first line of a message without what is quoted in it, which may be a part of a prompt.
fn without_quotes(message: &str) -> Cow<'_, str> {
    let line = message.lines().next().unwrap_or_default();
    // From the first mark to the last: what is quoted may have such marks itself.
    match (line.find('"'), line.rfind('"')) {
        (Some(first), Some(last)) if first < last => format!("{}…{}", &line[..=first], &line[last..]).into(),
        // Cut off by its length.
        (Some(first), _) => format!("{}…", &line[..=first]).into(),
        _ => line.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_sent_is_not_logged() {
        let of = |message| without_quotes(message).into_owned();
        assert_eq!(of("`top_p` must be at most 1, got 2"), "`top_p` must be at most 1, got 2");
        assert_eq!(
            of(r#"invalid type: string "a \"secret\"", expected a list"#),
            r#"invalid type: string "…", expected a list"#
        );
        assert_eq!(of("got \"a secret … (5000 bytes in all)"), "got \"…");
        assert_eq!(of("the template failed\na secret"), "the template failed");
    }
}
