//! Chat templates that requests bring: refused, unless the server trusts them, and never a danger to it.

use serde_json::{Value, json};
use vllm_apple::http::AppConfig;

use crate::support::{Setup, tokenizer, with};

const CHAT: &str = "/v1/chat/completions";

fn trusting() -> Setup {
    let config = AppConfig { trust_request_chat_template: true, ..AppConfig::default() };
    Setup { config, ..Setup::default() }
}

fn user() -> Value {
    json!([{"role": "user", "content": "Hi!"}])
}

#[tokio::test]
async fn a_requests_template_needs_the_flag() {
    let server = Setup::default().start().await;
    for path in [CHAT, "/tokenize"] {
        for body in [
            json!({"messages": user(), "chat_template": "{{ 1 }}"}),
            json!({"messages": user(), "chat_template_kwargs": {"chat_template": "{{ 1 }}"}}),
        ] {
            let response = server.post(path, body).await;
            assert_eq!(response.status(), 400);
            let error: Value = response.json().await.unwrap();
            assert!(error["error"]["message"].as_str().unwrap().contains("--trust-request-chat-template"), "{error}");
        }
        let body = json!({"messages": user(), "chat_template": null, "chat_template_kwargs": {"chat_template": null}});
        server.ask(path, body).await;
    }
}

/// As in vLLM.
#[tokio::test]
async fn the_field_for_effort_comes_before_chat_template_kwargs_and_behind_it_for_thinking() {
    const SHOWS: &str = "{{ messages[0].content }} {{ reasoning_effort }} {{ enable_thinking }}";
    let server = Setup { template: Some(SHOWS), ..Setup::default() }.start().await;
    let kwargs = json!({"reasoning_effort": "low", "enable_thinking": false});
    for (fields, prompt, without_effect) in [
        (json!({"chat_template_kwargs": kwargs}), "Hi! low False", None),
        (json!({"reasoning_effort": "high"}), "Hi! high True", None),
        (
            json!({"chat_template_kwargs": kwargs, "reasoning_effort": "high"}),
            "Hi! high False",
            Some("chat_template_kwargs.reasoning_effort"),
        ),
    ] {
        let body = with(json!({"messages": user(), "max_tokens": 1, "return_token_ids": true}), fields);
        let response = server.post(CHAT, body).await;
        let named = response.headers().get("x-fields-without-effect").map(|names| names.to_str().unwrap().to_owned());
        assert_eq!(named.as_deref(), without_effect);
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["prompt_token_ids"], json!(tokenizer().encode(prompt, false).unwrap()), "{prompt}");
    }
}

#[tokio::test]
async fn a_trusted_template_is_rendered() {
    let server = trusting().start().await;
    let expected = json!(tokenizer().encode("Say: Hi! loud", false).unwrap());
    let source = "Say: {{ messages[0].content }}{{ how }}";
    let answer = server
        .ask(
            "/tokenize",
            json!({"messages": user(), "chat_template": source, "chat_template_kwargs": {"how": " loud"}}),
        )
        .await;
    assert_eq!(answer["tokens"], expected);
    let kwargs = json!({"how": " loud", "chat_template": source});
    let answer = server.ask("/tokenize", json!({"messages": user(), "chat_template_kwargs": kwargs})).await;
    assert_eq!(answer["tokens"], expected);
    let body = json!({"messages": user(), "chat_template": source, "max_tokens": 1, "return_token_ids": true});
    let answer = server.ask(CHAT, body).await;
    assert_eq!(answer["prompt_token_ids"], json!(tokenizer().encode("Say: Hi!", false).unwrap()));
    let response = server.post(CHAT, json!({"messages": user(), "chat_template": "{% if %}"})).await;
    assert_eq!(response.status(), 400);
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["error"]["param"], "chat_template", "{error}");
}

#[tokio::test]
async fn a_hostile_template_is_the_clients_fault_and_nobody_elses() {
    let server = trusting().start().await;
    let plain = server.ask("/tokenize", json!({"messages": user()})).await;
    let bombs = [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}".to_owned(), "too many steps"),
        ("{{ messages | slice(100000000000) | list }}".to_owned(), "too much memory"),
        (format!("{{{{ {}messages }}}}", "- ".repeat(400_000)), "too deeply"),
    ];
    for (template, reason) in bombs {
        let bomb = server.post(CHAT, json!({"messages": user(), "chat_template": template}));
        let others = async {
            for _ in 0..10 {
                assert_eq!(server.ask("/tokenize", json!({"messages": user()})).await["tokens"], plain["tokens"]);
                server.ask(CHAT, json!({"messages": user(), "max_tokens": 1})).await;
            }
        };
        let (response, ()) = tokio::join!(bomb, others);
        assert_eq!(response.status(), 400);
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["param"], "chat_template", "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains(reason), "{error}");
    }
}
