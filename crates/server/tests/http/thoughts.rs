//! What an assistant thought, as other clients send it back: a template finds it where it looks, and what is left out is named.

use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::errors::{CHAT, error, post, send};
use crate::support::{Setup, with};

/// It shows thoughts by one of their names.
const SHOWS: &str = "{% for m in messages %}{{ m.role }}: [{{ m.reasoning_content }}]{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}\n{% endfor %}";

fn app() -> std::sync::Arc<vllm_apple::http::App> {
    Setup { template: Some(SHOWS), ..Setup::default().roomy() }.app()
}

fn asked(fields: Value) -> Value {
    let assistant = with(json!({"role": "assistant"}), fields);
    json!({"messages": [{"role": "user", "content": "Hi!"}, assistant, {"role": "user", "content": "Why?"}]})
}

/// The prompt's tokens, and the names of what has no effect.
async fn read(app: &std::sync::Arc<vllm_apple::http::App>, fields: Value) -> (Value, String) {
    let response = send(app, post("/tokenize", asked(fields).to_string())).await;
    let names = response.headers().get("x-fields-without-effect").map(|names| names.to_str().unwrap().to_owned());
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(status, 200, "{answer}");
    (answer["tokens"].clone(), names.unwrap_or_default())
}

#[tokio::test]
async fn thoughts_are_found_wherever_they_stand() {
    let app = app();
    let (expected, _) = read(&app, json!({"content": "Yes.", "reasoning_content": "Hm."})).await;
    let text = json!({"type": "text", "text": "Yes."});
    let of_part = |part: Value| json!({"content": [part, text]});
    for (fields, idle) in [
        (json!({"content": "Yes.", "reasoning": "Hm."}), ""),
        (json!({"content": "Yes.", "reasoning_text": "Hm.", "reasoning_opaque": "x"}), "messages.reasoning_opaque"),
        // Anthropic's.
        (of_part(json!({"type": "thinking", "thinking": "Hm.", "signature": "x"})), "messages.content.signature"),
        // Mistral's.
        (
            of_part(json!({"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "closed": true})),
            "messages.content.closed",
        ),
        // LangChain's.
        (of_part(json!({"type": "reasoning", "reasoning": "Hm.", "extras": {}})), ""),
        // The AI SDK's.
        (of_part(json!({"type": "reasoning", "text": "Hm."})), ""),
        // OpenAI's.
        (
            of_part(json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]})),
            "messages.content.id",
        ),
        // LiteLLM's.
        (
            json!({"content": "Yes.", "thinking_blocks": [{"type": "thinking", "thinking": "Hm."}, {"type": "redacted_thinking", "data": "x"}]}),
            "messages.content.redacted_thinking",
        ),
        // The same, said again: once is enough.
        (
            json!({"content": "Yes.", "reasoning_content": "Hm.", "reasoning_text": "Hm.",
                "thinking_blocks": [{"type": "thinking", "thinking": "Hm."}]}),
            "messages.reasoning_text, messages.thinking_blocks",
        ),
        (
            json!({"content": [{"type": "thinking", "thinking": "Hm."}, text], "reasoning_content": "Hm."}),
            "messages.content.thinking",
        ),
    ] {
        assert_eq!(read(&app, fields.clone()).await, (expected.clone(), idle.to_owned()), "{fields}");
    }
}

#[tokio::test]
async fn thoughts_stand_beside_calls_and_by_themselves() {
    let app = app();
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let thought = |text: &str| json!({"type": "thinking", "thinking": text});
    let expected = read(&app, json!({"content": "", "reasoning_content": "a\nb", "tool_calls": [call]})).await;
    let fields = json!({"content": [thought("a"), thought(""), thought("b")], "tool_calls": [call]});
    assert_eq!(read(&app, fields).await, expected);
    // Nothing was thought, or nobody can read it.
    let nothing = read(&app, json!({"content": "Yes."})).await;
    for part in [thought(""), json!({"type": "reasoning", "summary": []}), json!({"type": "reasoning"})] {
        assert_eq!(read(&app, json!({"content": [part, "Yes."]})).await, nothing);
    }
    let sealed = json!({"content": [{"type": "redacted_thinking", "data": "x"}, "Yes."], "reasoning": null});
    assert_eq!(read(&app, sealed).await, (nothing.0, "messages.content.redacted_thinking".to_owned()));
}

#[tokio::test]
async fn what_is_no_thought_is_refused() {
    let app = app();
    let part = |part: Value| json!({"content": [part]});
    for (fields, param) in [
        (part(json!({"type": "thinking", "thinking": 5})), "content[0].thinking"),
        (part(json!({"type": "thinking"})), "content[0].thinking"),
        (part(json!({"type": "thinking", "thinking": [{"type": "image"}]})), "content[0].thinking[0].text"),
        (part(json!({"type": "thinking", "thinking": "a", "thinkin": 1})), "content[0].thinkin"),
        (part(json!({"type": "reasoning", "summary": "a", "text": 1})), "content[0].text"),
        (part(json!({"type": "image_url", "image_url": {"url": "data:,"}})), "content[0].type"),
        (json!({"content": "a", "reasoning_text": ["a"]}), "reasoning_text"),
        (json!({"content": "a", "thinking_blocks": [{"type": "text", "text": "a"}]}), "thinking_blocks[0]"),
    ] {
        let refused = error(send(&app, post(CHAT, asked(fields).to_string())).await, 400).await;
        assert_eq!(refused["param"], format!("messages[1].{param}"), "{refused}");
    }
    // They count as parts do.
    let thought = json!({"type": "thinking", "thinking": "a"});
    let many = json!({"type": "thinking", "thinking": vec![json!({"text": "a"}); 5000]});
    for fields in [
        json!({"content": [many, many]}),
        json!({"thinking_blocks": [many, many]}),
        json!({"thinking_blocks": vec![thought; 8192]}),
    ] {
        let refused = error(send(&app, post(CHAT, asked(fields).to_string())).await, 400).await;
        assert!(refused["message"].as_str().unwrap().contains("8192"), "{refused}");
    }
    // A user does not think.
    let user =
        |fields: Value| json!({"messages": [with(json!({"role": "user"}), fields)], "max_tokens": 1}).to_string();
    let thinks = user(json!({"content": [{"type": "thinking", "thinking": "a"}]}));
    assert_eq!(error(send(&app, post(CHAT, thinks)).await, 400).await["param"], "messages[0].content[0].type");
    let named = send(&app, post(CHAT, user(json!({"content": "a", "reasoning_text": "b"})))).await;
    assert_eq!(named.headers()["x-fields-without-effect"], "messages.reasoning_text");
}

#[tokio::test]
async fn whether_a_tool_failed_stands_in_its_result() {
    let app = app();
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let result = json!({"role": "tool", "tool_call_id": "1", "content": "a", "is_error": true});
    let body = |result: &Value| {
        json!({"max_tokens": 1, "messages": [{"role": "assistant", "content": null, "tool_calls": [call]}, result]})
            .to_string()
    };
    let response = send(&app, post(CHAT, body(&result))).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-fields-without-effect"]),
        (200, &"messages.is_error".parse().unwrap())
    );
    let response = send(&app, post(CHAT, body(&with(result, json!({"is_error": false}))))).await;
    assert!(response.status() == 200 && !response.headers().contains_key("x-fields-without-effect"));
}
