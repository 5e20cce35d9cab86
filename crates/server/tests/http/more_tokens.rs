//! A server on the fake executor whose tokenizer has tokens for the marks that a model writes.

use std::path::Path;
use std::sync::Arc;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use tempfile::TempDir;
use vllm_apple::http::{App, AppConfig};
use vllm_apple::metrics::Metrics;
use vllm_apple::served::{OutputFormats, ServedModel};
use vllm_apple::structured::Structures;
use vllm_apple::text::{TemplateRenderer, Tokenizer};
use vllm_apple_engine::fake::{FakeConfig, FakeExecutor};
use vllm_apple_engine::{Engine, EngineConfig, EngineHandle};

use crate::errors::{CHAT, post, send};
use crate::support::{MODEL, checkpoint, program, with};

/// A checkpoint with these tokens, of which some end an answer.
pub fn checkpoint_with(marks: &[&str], are_special: bool, ends: &[&str], template: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read(checkpoint().join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_slice(&text).unwrap();
    let tokens = tokenizer["added_tokens"].as_array_mut().unwrap();
    let first = tokens.iter().map(|token| token["id"].as_u64().unwrap()).max().unwrap() + 1;
    let fields =
        json!({"single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": are_special});
    let added = (first..).zip(marks).map(|(id, mark)| with(fields.clone(), json!({"id": id, "content": mark})));
    tokens.extend(added);
    let id = |end: &&str| tokens.iter().find(|token| token["content"] == **end).unwrap()["id"].clone();
    let eos_token_ids: Vec<Value> = ends.iter().map(id).collect();
    let write = |name: &str, value: Value| std::fs::write(dir.path().join(name), value.to_string()).unwrap();
    write("generation_config.json", json!({"eos_token_id": eos_token_ids}));
    write("tokenizer_config.json", json!({"eos_token": ends[0], "chat_template": template}));
    write("tokenizer.json", tokenizer);
    dir
}

/// A server whose model begins its answers so.
pub fn app(dir: &Path, begins: &str) -> Arc<App> {
    let tokenizer = Arc::new(Tokenizer::from_dir(dir).unwrap());
    let mut fake = FakeConfig { script: tokenizer.encode(begins, false).unwrap(), ..FakeConfig::default() };
    fake.info.vocab_size = tokenizer.vocab_size();
    (fake.info.max_model_len, fake.info.num_blocks) = (1024, 512);
    let max_model_len = fake.info.max_model_len;
    let engine = EngineHandle::spawn(Engine::new(FakeExecutor::new(fake), EngineConfig::default()).unwrap());
    let eos_token_ids: Arc<[u32]> = tokenizer.eos_token_ids().into();
    let chat_template = TemplateRenderer::start(program(), dir, &tokenizer, None).unwrap();
    let app = App::new(AppConfig::default());
    app.set_model(Arc::new(ServedModel {
        structures: Structures::new(Arc::clone(&tokenizer), Arc::clone(&eos_token_ids)),
        names: vec![MODEL.to_owned()],
        root: "models/fake".to_owned(),
        max_model_len,
        eos_token_ids,
        defaults: Default::default(),
        pooler: None,
        formats: OutputFormats::of_template(&chat_template),
        chat_template,
        tokenizer,
        metrics: Arc::new(Metrics::new(MODEL, engine.clone())),
        engine,
        created: 1_700_000_000,
    }));
    app
}

/// The first choice of a whole answer, and the fields without effect.
pub async fn ask(app: &Arc<App>, body: Value) -> (Value, String) {
    let response = send(app, post(CHAT, body.to_string())).await;
    let names = response.headers().get("x-fields-without-effect").map(|names| names.to_str().unwrap().to_owned());
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(status, 200, "{answer}");
    (answer["choices"][0].clone(), names.unwrap_or_default())
}
