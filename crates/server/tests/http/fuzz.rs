//! Arbitrary bodies: whatever comes in, the answer is a success or the client's fault, never the server's.

use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::http::{Request, header};
use proptest::prelude::*;
use serde_json::{Value, json};
use tower::ServiceExt;
use vllm_apple::http::{App, router};

use crate::support::Setup;

const FIELDS: [&str; 36] = [
    "prompt",
    "messages",
    "model",
    "n",
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "logprobs",
    "stop",
    "seed",
    "echo",
    "stream_options",
    "logit_bias",
    "stop_token_ids",
    "min_tokens",
    "prompt_logprobs",
    "tools",
    "top_logprobs",
    "chat_template_kwargs",
    "response_format",
    "suffix",
    "tokens",
    "input",
    "instructions",
    "max_output_tokens",
    "text",
    "reasoning",
    "include",
    "store",
    "tool_choice",
    "system",
    "thinking",
    "stop_sequences",
    "output_config",
];

/// Kinds and roles.
const WORDS: [&str; 12] = [
    "user",
    "assistant",
    "message",
    "function_call",
    "function_call_output",
    "reasoning",
    "text",
    "tool_use",
    "tool_result",
    "thinking",
    "function",
    "json_schema",
];

/// Endpoints that read a body.
const PATHS: [&str; 7] = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
];

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..400).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        prop::sample::select(&WORDS[..]).prop_map(Value::from),
        Just(json!([{"role": "user", "content": "Hi"}])),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("role|content|type|text|name|format|call_id|output|[a-z]{1,4}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let fields = prop::collection::hash_map(prop::sample::select(&FIELDS[..]), value(), 0..6);
    let object = (fields, any::<bool>()).prop_map(|(fields, valid_prompt)| {
        let mut body: serde_json::Map<_, _> =
            fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        if valid_prompt {
            body.insert("prompt".to_owned(), json!([5, 6]));
            body.insert("messages".to_owned(), json!([{"role": "user", "content": "Hi"}]));
            body.entry("input").or_insert_with(|| json!("Hi"));
        }
        Value::Object(body).to_string().into_bytes()
    });
    prop_oneof![8 => object, 1 => prop::collection::vec(any::<u8>(), 0..40)]
}

/// One server for all cases, so that what one leaves behind shows in the next.
fn app() -> Arc<App> {
    static APP: OnceLock<Arc<App>> = OnceLock::new();
    Arc::clone(APP.get_or_init(|| Setup::default().app()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_body_is_the_servers_fault(body in body(), path in prop::sample::select(&PATHS[..])) {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(body)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let status = runtime.block_on(async { router(app()).oneshot(request).await.unwrap().status() });
        prop_assert!(status.is_success() || status.is_client_error(), "{}", status);
    }
}
