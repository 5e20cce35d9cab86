//! Who is let in, and when: keys, the queue, and a model that is being loaded.

use axum::body::Body;
use axum::http::{Request, header};
use serde_json::{Value, json};
use vllm_apple::http::{App, AppConfig};

use crate::errors::{CHAT, COMPLETIONS, error, post, send};
use crate::support::{Setup, patiently};

#[tokio::test]
async fn an_api_key_guards_what_works_for_clients() {
    let setup = Setup {
        config: AppConfig { api_keys: vec!["secret".to_owned(), "second".to_owned()], ..AppConfig::default() },
        ..Setup::default()
    };
    let app = setup.app();
    let get = |path: &str, key: Option<&str>| {
        let request = Request::get(path);
        let request = key.iter().fold(request, |request, key| request.header(header::AUTHORIZATION, *key));
        request.body(Body::empty()).unwrap()
    };
    for key in
        [None, Some("secret"), Some("Bearer wrong"), Some("Bearer "), Some("Basic secret"), Some("Bearer secretx")]
    {
        let refused = error(send(&app, get("/v1/models", key)).await, 401).await;
        assert_eq!(refused["code"], "invalid_api_key");
    }
    for key in ["Bearer secret", "Bearer second", "bearer secret"] {
        assert_eq!(send(&app, get("/v1/models", Some(key))).await.status(), 200);
    }
    // The second half are of models that make embeddings, which this is not.
    for path in [COMPLETIONS, CHAT, "/tokenize", "/detokenize", "/v1/nothing", "/score", "/rerank", "/v2/rerank"] {
        error(send(&app, post(path, "{}")).await, 401).await;
    }
    for path in ["/health", "/ping", "/load", "/version", "/metrics", "/openapi.json"] {
        assert_eq!(send(&app, get(path, None)).await.status(), 200);
    }
}

#[tokio::test]
async fn a_full_queue_is_429_until_there_is_room() {
    let mut setup = Setup { max_waiting: 0, ..Setup::endless() };
    setup.fake.info.max_num_seqs = 1;
    let server = setup.start().await;
    let running = server.open_stream().await;
    let response = server.post(COMPLETIONS, json!({"prompt": [5], "max_tokens": 1})).await;
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "1");
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["code"], "queue_full");
    let metrics = server.get("/metrics").await.text().await.unwrap();
    let counted = metrics.lines().find(|line| line.starts_with("vllm:admission_rejections_total{")).unwrap();
    assert!(counted.contains("reason=\"queue_full\"") && counted.ends_with(" 1"), "{counted}");
    drop(running);
    patiently(async {
        while server.post(COMPLETIONS, json!({"prompt": [5], "max_tokens": 1})).await.status() != 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn several_answers_start_together_or_not_at_all() {
    let mut setup = Setup { max_waiting: 1, ..Setup::endless() };
    setup.fake.info.max_num_seqs = 1;
    let server = setup.start().await;
    let running = server.open_stream().await;
    let answers = |n: usize| json!({"prompt": [5], "n": n, "max_tokens": 90_000, "ignore_eos": true});
    // One place is left for two answers: neither is given, and nothing is left behind.
    let response = server.post(COMPLETIONS, answers(2)).await;
    assert_eq!(response.status(), 429);
    let metrics = server.get("/metrics").await.text().await.unwrap();
    let mut ended = metrics.lines().filter(|line| line.starts_with("vllm:request_success_total{"));
    assert!(ended.all(|line| line.ends_with(" 0")), "neither was aborted: {metrics}");
    // Three could never be in the engine at once: trying again would not help.
    for body in [answers(3), json!({"prompt": [[5], [6], [7]]})] {
        let response = server.post(COMPLETIONS, body).await;
        assert_eq!(response.status(), 400);
        let body: Value = response.json().await.unwrap();
        assert!(body["error"]["message"].as_str().unwrap().contains("--max-waiting"), "{body}");
    }
    drop(running);
    server.idle().await;
}

#[tokio::test]
async fn everything_waits_for_the_model_but_version() {
    let app = App::new(AppConfig::default());
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    for path in ["/health", "/v1/models", "/metrics"] {
        assert_eq!(error(send(&app, get(path)).await, 503).await["code"], "loading");
    }
    for path in [COMPLETIONS, CHAT, "/tokenize"] {
        assert_eq!(error(send(&app, post(path, "{}")).await, 503).await["code"], "loading");
    }
    assert_eq!(send(&app, get("/version")).await.status(), 200);
}
