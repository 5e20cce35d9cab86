//! Blocks of `/v1/messages` that are more than a text: documents, what a search has found, and images in results of tools.

use serde_json::{Value, json};

use crate::support::{MODEL, Server, Setup};

const COUNT: &str = "/v1/messages/count_tokens";

async fn showing() -> Server {
    let mut setup = Setup::default().roomy();
    setup.template = Some("{{ messages | tojson }}");
    setup.start().await
}

/// A conversation with a result of a tool.
fn result(content: Value) -> Value {
    json!({"model": MODEL, "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "read", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": content}]},
    ]})
}

fn user(content: Value) -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": content}]})
}

/// The tokens of the prompt, and the fields without effect.
pub async fn count(server: &Server, body: Value) -> (Value, String) {
    let response = server.post(COUNT, body.clone()).await;
    let without_effect = response.headers().get("x-fields-without-effect");
    let without_effect = without_effect.map_or("", |names| names.to_str().unwrap()).to_owned();
    let counted: Value = response.json().await.unwrap();
    assert!(counted["input_tokens"].is_u64(), "{body}: {counted}");
    (counted, without_effect)
}

#[tokio::test]
async fn the_model_is_told_of_what_it_cannot_see() {
    let server = showing().await;
    let text = json!({"type": "text", "text": "I see:"});
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    let document = |title: Value| json!({"type": "document", "title": title, "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}});
    let image_line = "[image not shown: this model reads text only]";
    for (content, expected, without_effect) in [
        (json!([image]), image_line.to_owned(), "messages.content.content.image"),
        (json!([text, image]), format!("I see:\n{image_line}"), "messages.content.content.image"),
        (
            json!([image, document(json!("A b"))]),
            format!("{image_line}\n[document \"A b\" not shown: this model reads text only]"),
            "messages.content.content.image, messages.content.content.document",
        ),
        (
            json!([document(Value::Null)]),
            "[document not shown: this model reads text only]".to_owned(),
            "messages.content.content.document",
        ),
    ] {
        let (expected, _) = count(&server, result(json!(expected))).await;
        assert_eq!(count(&server, result(content.clone())).await, (expected, without_effect.to_owned()), "{content}");
    }
    // What a user shows is refused.
    for (block, param) in [
        (image, "messages[0].content[0].type"),
        (document(Value::Null), "messages[0].content[0].source"),
        (json!({"type": "document", "source": {"type": "url", "url": "x"}}), "messages[0].content[0].source"),
    ] {
        let response = server.post(COUNT, user(json!([block]))).await;
        assert_eq!(response.status(), 400);
        let message = response.json::<Value>().await.unwrap()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(&format!("`{param}`")), "{message}");
    }
}

#[tokio::test]
async fn documents_that_are_text_are_read() {
    let server = showing().await;
    let parts = json!([{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]);
    for (block, expected) in [
        (
            json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "One.\nTwo."}}),
            "One.\nTwo.",
        ),
        (json!({"type": "document", "source": {"type": "content", "content": parts}}), "One.\nTwo."),
        (json!({"type": "document", "source": {"type": "content", "content": "One."}}), "One."),
        (
            json!({"type": "document", "title": "T", "context": "C", "source": {"type": "text", "media_type": "text/plain", "data": "One."}}),
            "T\nC\nOne.",
        ),
        (
            json!({"type": "search_result", "title": "T", "source": "http://x", "content": parts}),
            "T\nhttp://x\nOne.\nTwo.",
        ),
    ] {
        let in_result = count(&server, result(json!([block]))).await;
        assert_eq!(in_result, count(&server, result(json!(expected))).await, "{block}");
        let said = count(&server, user(json!([block, {"type": "text", "text": "So?"}]))).await;
        assert_eq!(said, count(&server, user(json!(format!("{expected}\nSo?")))).await, "{block}");
    }
    let (_, without_effect) = count(
        &server,
        user(json!([{"type": "document", "source": {"type": "text", "data": "x"}, "citations": {"enabled": true}}])),
    )
    .await;
    assert_eq!(without_effect, "messages.content.citations");
    for (block, named) in [
        (json!({"type": "document"}), "source` is required"),
        (json!({"type": "document", "source": {"type": "text"}}), "source.data`"),
        (json!({"type": "document", "source": {"type": "content"}}), "source.content`"),
        (json!({"type": "document", "title": 3, "source": {"type": "text", "data": "x"}}), "title`"),
        (json!({"type": "search_result", "title": "T", "content": []}), "source`"),
        (json!({"type": "search_result", "title": "T", "source": "x"}), "content`"),
        (json!({"type": "audio"}), "type`"),
    ] {
        for body in [result(json!([block])), user(json!([block]))] {
            let response = server.post(COUNT, body.clone()).await;
            assert_eq!(response.status(), 400, "{body}");
            let message = response.json::<Value>().await.unwrap()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains(named), "{message}");
        }
    }
}
