//! A server on the fake executor with a real, small tokenizer, and a client for it. Knows no particular test.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use vllm_apple::http::{App, AppConfig, ServeError, serve};
use vllm_apple::metrics::Metrics;
use vllm_apple::served::{OutputFormats, ServedModel};
use vllm_apple::structured::Structures;
use vllm_apple::text::{TemplateRenderer, Tokenizer};
use vllm_apple_engine::fake::{FakeConfig, FakeExecutor};
use vllm_apple_engine::{Engine, EngineConfig, EngineHandle};
use vllm_apple_model::{GenerationConfig, Pooler};

/// The name of the served model.
pub const MODEL: &str = "fake-model";

/// What a model writes that thinks, answers and calls two tools.
pub const THOUGHT_AND_CALLS: &str = "<think>\nHm.</think>\n\nWell. <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>\n\
                    <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";

/// Tokens of a text.
pub fn length(text: &str) -> usize {
    tokenizer().encode(text, false).unwrap().len()
}

/// A request with more fields, or others.
pub fn with(mut body: Value, fields: Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// How to set up a server.
#[derive(Clone)]
pub struct Setup {
    pub fake: FakeConfig,
    pub max_waiting: usize,
    pub defaults: GenerationConfig,
    pub config: AppConfig,
    /// Instead of the checkpoint's.
    pub template: Option<&'static str>,
    /// Of a model that makes embeddings.
    pub pooler: Option<Pooler>,
}

impl Default for Setup {
    fn default() -> Self {
        let mut fake = FakeConfig::default();
        fake.info.vocab_size = tokenizer().vocab_size();
        Self {
            fake,
            max_waiting: 64,
            defaults: GenerationConfig::default(),
            config: AppConfig::default(),
            template: None,
            pooler: None,
        }
    }
}

impl Setup {
    /// Every request answers with this text first.
    pub fn scripted(text: &str) -> Self {
        let mut setup = Self::default();
        setup.fake.script = tokenizer().encode(text, false).unwrap();
        setup
    }

    /// The model makes embeddings of so many elements.
    pub fn embedder(size: usize, pooler: Pooler) -> Self {
        let mut setup = Self { pooler: Some(pooler), ..Self::default() };
        setup.fake.info.embedding_size = Some(size);
        setup
    }

    /// With [`TEMPLATE`], and room for tools in the prompt.
    pub fn roomy(mut self) -> Self {
        self.fake.info.max_model_len = 1024;
        self.fake.info.num_blocks = 512;
        Self { template: Some(TEMPLATE), ..self }
    }

    /// Requests run until they are stopped: there is room for more steps than any test waits for.
    pub fn endless() -> Self {
        let mut setup = Self::default();
        setup.fake.info.max_model_len = 100_000;
        setup.fake.info.num_blocks = 8 * 100_000 / setup.fake.info.block_size;
        setup.fake.step_time = Duration::from_millis(1);
        setup
    }

    /// The model on a new engine.
    pub fn model(&self) -> Arc<ServedModel> {
        let config = EngineConfig { max_waiting: self.max_waiting, ..EngineConfig::default() };
        let engine = Engine::new(FakeExecutor::new(self.fake.clone()), config).unwrap();
        let engine = EngineHandle::spawn(engine);
        let tokenizer = Arc::new(tokenizer().bounded(self.fake.info.max_model_len));
        let eos_token_ids: Arc<[u32]> = tokenizer.eos_token_ids().into();
        let chat_template = TemplateRenderer::start(program(), &checkpoint(), &tokenizer, self.template).unwrap();
        Arc::new(ServedModel {
            structures: Structures::new(Arc::clone(&tokenizer), Arc::clone(&eos_token_ids)),
            names: vec![MODEL.to_owned(), "other-name".to_owned()],
            root: "models/fake".to_owned(),
            max_model_len: self.fake.info.max_model_len,
            eos_token_ids,
            defaults: self.defaults.clone(),
            pooler: self.pooler.clone(),
            formats: OutputFormats::of_template(&chat_template),
            chat_template,
            tokenizer,
            metrics: Arc::new(Metrics::new(MODEL, engine.clone())),
            engine,
            created: 1_700_000_000,
        })
    }

    /// An app that has its model.
    pub fn app(&self) -> Arc<App> {
        let app = App::new(self.config.clone());
        app.set_model(self.model());
        app
    }

    /// A server on a free port.
    pub async fn start(&self) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let model = self.model();
        let (app, loaded) = (App::new(self.config.clone()), Arc::clone(&model));
        let end = tokio::spawn(serve(listener, app, async { Ok(loaded) }, async {
            let _ = stopped.await;
        }));
        let server = Server { url, client: reqwest::Client::new(), model, stop, end };
        patiently(async {
            while server.get("/health").await.status() != 200 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        server
    }
}

/// A running server and a client.
pub struct Server {
    pub url: String,
    pub client: reqwest::Client,
    pub model: Arc<ServedModel>,
    pub stop: oneshot::Sender<()>,
    pub end: JoinHandle<Result<(), ServeError>>,
}

impl Server {
    pub async fn get(&self, path: &str) -> reqwest::Response {
        self.client.get(format!("{}{path}", self.url)).send().await.unwrap()
    }

    pub async fn post(&self, path: &str, body: Value) -> reqwest::Response {
        self.client.post(format!("{}{path}", self.url)).json(&body).send().await.unwrap()
    }

    /// A request that must succeed.
    pub async fn ask(&self, path: &str, body: Value) -> Value {
        let response = self.post(path, body).await;
        let status = response.status();
        let answer: Value = response.json().await.unwrap();
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub async fn complete(&self, body: Value) -> Value {
        self.ask("/v1/completions", body).await
    }

    /// The events of a streamed request, `[DONE]` checked and removed.
    pub async fn stream(&self, path: &str, mut body: Value) -> Vec<Value> {
        body["stream"] = true.into();
        let response = self.post(path, body).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        events(&response.text().await.unwrap())
    }

    /// The events of a streamed request of an API that names them.
    pub async fn stream_named(&self, path: &str, mut body: Value) -> Vec<Value> {
        body["stream"] = true.into();
        let response = self.post(path, body).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        named_events(&response.text().await.unwrap())
    }

    /// A streamed request that has sent its first event and goes on. The stream brings that event, too.
    pub async fn open_stream(&self) -> impl futures_util::Stream<Item = String> + use<> {
        let body = json!({"prompt": [5, 6, 7], "stream": true, "ignore_eos": true, "max_tokens": 90_000});
        let response = self.post("/v1/completions", body).await;
        assert_eq!(response.status(), 200);
        let mut stream = Box::pin(response.bytes_stream().map(|bytes| {
            let bytes = bytes.expect("the stream ends in order");
            String::from_utf8_lossy(&bytes).into_owned()
        }));
        let first = stream.next().await.unwrap();
        assert!(first.contains("data: {"));
        futures_util::stream::iter([first]).chain(stream)
    }

    /// Waits until the engine has nothing left.
    pub async fn idle(&self) {
        patiently(async {
            while self.model.engine.stats().num_running + self.model.engine.stats().num_waiting > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

/// The JSON events of a stream that ends with `[DONE]`.
pub fn events(text: &str) -> Vec<Value> {
    let mut data: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"), "{text}");
    data.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// The named events of a stream: each has the name of its type.
pub fn named_events(text: &str) -> Vec<Value> {
    let event = |part: &str| {
        let (name, data) = part.strip_prefix("event: ")?.split_once("\ndata: ")?;
        let event: Value = serde_json::from_str(data.trim_end()).unwrap();
        assert_eq!(event["type"], name);
        Some(event)
    };
    text.split_terminator("\n\n").map(|part| event(part).unwrap_or_else(|| panic!("{part}"))).collect()
}

/// The events of each choice, in order: the choice objects.
pub fn choices_of(events: &[Value], index: usize) -> Vec<&Value> {
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    choices.filter(|choice| choice["index"] == index).collect()
}

/// Fails a test that hangs instead of holding all tests; no test depends on how long this is.
pub async fn patiently<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), future).await.expect("the server does not get there")
}

/// Shows tools, and how Hermes writes calls of them; thinks.
pub const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content or '' }}\n{% endfor %}\
                            {% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}";

/// Where the tokenizer comes from.
pub fn checkpoint() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/qwen2")
}

/// What renders chat templates: the binary, because a test program has no template worker in it.
pub fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_vllm-apple"))
}

pub fn tokenizer() -> Tokenizer {
    Tokenizer::from_dir(&checkpoint()).unwrap()
}
