//! The HTTP server: routes, limits and the order of checks. Knows no engine internals; each endpoint has its file.

mod arrivals;
mod auth;
mod brackets;
mod chat;
mod chat_messages;
mod completions;
mod connection;
mod cors;
mod dialogue;
mod embeddings;
mod error;
mod field_names;
mod fields;
mod item_answer;
mod items;
mod known;
mod lists;
mod logprobs;
mod memory;
mod message_fields;
mod messages;
mod openapi;
mod pooled;
mod probes;
mod prompt;
mod raw;
mod refusals;
mod respond;
mod responses;
mod returned;
mod routes;
mod sampling;
mod scores;
mod server;
mod structure;
mod text_queue;
mod thoughts;
mod tokenize;
mod told_apart;
mod tools;
mod unshown;
mod usage;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, Uri};
use axum::middleware;
use axum::routing::get;

pub use cors::{Allowed, Cors};
pub use error::ApiError;
pub use field_names::nearest;
pub use server::{ServeError, serve, shutdown_signal};

use vllm_apple_model::Pooler;

use crate::served::{ServedModel, Task};
use memory::RequestMemory;
use responses::Store;
use routes::routes;
use text_queue::TextQueue;

/// Whom the server answers, and what it lets requests take.
#[derive(Debug, Clone)]
pub struct AppConfig {
    /// Requests must bring one of these keys; none: all are answered.
    pub api_keys: Vec<String>,
    /// Which pages of browsers may read answers.
    pub cors: Cors,
    /// Most bytes of a request's body.
    pub max_body_size: usize,
    /// Most bytes that all requests hold together, prompts, answers and what is made of them on the way.
    pub max_request_memory: usize,
    /// Whether a request's own chat template is rendered.
    pub trust_request_chat_template: bool,
    /// Whether `/tokenizer_info` shows the tokenizer's configuration and the chat template.
    pub tokenizer_info: bool,
    /// Whether clients may empty the prefix cache.
    pub dev_mode: bool,
    /// Most bytes of the responses that are kept for `previous_response_id`.
    pub max_stored_responses: usize,
    /// Most connections that are open at once; clients beyond wait until one is closed.
    pub max_connections: usize,
    /// How long a stream may be silent, as during a long prefill, before something is sent: so that no proxy and no client gives up.
    pub keep_alive: Duration,
    /// How long running requests may go on when the server is asked to end; `None`: to their ends.
    pub shutdown_timeout: Option<Duration>,
}

impl Default for AppConfig {
    fn default() -> Self {
        Self {
            api_keys: Vec::new(),
            cors: Cors::default(),
            max_body_size: 16 << 20,
            max_request_memory: 1 << 30,
            trust_request_chat_template: false,
            tokenizer_info: false,
            dev_mode: false,
            max_stored_responses: 64 << 20,
            max_connections: usize::MAX,
            keep_alive: Duration::from_secs(15),
            shutdown_timeout: None,
        }
    }
}

/// What all handlers share.
#[derive(Debug)]
pub struct App {
    model: OnceLock<Arc<ServedModel>>,
    config: AppConfig,
    memory: Arc<RequestMemory>,
    text: TextQueue,
    responses: Arc<Store>,
}

impl App {
    /// A server whose model is still loading.
    pub fn new(config: AppConfig) -> Arc<Self> {
        let memory = RequestMemory::new(config.max_request_memory);
        let responses = Store::new(config.max_stored_responses);
        Arc::new(Self { model: OnceLock::new(), config, memory, text: TextQueue::default(), responses })
    }

    /// The model has been loaded: requests are served from now on.
    ///
    /// # Panics
    /// If a model was set before.
    pub fn set_model(&self, model: Arc<ServedModel>) {
        assert!(self.model.set(model).is_ok(), "a server serves one model");
    }

    pub(crate) fn shutdown_timeout(&self) -> Option<Duration> {
        self.config.shutdown_timeout
    }

    pub(crate) fn max_connections(&self) -> usize {
        self.config.max_connections
    }

    /// The model, once it is loaded.
    pub(crate) fn model(&self) -> Result<&Arc<ServedModel>, ApiError> {
        let loading = || ApiError::unavailable("loading", "the model is still loading: try again in a while");
        self.model.get().ok_or_else(loading)
    }

    /// The model, if it is the one that the request names.
    pub(crate) fn model_named(&self, name: Option<&str>) -> Result<&Arc<ServedModel>, ApiError> {
        let model = self.model()?;
        match name {
            Some(name) if !model.names.iter().any(|served| served == name) => {
                Err(ApiError::unknown_model(name, &model.names))
            }
            _ => Ok(model),
        }
    }

    /// The same, which must be one that generates text.
    pub(crate) fn generator(&self, name: Option<&str>) -> Result<&Arc<ServedModel>, ApiError> {
        let model = self.model_named(name)?;
        match &model.pooler {
            None => Ok(model),
            Some(_) => Err(ApiError::wrong_task("makes embeddings: ask /v1/embeddings, /score or /rerank")),
        }
    }

    /// The same, which must be one that makes embeddings, and how it does.
    pub(crate) fn embedder(&self, name: Option<&str>) -> Result<(&Arc<ServedModel>, &Pooler), ApiError> {
        let model = self.model_named(name)?;
        match &model.pooler {
            Some(pooler) => Ok((model, pooler)),
            None => {
                Err(ApiError::wrong_task("generates text: start the server with --runner pooling for embeddings of it"))
            }
        }
    }

    /// Whether the model, once it is loaded, answers at a route for this task.
    pub(crate) fn does(&self, task: Task) -> bool {
        self.model.get().is_none_or(|model| model.task() == task)
    }
}

/// All routes. Checks run from the outside in: origin, API key, path, method, body size, body. A browser that asks whether it may send has no
/// key, and what is refused must be read by pages, too.
pub fn router(app: Arc<App>) -> Router {
    let routes = routes(&app.config);
    let paths: Arc<[&str]> = routes.iter().map(|route| route.path).collect();
    let router = routes
        .into_iter()
        .fold(Router::new(), |router, route| router.route(route.path, route.methods))
        // From where vLLM sends clients on.
        .route("/v1/models/", get(probes::models))
        .fallback(move |request: Request| async move {
            let path = request.uri().path();
            ApiError::unknown_path(path, meant(path, &paths))
        })
        .method_not_allowed_fallback(|method: Method, uri: Uri| async move {
            ApiError::method_not_allowed(method.as_str(), uri.path())
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&app), refusals::count))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), auth::check))
        .layer(middleware::from_fn(refusals::log))
        .layer(middleware::from_fn(messages::in_anthropics_form));
    let router = match app.config.cors.layer() {
        Some(layer) => router.layer(layer),
        None => router,
    };
    router.layer(middleware::from_fn_with_state(Arc::clone(&app), cors::check)).with_state(app)
}

/// The path that a client was perhaps told to ask: with `/v1`, with single slashes, without a typing error.
fn meant<'p>(path: &str, paths: &[&'p str]) -> Option<&'p str> {
    let plain: String = path.split('/').filter(|part| !part.is_empty()).flat_map(|part| ["/", part]).collect();
    let below = format!("/v1{plain}");
    let is = |known: &&&'p str| **known == plain || **known == below;
    paths.iter().find(is).copied().or_else(|| nearest(&plain, paths.iter().copied()))
}
