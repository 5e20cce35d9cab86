//! Which pages of browsers may read answers: those of the server's own origin, and of the origins that it is told. Knows the headers by which
//! browsers ask, nothing else of a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

use super::App;
use super::error::ApiError;
use super::fields::WITHOUT_EFFECT_HEADER;

/// How long a browser goes by an answer before it asks again, as with vLLM.
const MAX_AGE: Duration = Duration::from_secs(600);

/// What is allowed of something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed<T> {
    /// All.
    Any,
    /// These.
    Only(Vec<T>),
}

/// What pages of other origins may do.
#[derive(Debug, Clone)]
pub struct Cors {
    /// Which pages.
    pub origins: Allowed<HeaderValue>,
    /// What they may send.
    pub methods: Allowed<Method>,
    /// Headers of what they send, besides a few that are always allowed.
    pub headers: Allowed<HeaderName>,
    /// Whether their browser sends cookies along, which a proxy may know.
    pub credentials: bool,
}

impl Default for Cors {
    /// As with vLLM, no page of another origin may read anything.
    fn default() -> Self {
        Self { origins: Allowed::Only(Vec::new()), methods: Allowed::Any, headers: Allowed::Any, credentials: false }
    }
}

impl Cors {
    /// What answers browsers that ask before they send, and gives answers the headers by which pages may read them. `None`: no page may.
    pub fn layer(&self) -> Option<CorsLayer> {
        let origin = match &self.origins {
            Allowed::Only(none) if none.is_empty() => return None,
            Allowed::Only(these) => AllowOrigin::list(these.clone()),
            // With cookies browsers want the origin's name.
            Allowed::Any if self.credentials => AllowOrigin::mirror_request(),
            Allowed::Any => AllowOrigin::any(),
        };
        let methods = match &self.methods {
            Allowed::Any => AllowMethods::mirror_request(),
            Allowed::Only(these) => AllowMethods::list(these.clone()),
        };
        let headers = match &self.headers {
            // The word for all would leave out `Authorization`.
            Allowed::Any => AllowHeaders::mirror_request(),
            Allowed::Only(these) => {
                // With vLLM these are always among them: without the last no page could send JSON.
                let always = [header::ACCEPT, header::ACCEPT_LANGUAGE, header::CONTENT_LANGUAGE, header::CONTENT_TYPE];
                AllowHeaders::list(always.into_iter().chain(these.iter().cloned()))
            }
        };
        let layer = CorsLayer::new().allow_origin(origin).allow_methods(methods).allow_headers(headers);
        let shown = [HeaderName::from_static(WITHOUT_EFFECT_HEADER), header::RETRY_AFTER];
        Some(layer.allow_credentials(self.credentials).expose_headers(shown).max_age(MAX_AGE))
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        match &self.origins {
            Allowed::Any => true,
            Allowed::Only(these) => these.contains(origin),
        }
    }
}

/// Refuses a browser that asks for a page that is not allowed, with the flag that allows it. Browsers show such an answer to who looks for it,
/// but not to the page; the log has the first.
pub async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    static TOLD: AtomicBool = AtomicBool::new(false);
    match asking(request.method(), request.headers()) {
        Some(origin) if !app.config.cors.allows(origin) => {
            let error = ApiError::origin_not_allowed(&String::from_utf8_lossy(origin.as_bytes()));
            if !TOLD.swap(true, Ordering::Relaxed) {
                tracing::warn!("a browser was refused: {}; further ones are not logged", error.message);
            }
            error.into_response()
        }
        _ => next.run(request).await,
    }
}

/// The origin of a page for which a browser asks before it sends.
fn asking<'h>(method: &Method, headers: &'h HeaderMap) -> Option<&'h HeaderValue> {
    let asks = method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    headers.get(header::ORIGIN).filter(|_| asks)
}
