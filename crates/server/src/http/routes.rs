//! The server's paths: what answers them, and what they are for. Both the router and its description are made of this list.

use std::sync::Arc;

use axum::routing::{MethodRouter, get, post};

use super::openapi::{self, Body, Operation, Route};
use super::{App, AppConfig, chat, completions, embeddings, messages, probes, responses, scores, tokenize};
use crate::served::Task;

const PROMPT: &str = r#"{"prompt": "Hi"}"#;
const MESSAGES: &str = r#"{"messages": [{"role": "user", "content": "Hi"}]}"#;
const ANTHROPICS: &str = r#"{"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}"#;
const TO_COUNT: &str = r#"{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}"#;

const COMPLETIONS: Body = Body { least: &[PROMPT], required: &["prompt"], read: completions::known };
const CHAT: Body = Body { least: &[MESSAGES], required: &["messages"], read: chat::known };
const RESPONSES: Body = Body { least: &[r#"{"input": "Hi"}"#], required: &[], read: responses::known };
const INPUT_TOKENS: Body =
    Body { least: &[r#"{"input": "Hi"}"#], required: &["input"], read: responses::known_to_count };
const MESSAGE: Body =
    Body { least: &[ANTHROPICS], required: &["model", "max_tokens", "messages"], read: messages::known };
const COUNT: Body = Body { least: &[TO_COUNT], required: &["model", "messages"], read: messages::known_to_count };
const EMBEDDINGS: Body = Body { least: &[r#"{"input": "Hi"}"#], required: &["input"], read: embeddings::known };
const SCORE: Body = Body {
    least: &[
        r#"{"queries": "a", "documents": "b"}"#,
        r#"{"queries": "a", "items": "b"}"#,
        r#"{"data_1": "a", "data_2": "b"}"#,
        r#"{"text_1": "a", "text_2": "b"}"#,
    ],
    required: &[],
    read: scores::known,
};
const RERANK: Body = Body {
    least: &[r#"{"query": "a", "documents": "b"}"#],
    required: &["query", "documents"],
    read: scores::known_to_rerank,
};
const TOKENIZE: Body = Body { least: &[PROMPT, MESSAGES], required: &[], read: tokenize::known };
const DETOKENIZE: Body =
    Body { least: &[r#"{"tokens": [1]}"#], required: &["tokens"], read: tokenize::known_to_detokenize };

type Methods = MethodRouter<Arc<App>>;

fn route(path: &'static str, methods: Methods, operations: &[Operation]) -> Route {
    Route { path, methods, operations: operations.to_vec(), task: None }
}

fn asked(method: &'static str, summary: &'static str) -> Operation {
    Operation { method, summary, body: None }
}

fn posted(path: &'static str, methods: Methods, summary: &'static str, body: Body) -> Route {
    route(path, methods, &[Operation { method: "post", summary, body: Some(body) }])
}

/// All paths of a server that is set up so.
pub fn routes(config: &AppConfig) -> Vec<Route> {
    let of = |task: Task, routes: Vec<Route>| routes.into_iter().map(move |route| Route { task: Some(task), ..route });
    of(Task::Generate, generating()).chain(of(Task::Embed, embedding())).chain(others(config)).collect()
}

/// Those of a model that generates text.
fn generating() -> Vec<Route> {
    vec![
        posted("/v1/completions", post(completions::create), "OpenAI's completions", COMPLETIONS),
        posted("/v1/chat/completions", post(chat::create), "OpenAI's chat completions", CHAT),
        posted("/v1/responses", post(responses::create), "OpenAI's responses", RESPONSES),
        route(
            "/v1/responses/{id}",
            get(responses::get).delete(responses::delete),
            &[asked("get", "A response that is kept"), asked("delete", "Forgets it")],
        ),
        route(
            "/v1/responses/{id}/input_items",
            get(responses::input_items),
            &[asked("get", "The conversation that it answers")],
        ),
        posted("/v1/responses/input_tokens", post(responses::input_tokens), "Tokens of their prompt", INPUT_TOKENS),
        posted("/v1/messages", post(messages::create), "Anthropic's messages", MESSAGE),
        posted("/v1/messages/count_tokens", post(messages::count_tokens), "Tokens of their prompt", COUNT),
    ]
}

/// Those of a model that makes embeddings.
fn embedding() -> Vec<Route> {
    let score = |path| posted(path, post(scores::score), "Cosines of the embeddings of pairs of texts", SCORE);
    let rerank = |path| posted(path, post(scores::rerank), "Documents by their nearness to a query", RERANK);
    vec![
        posted("/v1/embeddings", post(embeddings::create), "OpenAI's embeddings", EMBEDDINGS),
        score("/score"),
        score("/v1/score"),
        rerank("/rerank"),
        rerank("/v1/rerank"),
        rerank("/v2/rerank"),
    ]
}

/// Those of any model.
fn others(config: &AppConfig) -> Vec<Route> {
    let mut routes = vec![
        route("/v1/models", get(probes::models), &[asked("get", "Models that requests may name")]),
        route("/v1/models/{*id}", get(probes::model), &[asked("get", "One of them")]),
        posted("/tokenize", post(tokenize::tokenize), "Tokens of a text or a conversation", TOKENIZE),
        posted("/detokenize", post(tokenize::detokenize), "The text of tokens", DETOKENIZE),
        route("/health", get(probes::health), &[asked("get", "Whether requests are answered")]),
        route(
            "/ping",
            get(probes::health).post(probes::health),
            &[asked("get", "The same"), asked("post", "The same")],
        ),
        route("/load", get(probes::load), &[asked("get", "Requests that are being answered")]),
        route("/version", get(probes::version), &[asked("get", "The server's version")]),
        route("/metrics", get(probes::metrics), &[asked("get", "Prometheus' metrics")]),
        route("/openapi.json", get(openapi::describe), &[asked("get", "This description")]),
    ];
    if config.tokenizer_info {
        let summary = "The tokenizer's configuration and the chat template";
        routes.push(route("/tokenizer_info", get(probes::tokenizer_info), &[asked("get", summary)]));
    }
    if config.dev_mode {
        let summary = "Empties the prefix cache while no request runs";
        routes.push(route("/reset_prefix_cache", post(probes::reset_prefix_cache), &[asked("post", summary)]));
    }
    routes
}
