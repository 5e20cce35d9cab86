//! `/openapi.json`: every path and field that it names is there, and asks for what it says.

use serde_json::{Value, json};

use vllm_apple_executor::Pooling;
use vllm_apple_model::Pooler;
use vllm_apple_model::load::pooler::Matryoshka;

use crate::support::{MODEL, Setup};

#[tokio::test]
async fn the_description_is_of_this_server() {
    let described = description_of(&Setup::default()).await;
    let paths = described["paths"].as_object().unwrap();
    assert!(paths.contains_key("/v1/chat/completions") && !paths.contains_key("/v1/embeddings"));
    let properties =
        |path: &str| paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"].clone();
    assert_eq!(properties("/v1/responses")["temperature"], json!({"type": "number"}));
    assert_eq!(properties("/v1/responses")["max_output_tokens"], json!({"type": "integer"}));
    assert!(properties("/v1/responses").get("messages").is_none());
    assert!(
        properties("/v1/messages").get("stop").is_none() && properties("/v1/messages")["stop_sequences"].is_object()
    );
    assert_eq!(properties("/tokenize")["prompt"], json!({"type": "string"}));
}

#[tokio::test]
async fn that_of_a_model_that_makes_embeddings_has_no_chat() {
    let pooler = Pooler { pooling: Pooling::Last, normalize: true, matryoshka: Matryoshka::No, max_tokens: None };
    let described = description_of(&Setup::embedder(8, pooler)).await;
    let paths = described["paths"].as_object().unwrap();
    assert!(paths.contains_key("/v1/embeddings") && paths.contains_key("/v2/rerank"));
    assert!(!paths.contains_key("/v1/chat/completions") && !paths.contains_key("/v1/messages"));
}

/// The description of a server, of which every path and field was tried.
async fn description_of(setup: &Setup) -> Value {
    let server = setup.start().await;
    let described: Value = server.get("/openapi.json").await.json().await.unwrap();
    assert_eq!(described["openapi"], "3.1.0");
    let paths = described["paths"].as_object().unwrap();
    assert!(paths.contains_key("/v1/models/{id}") && !paths.contains_key("/reset_prefix_cache"));
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().unwrap() {
            let Some(schema) = operation["requestBody"]["content"]["application/json"].get("schema") else { continue };
            assert_eq!(method, "post");
            let least = |name: &str| match name {
                "model" => json!(MODEL),
                "max_tokens" => json!(1),
                "messages" => json!([{"role": "user", "content": "Hi"}]),
                "tokens" => json!([5]),
                name => json!(name),
            };
            let mut required: Vec<&str> =
                schema["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
            // One of two fields must be there.
            match path.as_str() {
                "/v1/responses" => required.push("input"),
                "/score" | "/v1/score" => required.extend(["queries", "documents"]),
                "/tokenize" => continue,
                _ => {}
            }
            let body = |without: &str| {
                let names = required.iter().filter(|name| **name != without);
                Value::Object(names.map(|name| ((*name).to_owned(), least(name))).collect())
            };
            for name in &required {
                assert_eq!(server.post(path, body(name)).await.status(), 400, "{path} without {name}");
            }
            // No field is unknown, and each has the type that it is said to have.
            for (name, schema) in schema["properties"].as_object().unwrap() {
                let Some(kind) = schema["type"].as_str() else { continue };
                let mut wrong = body("");
                wrong[name] = if kind == "string" { json!(3) } else { json!("x") };
                let refused: Value = server.post(path, wrong).await.json().await.unwrap();
                let message = refused["error"]["message"].as_str().unwrap_or_else(|| panic!("{path} {name}"));
                assert!(message.contains(&format!("`{name}` is not valid")), "{path}: {message}");
            }
        }
    }
    described
}
