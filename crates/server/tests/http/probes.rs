//! Models, health, version, metrics, and the tokenizer's endpoints.

use serde_json::{Value, json};

use crate::support::{MODEL, Setup, tokenizer};

async fn json_of(response: reqwest::Response) -> Value {
    assert_eq!(response.status(), 200);
    response.json().await.unwrap()
}

#[tokio::test]
async fn models_are_listed_by_every_name() {
    let server = Setup::default().start().await;
    let list = json_of(server.get("/v1/models").await).await;
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], MODEL);
    assert_eq!(list["data"][1]["id"], "other-name");
    assert_eq!(list["data"][0]["max_model_len"], 256);
    // As Anthropic's clients read it.
    for (model, name) in list["data"].as_array().unwrap().iter().zip([MODEL, "other-name"]) {
        assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &json!(name)));
    }
    assert_eq!(
        (&list["has_more"], &list["first_id"], &list["last_id"]),
        (&json!(false), &json!(MODEL), &json!("other-name"))
    );
    assert_eq!(json_of(server.get("/v1/models/").await).await, list);
    assert_eq!(json_of(server.get(&format!("/v1/models/{MODEL}")).await).await, list["data"][0]);
    let answer = server.complete(json!({"model": "other-name", "prompt": [5], "max_tokens": 1})).await;
    assert_eq!(answer["model"], MODEL);
    for (path, status) in [("/v1/models/nobody", 404), ("/v1/models/%ff%fe", 400)] {
        let response = server.get(path).await;
        assert_eq!(response.status(), status);
        let body: Value = response.json().await.unwrap();
        assert!(body["error"]["message"].is_string(), "{path}");
    }
}

#[tokio::test]
async fn health_and_version_answer() {
    let server = Setup::default().start().await;
    assert_eq!(server.get("/health").await.status(), 200);
    let version = json_of(server.get("/version").await).await;
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn text_and_tokens_turn_into_each_other() {
    let server = Setup::default().start().await;
    let text = "Grüße, 世界!";
    let answer = server.ask("/tokenize", json!({"prompt": text, "return_token_strs": true})).await;
    let ids = tokenizer().encode(text, true).unwrap();
    assert_eq!(answer["tokens"], json!(ids));
    assert_eq!(answer["count"], ids.len());
    assert_eq!(answer["max_model_len"], 256);
    assert_eq!(answer["token_strs"].as_array().unwrap().len(), ids.len());
    // The vocabulary's own letters, of which a character may have several.
    let answer = server.ask("/tokenize", json!({"prompt": "Hello 😀", "return_token_strs": true})).await;
    assert_eq!(answer["token_strs"], json!(["H", "e", "ll", "o", "ĠðŁ", "ĺ", "Ģ"]));
    let back = server.ask("/detokenize", json!({"tokens": ids})).await;
    assert_eq!(back["prompt"], text);
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let tokens = server.ask("/tokenize", chat.clone()).await["tokens"].clone();
    let mut asked = chat;
    asked["max_tokens"] = 1.into();
    asked["return_token_ids"] = true.into();
    assert_eq!(server.ask("/v1/chat/completions", asked).await["prompt_token_ids"], tokens);
}

/// Who is to shorten a text must know how long it is.
#[tokio::test]
async fn tokens_are_counted_beyond_the_models_length() {
    let server = Setup::default().start().await;
    let text = "7x!q ".repeat(500);
    let ids = tokenizer().encode(&text, false).unwrap();
    let most = server.model.max_model_len;
    assert!(ids.len() > 5 * most);
    let answer = server.ask("/tokenize", json!({"prompt": text, "add_special_tokens": false})).await;
    assert_eq!((&answer["tokens"], &answer["count"]), (&json!(ids), &json!(ids.len())));
    assert_eq!(answer["max_model_len"], most);
    let chat = json!({"messages": [{"role": "user", "content": text}]});
    let count = server.ask("/tokenize", chat.clone()).await["count"].as_u64().unwrap();
    assert!(count as usize >= ids.len());
    assert_eq!(server.post("/v1/chat/completions", chat).await.status(), 400);
    let far = server.post("/tokenize", json!({"prompt": "7x!q ".repeat(10_000)})).await;
    let refused = far.text().await.unwrap();
    assert!(refused.contains(&format!("{} are counted at once, 16 times", 16 * most)), "{refused}");
}

#[tokio::test]
async fn metrics_have_vllms_names_and_count() {
    let server = Setup::default().start().await;
    let prompt: Vec<u32> = (0..40).map(|i| 5 + i % 50).collect();
    for _ in 0..2 {
        server.complete(json!({"prompt": prompt, "max_tokens": 3, "ignore_eos": true})).await;
    }
    server.idle().await;
    let response = server.get("/metrics").await;
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    let text = response.text().await.unwrap();
    let labels = format!("model_name=\"{MODEL}\",engine=\"0\"");
    for line in [
        format!("vllm:num_requests_running{{{labels}}} 0.0"),
        format!("vllm:num_requests_waiting{{{labels}}} 0.0"),
        format!("vllm:kv_cache_usage_perc{{{labels}}} 0.0"),
        format!("vllm:prefix_cache_queries_total{{{labels}}} 80"),
        format!("vllm:prefix_cache_hits_total{{{labels}}} 32"),
        format!("vllm:num_preemptions_total{{{labels}}} 0"),
        format!("vllm:prompt_tokens_total{{{labels}}} 80"),
        format!("vllm:generation_tokens_total{{{labels}}} 6"),
        format!("vllm:request_success_total{{{labels},finished_reason=\"length\"}} 2"),
        format!("vllm:time_to_first_token_seconds_count{{{labels}}} 2"),
        format!("vllm:inter_token_latency_seconds_count{{{labels}}} 4"),
        format!("vllm:request_time_per_output_token_seconds_count{{{labels}}} 2"),
        format!("vllm:e2e_request_latency_seconds_count{{{labels}}} 2"),
        format!("vllm:request_queue_time_seconds_count{{{labels}}} 2"),
    ] {
        assert!(text.lines().any(|got| got == line), "no {line} in\n{text}");
    }
}

#[tokio::test]
async fn load_counts_requests_and_the_prefix_cache_empties_when_there_are_none() {
    let mut setup = Setup::endless();
    setup.config.dev_mode = true;
    let server = setup.start().await;
    let load = async || server.get("/load").await.json::<Value>().await.unwrap();
    assert_eq!(load().await, json!({"server_load": 0}));
    let stream = server.open_stream().await;
    assert_eq!(load().await, json!({"server_load": 1}));
    let reset = async || server.post("/reset_prefix_cache", json!({})).await.json::<Value>().await.unwrap();
    assert_eq!(reset().await, json!({"success": false}));
    drop(stream);
    server.idle().await;
    let ask = json!({"prompt": (5..70).collect::<Vec<u32>>(), "max_tokens": 1});
    let cached = async || {
        server.complete(ask.clone()).await["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached().await, 0);
    assert!(cached().await > 0);
    assert_eq!(reset().await, json!({"success": true}));
    assert_eq!(cached().await, 0);
    let running = server.post("/reset_prefix_cache?reset_running_requests=true", json!({})).await;
    assert_eq!(running.status(), 400);
}

#[tokio::test]
async fn the_tokenizers_configuration_shows_if_it_may() {
    let server = Setup::default().start().await;
    assert_eq!(server.get("/tokenizer_info").await.status(), 404);
    assert_eq!(server.post("/reset_prefix_cache", json!({})).await.status(), 404);
    let mut setup = Setup::default();
    setup.config.tokenizer_info = true;
    let server = setup.start().await;
    let info: Value = server.get("/tokenizer_info").await.json().await.unwrap();
    assert!(info["tokenizer_class"].is_string() && info["eos_token"].is_string(), "{info}");
    assert_eq!(info["chat_template"], server.model.chat_template.text().unwrap());
}
