//! Fields of messages: which are refused, which have no effect, and what stands for text.

use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::errors::{CHAT, error, post, send};
use crate::support::Setup;

#[tokio::test]
async fn a_field_of_a_message_that_nobody_knows_is_refused() {
    let app = Setup::default().roomy().app();
    let asked = |message: Value| json!({"model": "fake-model", "max_tokens": 1, "messages": [message]}).to_string();
    let refused = [
        (json!({"role": "user", "contents": "a"}), "messages[0].contents", "did you mean `content`?"),
        (json!({"role": "user", "content": "a", "colour": 1}), "messages[0].colour", "leave it out"),
        (json!({"role": "user", "content": "a", "prefix": true}), "messages[0].prefix", "continue_final_message"),
        (
            json!({"role": "user", "content": "a", "function_call": {"name": "f"}}),
            "messages[0].function_call",
            "tool_calls",
        ),
        (
            json!({"role": "user", "content": [{"type": "text", "text": "a", "texd": 1}]}),
            "messages[0].content[0].texd",
            "`text`",
        ),
        (
            json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "argument": ""}}]}),
            "messages[0].tool_calls[0].function.argument",
            "`arguments`",
        ),
        (
            json!({"role": "assistant", "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "f", "input": ""}}]}),
            "messages[0].tool_calls[0].type",
            "only calls of functions are read",
        ),
    ];
    for (message, param, advice) in refused.into_iter().chain(calls()) {
        let error = error(send(&app, post(CHAT, asked(message))).await, 400).await;
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(advice), "{error}");
    }
    let input = json!({"input": [{"type": "message", "role": "user", "content": "a", "contend": 1}]}).to_string();
    assert_eq!(error(send(&app, post("/v1/responses", input)).await, 400).await["param"], "input[0].contend");
    let block = json!({"role": "user", "content": [{"type": "text", "text": "a", "cache": 1}]});
    assert_eq!(send(&app, post("/v1/messages", asked(block))).await.status(), 400);
}

/// Calls that templates would stumble over.
fn calls() -> impl Iterator<Item = (Value, &'static str, &'static str)> {
    let function = |function: Value| json!({"id": "1", "type": "function", "function": function});
    let calls = [
        (json!(5), "messages[0].tool_calls[0]", "must be an object"),
        (json!("f"), "messages[0].tool_calls[0]", "must be an object"),
        (json!({"type": 5, "function": {"name": "f"}}), "messages[0].tool_calls[0].type", "functions"),
        (json!({"id": 5, "function": {"name": "f"}}), "messages[0].tool_calls[0].id", "must be a string"),
        (json!({"id": "1", "type": "function"}), "messages[0].tool_calls[0].function", "is required"),
        (function(json!("f")), "messages[0].tool_calls[0].function", "must be an object"),
        (function(json!({"arguments": "{}"})), "messages[0].tool_calls[0].function.name", "is required"),
        (function(json!({"name": ["f"]})), "messages[0].tool_calls[0].function.name", "must be a string"),
        (
            function(json!({"name": "f", "arguments": [1]})),
            "messages[0].tool_calls[0].function.arguments",
            "a string of JSON, or an object",
        ),
    ];
    calls.into_iter().map(|(call, param, word)| (json!({"role": "assistant", "tool_calls": [call]}), param, word))
}

#[tokio::test]
async fn calls_are_read_as_text_and_as_objects() {
    let app = Setup::default().roomy().app();
    for function in [
        json!({"name": "f", "arguments": "{\"a\": 1}"}),
        json!({"name": "f", "arguments": {"a": 1}}),
        json!({"name": "f", "arguments": null}),
        json!({"name": "f"}),
    ] {
        let call = json!({"id": null, "function": function});
        let body = json!({"max_tokens": 1, "messages": [{"role": "assistant", "content": null, "tool_calls": [call]}]});
        assert_eq!(send(&app, post(CHAT, body.to_string())).await.status(), 200, "{body}");
    }
}

#[tokio::test]
async fn what_clients_send_back_with_an_answer_is_accepted_and_named() {
    let app = Setup::default().roomy().app();
    let back = json!({"role": "assistant", "content": "a", "refusal": null, "annotations": [], "audio": null, "function_call": null,
        "tool_calls": [], "reasoning": "b", "reasoning_content": "b", "thinking": "b", "provider_specific_fields": {"refusal": null},
        "name": "n", "thinking_blocks": [], "images": [], "parsed": null, "anything": null});
    let idle = async |path: &str, body: Value| {
        let response = send(&app, post(path, body.to_string())).await;
        let names = response.headers().get("x-fields-without-effect").map(|names| names.to_str().unwrap().to_owned());
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&bytes));
        names.unwrap_or_default()
    };
    let chat = |message: Value| json!({"max_tokens": 1, "messages": [message]});
    assert_eq!(idle(CHAT, chat(back)).await, "messages.provider_specific_fields, messages.name");
    let function = json!({"name": "f", "arguments": "{}", "parsed_arguments": {}});
    let call = json!({"id": "1", "type": "function", "function": function, "extra_content": {"google": {"thought_signature": "x"}}});
    let back = json!({"role": "assistant", "content": null, "phase": "commentary", "tool_calls": [call]});
    assert_eq!(idle(CHAT, chat(back)).await, "messages.phase, messages.tool_calls.extra_content");
    let result = json!({"role": "tool", "tool_call_id": "1", "tool_name": "f",
        "content": [{"type": "text", "text": "a", "extras": {"a": 1}, "annotations": []}]});
    assert_eq!(idle(CHAT, chat(result)).await, "messages.tool_name, messages.content.extras");
    let item = json!({"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "phase": "final_answer",
        "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]});
    assert_eq!(idle("/v1/responses", json!({"input": [item]})).await, "input.id, input.status, input.phase");
    let block = json!({"type": "thinking", "thinking": "Hm.", "signature": "x"});
    let message = json!({"role": "assistant", "id": "msg_1", "content": [block, {"type": "text", "text": "a", "citations": null}]});
    let message =
        json!({"model": "fake-model", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}, message]});
    assert_eq!(idle("/v1/messages", message).await, "messages.id, messages.content.signature");
}

#[tokio::test]
async fn a_template_that_reads_a_field_gives_it_an_effect() {
    let template = "user: {% for m in messages %}{{ m.phase }}{{ m.extras_of }}{% if m.role == 'user' %}{{ loop.index }}{% endif %}{% endfor %}";
    let names = Setup { template: Some(template), ..Setup::default() }.app();
    let body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "a", "phase": "x", "tool_name": "y"}]});
    let response = send(&names, post(CHAT, body.to_string())).await;
    assert_eq!(response.headers()["x-fields-without-effect"], "messages.tool_name");
    let unread = json!({"messages": [{"role": "user", "content": "a", "extras": 1}]}).to_string();
    assert_eq!(error(send(&names, post(CHAT, unread)).await, 400).await["param"], "messages[0].extras");
    // A word of the template is no field that it reads.
    for word in ["user", "messages", "loop", "index", "endfor"] {
        let unread = json!({"messages": [{"role": "user", "content": "a", word: 1}]}).to_string();
        assert_eq!(error(send(&names, post(CHAT, unread)).await, 400).await["param"], format!("messages[0].{word}"));
    }
    // A field that the template reads hides no other, in the same message or a later one.
    let read = json!({"role": "user", "content": "a", "extras_of": 1});
    for (messages, param) in [
        (json!([{"role": "user", "content": "a", "extras_of": 1, "partial": true}]), "messages[0].partial"),
        (json!([read, {"role": "assistant", "content": "b", "partial": true}]), "messages[1].partial"),
    ] {
        let unread = json!({"messages": messages}).to_string();
        assert_eq!(error(send(&names, post(CHAT, unread)).await, 400).await["param"], param);
    }
}

#[tokio::test]
async fn what_a_template_does_not_read_is_named() {
    let plain = Setup { template: Some("{{ messages }}"), ..Setup::default() }.app();
    let reading = Setup {
        template: Some("{{ enable_thinking }}{{ documents }}{% for m in messages %}{{ m.name }}{% endfor %}x"),
        ..Setup::default()
    }
    .app();
    let user = json!([{"role": "user", "content": "a"}]);
    let named = json!([{"role": "user", "content": "a", "name": "Ann"}]);
    for (path, body, idle) in [
        (CHAT, json!({"messages": user, "reasoning_effort": "low"}), "reasoning_effort"),
        (CHAT, json!({"messages": user, "think": true}), "think"),
        (CHAT, json!({"messages": user, "chat_template_kwargs": {"enable_thinking": true}}), "chat_template_kwargs"),
        (CHAT, json!({"messages": named}), "messages.name"),
        ("/tokenize", json!({"messages": named}), "messages.name"),
        ("/v1/responses", json!({"input": "a", "reasoning": {"effort": "low"}}), "reasoning.effort"),
        (
            "/v1/messages",
            json!({"model": "fake-model", "messages": user, "thinking": {"type": "disabled"}}),
            "thinking",
        ),
        (
            "/v1/messages",
            json!({"model": "fake-model", "messages": user, "output_config": {"effort": "low"}}),
            "output_config.effort",
        ),
    ] {
        let mut body = body;
        match path {
            "/tokenize" => {}
            "/v1/responses" => body["max_output_tokens"] = json!(1),
            _ => body["max_tokens"] = json!(1),
        }
        let response = send(&plain, post(path, body.to_string())).await;
        assert_eq!(response.status(), 200, "{body}");
        assert_eq!(response.headers()["x-fields-without-effect"], idle, "{body}");
        let response = send(&reading, post(path, body.to_string())).await;
        assert_eq!(response.status(), 200, "{body}");
        assert!(response.headers().get("x-fields-without-effect").is_none(), "{body}");
    }
    let documents = json!({"messages": user, "documents": [{"text": "b"}], "max_tokens": 1}).to_string();
    assert_eq!(error(send(&plain, post(CHAT, documents.clone())).await, 400).await["param"], "documents");
    assert_eq!(send(&reading, post(CHAT, documents)).await.status(), 200);
    let none = json!({"messages": user, "documents": [], "max_tokens": 1}).to_string();
    assert_eq!(send(&plain, post(CHAT, none)).await.status(), 200);
}

#[tokio::test]
async fn the_lower_of_two_limits_holds() {
    let app = Setup::default().app();
    for (old, new) in [(2, 9), (9, 2)] {
        let body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": old, "max_completion_tokens": new, "ignore_eos": true});
        let bytes = send(&app, post(CHAT, body.to_string())).await.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(answer["usage"]["completion_tokens"], 2, "{answer}");
    }
}

#[tokio::test]
async fn parts_of_responses_are_text() {
    let app = Setup::default().roomy().app();
    let tokens = async |content: Value| {
        let body = json!({"messages": [{"role": "user", "content": content}]});
        let response = send(&app, post("/tokenize", body.to_string())).await;
        assert_eq!(response.status(), 200, "{body}");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice::<Value>(&bytes).unwrap()["tokens"].clone()
    };
    let expected = tokens(json!([{"type": "text", "text": "Hi!"}])).await;
    assert_eq!(tokens(json!([{"type": "input_text", "text": "Hi!"}])).await, expected);
    let said = json!([{"type": "output_text", "text": "Hi!", "annotations": [], "logprobs": []}]);
    assert_eq!(tokens(said).await, expected);
    let body = json!({"messages": [{"role": "user", "content": [{"type": "input_text"}]}]});
    let error = error(send(&app, post(CHAT, body.to_string())).await, 400).await;
    assert_eq!(error["param"], "messages[0].content[0].text");
}

/// A template that goes through parts of content, and refuses an assistant's empty text as Ministral's does.
#[tokio::test]
async fn plain_and_empty_texts_are_parts() {
    let template = "{% for m in messages %}{% if m.role == 'assistant' and m.content is string and m.content | length == 0 %}\
                    {{ raise_exception('empty') }}{% endif %}{% if m.content is string %}{{ m.content }}{% else %}\
                    {% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}x{% endfor %}";
    let app = Setup { template: Some(template), ..Setup::default() }.app();
    let tokens = async |messages: Value| {
        let response = send(&app, post("/tokenize", json!({"messages": messages}).to_string())).await;
        assert_eq!(response.status(), 200, "{messages}");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice::<Value>(&bytes).unwrap()["tokens"].clone()
    };
    let expected = tokens(json!([{"role": "user", "content": "Hello"}])).await;
    let parts = json!(["Hel", {"type": "text", "text": "lo"}]);
    assert_eq!(tokens(json!([{"role": "user", "content": parts}])).await, expected);
    let expected = tokens(json!([{"role": "user", "content": "a"}, {"role": "user", "content": ""}])).await;
    assert_eq!(tokens(json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}])).await, expected);
}

#[tokio::test]
async fn a_refusal_that_comes_back_is_what_the_assistant_said() {
    let app = Setup::default().roomy().app();
    let asked = |message: Value| json!({"messages": [{"role": "user", "content": "a"}, message]});
    let tokens = async |message: Value| {
        let response = send(&app, post("/tokenize", asked(message).to_string())).await;
        assert_eq!(response.status(), 200);
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice::<Value>(&bytes).unwrap()["tokens"].clone()
    };
    let said = tokens(json!({"role": "assistant", "content": "I may not."})).await;
    let part = json!({"type": "refusal", "refusal": "I may not."});
    assert_eq!(tokens(json!({"role": "assistant", "content": [part]})).await, said);
    assert_eq!(tokens(json!({"role": "assistant", "content": null, "refusal": "I may not."})).await, said);
    let both = asked(json!({"role": "assistant", "content": "a", "refusal": "I may not."}));
    let response = send(&app, post(CHAT, both.to_string())).await;
    assert_eq!(response.headers()["x-fields-without-effect"], "messages.refusal");
    for (message, param) in [
        (json!({"role": "user", "content": [part]}), "messages[1].content[0].type"),
        (json!({"role": "assistant", "content": [{"type": "refusal", "text": "a"}]}), "messages[1].content[0].refusal"),
        (json!({"role": "assistant", "refusal": 1}), "messages[1].refusal"),
    ] {
        assert_eq!(error(send(&app, post(CHAT, asked(message).to_string())).await, 400).await["param"], param);
    }
}

#[tokio::test]
async fn a_reasoning_effort_is_one_of_a_few() {
    let app = Setup::default().roomy().app();
    let asked = |effort: Value| json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "reasoning_effort": effort});
    for effort in ["none", "minimal", "low", "medium", "high", "xhigh", "max"] {
        assert_eq!(send(&app, post(CHAT, asked(json!(effort)).to_string())).await.status(), 200, "{effort}");
    }
    for effort in [json!("enormous"), json!(3), json!(["low"])] {
        let error = error(send(&app, post(CHAT, asked(effort).to_string())).await, 400).await;
        assert_eq!(error["param"], "reasoning_effort");
    }
    let input = json!({"input": "a", "reasoning": {"effort": "enormous"}}).to_string();
    assert_eq!(error(send(&app, post("/v1/responses", input)).await, 400).await["param"], "reasoning.effort");
    let message = json!({"model": "fake-model", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}],
        "output_config": {"effort": "none"}});
    assert_eq!(send(&app, post("/v1/messages", message.to_string())).await.status(), 400);
}
