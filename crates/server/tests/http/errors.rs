//! Every refusal: its status, the parameter it names, and OpenAI's error object. A new case is a row.

use axum::body::Body;
use axum::http::{Request, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use vllm_apple::generation::GenerationError;
use vllm_apple::http::{ApiError, App, AppConfig, router};

use crate::support::{Setup, patiently, with};

pub(super) const COMPLETIONS: &str = "/v1/completions";
pub(super) const CHAT: &str = "/v1/chat/completions";

pub(super) async fn send(app: &std::sync::Arc<App>, request: Request<Body>) -> Response {
    router(std::sync::Arc::clone(app)).oneshot(request).await.unwrap()
}

pub(super) fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path).header(header::CONTENT_TYPE, "application/json").body(body.into()).unwrap()
}

/// The error object of a response with this status.
pub(super) async fn error(response: Response, status: u16) -> Value {
    let got = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_else(|_| panic!("{got}: {bytes:?}"));
    assert_eq!(got, status, "{body}");
    let error = &body["error"];
    assert!(error["message"].is_string() && error["type"].is_string(), "{body}");
    assert!(error.get("param").is_some() && error.get("code").is_some(), "{body}");
    error.clone()
}

/// JSON that holds JSON as the text of the key that serde_json reserves for itself, and so on: each level would be read by a new reader,
/// deeper in the stack.
fn texts_within_texts() -> String {
    const LEVELS: usize = 30;
    const DEPTH: usize = 120;
    let quote = |level: usize| match level {
        0 => "\"".to_owned(),
        level => format!("\\{}0022", "u005c".repeat(level - 1) + "u"),
    };
    let open = |level| format!("{}{{{q}$serde_json::private::RawValue{q}:{q}", "[".repeat(DEPTH), q = quote(level));
    let close = |level| format!("{}}}{}", quote(level), "]".repeat(DEPTH));
    let levels: String = (0..LEVELS).map(open).collect();
    levels + "0" + &(0..LEVELS).rev().map(close).collect::<String>()
}

/// Whoever could have an answer in a while is told to come again.
#[tokio::test]
async fn a_generation_that_fails_says_whose_fault_it_is() {
    let why = || "why".to_owned();
    for (failed, status, code) in [
        (GenerationError::Invalid(why()), 400, Value::Null),
        (GenerationError::OutOfMemory(why()), 503, json!("out_of_request_memory")),
        (GenerationError::Engine(why()), 500, json!("internal_error")),
        (GenerationError::EngineDied(why()), 503, json!("engine_dead")),
    ] {
        let response = ApiError::from(failed).into_response();
        assert_eq!(response.headers().contains_key(header::RETRY_AFTER), status == 503);
        assert_eq!(error(response, status).await["code"], code);
    }
}

#[tokio::test]
async fn no_json_overflows_the_stack() {
    let app = Setup::default().app();
    let bomb = texts_within_texts();
    assert!(serde_json::from_str::<serde::de::IgnoredAny>(&bomb).is_ok());
    let user = r#""messages": [{"role": "user", "content": "Hi"}]"#;
    let bodies = [
        format!(r#"{{"messages": [{{"role": "user", "content": [{bomb}]}}]}}"#),
        format!(r#"{{"messages": [{{"role": "user", "content": [{{"type": "text", "text": {bomb}}}]}}]}}"#),
        format!(r#"{{{user}, "tools": [{bomb}]}}"#),
        format!(r#"{{{user}, "tool_choice": {bomb}}}"#),
        format!(r#"{{{user}, "response_format": {bomb}}}"#),
        format!(r#"{{{user}, "chat_template_kwargs": {{"a": {bomb}}}}}"#),
        format!(r#"{{{user}, "documents": [{bomb}]}}"#),
        format!(r#"{{"messages": [{{"role": "user", "content": "Hi", "a": {bomb}}}]}}"#),
    ];
    for body in bodies {
        for path in [CHAT, "/tokenize"] {
            let response = patiently(send(&app, post(path, body.clone()))).await;
            error(response, 400).await;
        }
    }
}

#[tokio::test]
async fn half_a_character_is_no_text() {
    let app = Setup::default().app();
    for (content, param) in [
        (r#""\ud83d""#, "messages[0].content"),
        (r#"["\ud83d"]"#, "messages[0].content[0]"),
        (r#"[{"type": "text", "text": "\ud83d"}]"#, "messages[0].content[0].text"),
    ] {
        let body = format!(r#"{{"messages": [{{"role": "user", "content": {content}}}]}}"#);
        let error = error(send(&app, post(CHAT, body)).await, 400).await;
        assert_eq!(error["param"], param);
        assert!(error["message"].as_str().unwrap().contains("without its other half"), "{error}");
    }
}

#[tokio::test]
async fn a_bad_field_is_named() {
    let app = Setup::default().app();
    let user = json!([{"role": "user", "content": "Hi"}]);
    let prompt = |field: &str, value: Value| (COMPLETIONS, json!({"prompt": [5], field: value}), field.to_owned());
    let chat = |field: &str, value: Value| (CHAT, json!({"messages": user, field: value}), field.to_owned());
    let message = |value: Value, param: &str| (CHAT, json!({"messages": [value]}), param.to_owned());
    let cases = [
        (COMPLETIONS, json!({}), "prompt".to_owned()),
        chat("do_sample", json!(false)),
        chat("tool_choice", json!({"type": "function", "function": {"name": "a"}})),
        (
            CHAT,
            json!({"messages": user, "chat_template_kwargs": {"messages": []}}),
            "chat_template_kwargs.messages".to_owned(),
        ),
        (CHAT, json!({"messages": user, "chat_template_kwargs": []}), "chat_template_kwargs".to_owned()),
        ("/detokenize", json!({"tokens": [5], "skip_special_tokens": true}), "skip_special_tokens".to_owned()),
        // More than 16 times the model's length.
        ("/tokenize", json!({"prompt": "7x!q ".repeat(10_000)}), "prompt".to_owned()),
        (
            "/tokenize",
            json!({"messages": [{"role": "user", "content": "7x!q ".repeat(10_000)}]}),
            "messages".to_owned(),
        ),
        (COMPLETIONS, json!({"prompt": null}), "prompt".to_owned()),
        (COMPLETIONS, json!({"prompt": 3}), "prompt".to_owned()),
        (COMPLETIONS, json!({"prompt": [[1], "x"]}), "prompt[1]".to_owned()),
        (COMPLETIONS, json!({"prompt": ["x", [1]]}), "prompt[1]".to_owned()),
        (COMPLETIONS, json!({"prompt": [1, 2, "x"]}), "prompt[2]".to_owned()),
        (COMPLETIONS, json!({"prompt": [-1]}), "prompt[0]".to_owned()),
        (COMPLETIONS, json!({"prompt": [4294967296u64]}), "prompt[0]".to_owned()),
        (COMPLETIONS, json!({"prompt": []}), "prompt".to_owned()),
        (COMPLETIONS, json!({"prompt": [5, 99999]}), "prompt".to_owned()),
        (COMPLETIONS, json!({"prompt": [[99999]]}), "prompt".to_owned()),
        (COMPLETIONS, json!({"prompt": [[5], []]}), "prompt[1]".to_owned()),
        (COMPLETIONS, json!({"prompt": [[5], [6], [99999]]}), "prompt[2]".to_owned()),
        (COMPLETIONS, json!({"prompt": [[5], vec![5; 300]]}), "prompt[1]".to_owned()),
        (COMPLETIONS, json!({"prompt": ["a", "a ".repeat(100_000)]}), "prompt[1]".to_owned()),
        prompt("temperature", json!("hot")),
        prompt("temperature", json!(-1)),
        prompt("top_p", json!(0)),
        prompt("top_k", json!(1.5)),
        prompt("top_k", json!(-2)),
        prompt("logit_bias", (0..8193).map(|token| (token.to_string(), json!(0))).collect::<Value>()),
        prompt("min_p", json!(2)),
        prompt("repetition_penalty", json!(0)),
        prompt("frequency_penalty", json!(3)),
        prompt("presence_penalty", json!([])),
        prompt("logit_bias", json!({"x": 1})),
        prompt("logit_bias", json!({"99999": 1})),
        prompt("seed", json!("one")),
        prompt("stop", json!(3)),
        prompt("stop", json!("")),
        prompt("stop", json!(vec!["x"; 129])),
        prompt("stop", json!("x".repeat(16_385))),
        prompt("stop_token_ids", json!(vec![1; 10_000])),
        prompt("cache_salt", json!("")),
        prompt("cache_salt", json!("x".repeat(257))),
        prompt("request_id", json!("x".repeat(257))),
        prompt("stop_token_ids", json!([99999])),
        prompt("ignore_eos", json!("yes")),
        prompt("min_tokens", json!(100)),
        prompt("max_tokens", json!(-3)),
        prompt("max_tokens", json!(0)),
        prompt("logprobs", json!(21)),
        prompt("logprobs", json!(true)),
        prompt("prompt_logprobs", json!(-1)),
        prompt("n", json!(0)),
        prompt("n", json!(1000)),
        prompt("best_of", json!(3)),
        prompt("suffix", json!("end")),
        // What the chat API knows, and other servers' constraints.
        prompt("max_completion_tokens", json!(2)),
        prompt("tools", json!([{"type": "function"}])),
        prompt("top_logprobs", json!(2)),
        prompt("messages", json!([{"role": "user"}])),
        prompt("dry_multiplier", json!(0.8)),
        prompt("mirostat", json!(2)),
        prompt("lora_name", json!("mine")),
        prompt("temprature", json!(1)),
        prompt("nobody_knows", json!({"a": 1})),
        prompt("min_new_tokens", json!(3)),
        prompt("extra_body", json!({"guided_json": {}})),
        prompt("chat_template", json!("{{ messages }}")),
        prompt("echo", json!(1)),
        prompt("stream", json!("no")),
        prompt("stream_options", json!({"include_usage": true})),
        (COMPLETIONS, json!({"prompt": [5], "stream": true, "stream_options": [true]}), "stream_options".to_owned()),
        (
            COMPLETIONS,
            json!({"prompt": [5], "stream": true, "stream_options": {"include_obfuscation": true}}),
            "stream_options.include_obfuscation".to_owned(),
        ),
        prompt("use_beam_search", json!(true)),
        prompt("guided_json", json!({"type": "object", "minProperties": "many"})),
        prompt("response_format", json!("json")),
        prompt("truncate_prompt_tokens", json!(4)),
        prompt("truncate_prompt_tokens", json!(-1)),
        // Without a limit, which is 16 here.
        prompt("n_predict", json!(-1)),
        prompt("model", json!(3)),
        (CHAT, json!({}), "messages".to_owned()),
        (CHAT, json!({"messages": "Hi"}), "messages".to_owned()),
        (CHAT, json!({"messages": []}), "messages".to_owned()),
        message(json!("Hi"), "messages[0]"),
        message(json!({"content": "Hi"}), "messages[0].role"),
        message(json!({"role": "user", "content": 3}), "messages[0].content"),
        message(
            json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
            "messages[0].content[0].type",
        ),
        message(json!({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
        chat("response_format", json!([])),
        chat("top_logprobs", json!(2)),
        (CHAT, json!({"messages": user, "logprobs": true, "top_logprobs": 21}), "top_logprobs".to_owned()),
        chat("logprobs", json!(3)),
        chat("tool_choice", json!("required")),
        chat("functions", json!([{"name": "f"}])),
        chat("chat_template", json!("{{ messages }}")),
        chat("chat_template", json!(3)),
        chat("chat_template_kwargs", json!([])),
        (
            CHAT,
            json!({"messages": user, "chat_template_kwargs": {"chat_template": "x"}}),
            "chat_template_kwargs.chat_template".to_owned(),
        ),
        chat("documents", json!("a document")),
        chat("documents", json!([{"text": "a document that the template does not show"}])),
        (
            CHAT,
            json!({"messages": user, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": "yes"}}}),
            "response_format.json_schema.strict".to_owned(),
        ),
        (
            CHAT,
            json!({"messages": user, "response_format": {"type": "json_schema", "json_schema": {"name": 1, "schema": {}}}}),
            "response_format.json_schema.name".to_owned(),
        ),
        chat("max_completion_tokens", json!("many")),
        chat("max_completion_tokens", json!(0)),
        chat("max_tokens", json!(0)),
        (CHAT, json!({"messages": user, "max_completion_tokens": 2, "min_tokens": 3}), "min_tokens".to_owned()),
        (CHAT, json!({"messages": [{"role": "user", "content": "a b ".repeat(150)}]}), "messages".to_owned()),
        chat("add_special_tokens", json!(true)),
        ("/tokenize", json!({}), "prompt".to_owned()),
        ("/tokenize", json!({"prompt": 1}), "prompt".to_owned()),
        ("/tokenize", json!({"messages": 1}), "messages".to_owned()),
        ("/tokenize", json!({"messages": user, "chat_template": "x"}), "chat_template".to_owned()),
        ("/detokenize", json!({"tokens": [1, 99999]}), "tokens[1]".to_owned()),
        ("/detokenize", json!({"tokens": ["a"]}), "tokens[0]".to_owned()),
    ];
    for (path, body, param) in cases {
        let error = error(send(&app, post(path, body.to_string())).await, 400).await;
        assert_eq!(error["param"], param, "{body}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        // A message speaks of the field that was sent.
        let of_chat = path == CHAT && body.get("max_completion_tokens").is_some();
        assert!(!of_chat || !error["message"].as_str().unwrap().contains("max_tokens"), "{error}");
    }
}

/// What is longer than it may be is not read to its end: other large bodies wait for it.
#[tokio::test]
async fn endless_lists_of_tokens_are_not_read_to_their_end() {
    let app = Setup::default().app();
    let biases = vec![r#""7":1"#; 524_289].join(",");
    let ids = vec!["7"; 524_289].join(",");
    let options: Vec<_> = (0..17).map(|n| format!(r#""{n}":null"#)).collect();
    let body = format!(r#"{{"prompt":[5],"stream":true,"stream_options":{{{}}}}}"#, options.join(","));
    let many = error(send(&app, post(COMPLETIONS, body)).await, 400).await;
    assert!(many["message"].as_str().unwrap().contains("more than 16 items"), "{many}");
    for (field, list) in [("logit_bias", format!("{{{biases}}}")), ("stop_token_ids", format!("[{ids}]"))] {
        let error =
            error(send(&app, post(COMPLETIONS, format!(r#"{{"prompt":[5],"{field}":{list}}}"#))).await, 400).await;
        assert_eq!(error["param"], field);
        assert!(error["message"].as_str().unwrap().contains("more than 8192 items"), "{error}");
    }
}

#[tokio::test]
async fn neutral_values_of_unsupported_fields_are_accepted() {
    let app = Setup::default().app();
    let body = json!({
        "prompt": [5], "max_tokens": 1, "response_format": {"type": "text"}, "best_of": 1, "suffix": null,
        "use_beam_search": false, "user": "me", "store": true, "bad_words": [], "priority": 0.0, "mirostat": 0, "typical_p": 1,
        "metadata": null,
    });
    let response = send(&app, post(COMPLETIONS, body.to_string())).await;
    assert_eq!(response.status(), 200);
    // What was accepted and changes nothing is named.
    assert_eq!(response.headers()["x-fields-without-effect"], "store, user");
    // The older words of tools, and options of a stream that is none.
    let chat = |fields: Value| with(json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}), fields);
    for choice in ["auto", "none"] {
        let body = chat(json!({"functions": [], "function_call": choice, "stream_options": {}}));
        assert_eq!(send(&app, post(CHAT, body.to_string())).await.status(), 200, "{body}");
    }
    for (fields, param) in [
        (json!({"functions": [{"name": "f"}], "function_call": "auto"}), "functions"),
        (json!({"function_call": {"name": "f"}}), "function_call"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
    ] {
        let refused = error(send(&app, post(CHAT, chat(fields).to_string())).await, 400).await;
        assert_eq!(refused["param"], param, "{refused}");
    }
}

/// As vLLM takes them: some user interfaces send what was typed into a form.
#[tokio::test]
async fn a_number_in_a_string_is_one() {
    let app = Setup::default().app();
    let answer = async |fields: Value| {
        let body = with(json!({"prompt": [5], "ignore_eos": true}), fields);
        let response = send(&app, post(COMPLETIONS, body.to_string())).await;
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let mut answer: Value = serde_json::from_slice(&bytes).unwrap();
        answer.as_object_mut().unwrap().retain(|name, _| !["id", "created", "usage"].contains(&name.as_str()));
        answer
    };
    let spelled = json!({"max_tokens": "3", "n": " 2 ", "temperature": ".7", "top_p": "9e-1", "top_k": "-1", "seed": "+7",
        "frequency_penalty": "0.5", "min_tokens": "1.0", "stream": "false", "logprobs": "01"});
    let plain = json!({"max_tokens": 3, "n": 2, "temperature": 0.7, "top_p": 0.9, "top_k": -1, "seed": 7,
        "frequency_penalty": 0.5, "min_tokens": 1, "stream": false, "logprobs": 1});
    let expected = answer(plain).await;
    assert!(expected.get("error").is_none(), "{expected}");
    assert_eq!(answer(spelled).await, expected);
    // Beyond what a fraction can hold.
    let [large, near] = ["9007199254740993", "9007199254740992"].map(|seed| json!({"seed": seed, "max_tokens": 20}));
    assert_ne!(answer(large).await, answer(near).await);
    for (field, value) in [
        ("max_tokens", "2.5"),
        ("max_tokens", "-1"),
        ("max_tokens", ""),
        ("temperature", "nan"),
        ("temperature", "0,7"),
        ("temperature", "0.7 or so"),
        ("stream", "maybe"),
    ] {
        let body = json!({"prompt": [5], field: value});
        let error = error(send(&app, post(COMPLETIONS, body.to_string())).await, 400).await;
        assert!(error["param"] == field && error["message"].as_str().unwrap().contains("got the string"), "{error}");
    }
}

#[tokio::test]
async fn numbers_are_jsons() {
    let app = Setup::default().app();
    let body = json!({"prompt": [5], "max_tokens": 2.0, "n": 1e0, "top_k": -1.0, "seed": 7.0});
    assert_eq!(send(&app, post(COMPLETIONS, body.to_string())).await.status(), 200);
    let answers = async |path: &str, mut body: Value| {
        if path == COMPLETIONS {
            body["seed"] = json!(1);
        }
        let bytes = send(&app, post(path, body.to_string())).await.into_body().collect().await.unwrap().to_bytes();
        let mut answer: Value = serde_json::from_slice(&bytes).unwrap();
        answer.as_object_mut().unwrap().retain(|name, _| !["id", "created"].contains(&name.as_str()));
        answer
    };
    for (path, spelled, whole) in [
        (COMPLETIONS, json!({"prompt": [5.0, 6, 7e0], "max_tokens": 3}), json!({"prompt": [5, 6, 7], "max_tokens": 3})),
        (
            COMPLETIONS,
            json!({"prompt": [[5, 6.0], [7.0]], "max_tokens": 3}),
            json!({"prompt": [[5, 6], [7]], "max_tokens": 3}),
        ),
        (COMPLETIONS, json!({"prompt": [5], "stop_token_ids": [6.0]}), json!({"prompt": [5], "stop_token_ids": [6]})),
        ("/detokenize", json!({"tokens": [6.0, 7]}), json!({"tokens": [6, 7]})),
    ] {
        let whole = answers(path, whole).await;
        assert!(whole.get("error").is_none(), "{whole}");
        assert_eq!(answers(path, spelled).await, whole);
    }
    for (path, body, words) in [
        (COMPLETIONS, json!({"prompt": [5, 6.5]}), "6.5 is no token id"),
        (COMPLETIONS, json!({"prompt": [4294967296.0]}), "4294967296 is no token id"),
        (COMPLETIONS, json!({"prompt": [5], "stop_token_ids": [-1.0]}), "-1 is no token id"),
        ("/detokenize", json!({"tokens": [0.5]}), "0.5 is no token id"),
    ] {
        let error = error(send(&app, post(path, body.to_string())).await, 400).await;
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    for (field, value, words) in [
        ("max_tokens", json!(2.5), "got the number `2.5`, expected a whole number from 0 to 4294967295"),
        ("n", json!("one"), "got the string \"one\", expected a whole number of at least 0"),
        ("temperature", json!([1]), "got a list, expected a number"),
        ("temperature", json!("a unit, map, sequence"), "got the string \"a unit, map, sequence\", expected a number"),
        ("stream", json!({}), "got an object, expected true or false"),
    ] {
        let body = json!({"prompt": [5], field: value});
        let error = error(send(&app, post(COMPLETIONS, body.to_string())).await, 400).await;
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    let error = error(send(&app, post(COMPLETIONS, r#"{"prompt": [5], "max_token": 3}"#)).await, 400).await;
    assert!(error["message"].as_str().unwrap().contains("did you mean `max_tokens`?"), "{error}");
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_is_refused_with_the_numbers() {
    let app = Setup::default().app();
    let long = json!({"prompt": vec![5; 300]}).to_string();
    let refused = error(send(&app, post(COMPLETIONS, long)).await, 400).await;
    assert_eq!(refused["code"], "context_length_exceeded");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("300") && message.starts_with("This model's maximum context length is 256 tokens"),
        "{message}"
    );
    let empty = error(send(&app, post(COMPLETIONS, r#"{"prompt": []}"#)).await, 400).await;
    assert!(empty["message"].as_str().unwrap().contains("no tokens"));
    let unknown = error(send(&app, post(COMPLETIONS, r#"{"prompt": [99999]}"#)).await, 400).await;
    assert!(unknown["message"].as_str().unwrap().contains("99999"));
}

#[tokio::test]
async fn malformed_bodies_are_400() {
    let app = Setup::default().app();
    for body in ["", "{", "[]", "null", "3", "{\"prompt\": \"a\"", "\u{0}", "{\"prompt\": \"\\ud800\"}"] {
        error(send(&app, post(COMPLETIONS, body)).await, 400).await;
    }
    error(send(&app, post(COMPLETIONS, vec![0xff, 0xfe])).await, 400).await;
    let nested = format!("{{\"prompt\": {}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    error(send(&app, post(COMPLETIONS, nested)).await, 400).await;
}

#[tokio::test]
async fn other_content_types_and_compressed_bodies_are_415() {
    let app = Setup::default().app();
    let gzip = Request::post(COMPLETIONS)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONTENT_ENCODING, "gzip")
        .body(Body::from("\u{1f}"));
    let refused = error(send(&app, gzip.unwrap()).await, 415).await;
    assert!(refused["message"].as_str().unwrap().contains("Content-Encoding"), "{refused}");
    let form = Request::post(COMPLETIONS)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Body::from(r#"{"prompt": [5]}"#));
    error(send(&app, form.unwrap()).await, 415).await;
    let charset = Request::post(COMPLETIONS)
        .header(header::CONTENT_TYPE, "application/json; charset=utf-8")
        .body(Body::from(r#"{"prompt": [5], "max_tokens": 1}"#));
    assert_eq!(send(&app, charset.unwrap()).await.status(), 200);
}

#[tokio::test]
async fn a_large_body_is_413() {
    let app = Setup::default().app();
    let body = format!("{{\"prompt\": \"{}\"}}", "a".repeat(AppConfig::default().max_body_size));
    error(send(&app, post(COMPLETIONS, body)).await, 413).await;
}

#[tokio::test]
async fn unknown_models_paths_and_methods() {
    let app = Setup::default().app();
    for path in [COMPLETIONS, CHAT, "/tokenize", "/detokenize"] {
        let unknown = error(send(&app, post(path, r#"{"model": "gpt-4"}"#)).await, 404).await;
        assert_eq!((&unknown["param"], &unknown["code"]), (&json!("model"), &json!("model_not_found")));
    }
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    error(send(&app, get("/v1/models/gpt-4")).await, 404).await;
    for (path, words) in [
        ("/v1/images", "below /v1"),
        ("/", "below /v1"),
        ("/models", "did you mean /v1/models?"),
        ("/v1//models", "did you mean /v1/models?"),
        ("/v1//chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("/v1/v1/models", "did you mean /v1/models?"),
    ] {
        let refused = error(send(&app, get(path)).await, 404).await;
        assert!(refused["message"].as_str().unwrap().ends_with(words), "{refused}");
    }
    error(send(&app, get(COMPLETIONS)).await, 405).await;
    error(send(&app, post("/health", "")).await, 405).await;
}

#[tokio::test]
async fn a_list_of_too_many_small_things_is_refused_at_once() {
    let app = Setup::default().roomy().app();
    let many = |entry: &str| format!("[{}]", vec![entry; 200_000].join(","));
    let user = r#"{"role":"user","content":"a"}"#;
    let part = r#"{"type":"text","text":"a"}"#;
    let messages = |more: &str| format!(r#"{{"model":"fake-model","max_tokens":1,"messages":{more}}}"#);
    let of_parts = |parts: String| messages(&format!(r#"[{{"role":"user","content":{parts}}}]"#));
    let item = r#"{"type":"message","role":"user","content":"a"}"#;
    let call = r#"{"type":"function","function":{"name":"f","arguments":"{}"}}"#;
    let calls = format!(r#"[{{"role":"assistant","content":null,"tool_calls":{}}}]"#, many(call));
    // Short lists that are many together.
    let nested = format!(r#"{{"role":"user","content":[{}]}}"#, vec![part; 2000].join(","));
    let nested = format!("[{}]", [nested.as_str(); 5].join(","));
    let cases = [
        (CHAT, messages(&many(user)), "messages"),
        (CHAT, of_parts(many(part)), "messages[0].content"),
        (CHAT, messages(&calls), "messages[0].tool_calls"),
        (CHAT, messages(&nested), "messages"),
        (CHAT, format!(r#"{{"messages":[{user}],"documents":{}}}"#, many("{}")), "documents"),
        ("/v1/responses", format!(r#"{{"input":{}}}"#, many(item)), "input"),
        ("/v1/responses", format!(r#"{{"input":"a","tools":{}}}"#, many(r#"{"type":"function","name":"f"}"#)), "tools"),
        ("/tokenize", messages(&many(user)), "messages"),
    ];
    for (path, body, param) in cases {
        let error = error(patiently(send(&app, post(path, body))).await, 400).await;
        assert_eq!(error["param"], param, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("8192") || param == "tools", "{message}");
    }
    for body in [messages(&many(user)), of_parts(many(part))] {
        let response = patiently(send(&app, post("/v1/messages", body))).await;
        assert_eq!(response.status(), 400);
    }
}
