//! What agents and their libraries send by themselves, whatever the model.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::errors::{CHAT, COMPLETIONS, post, send};
use crate::support::{MODEL, Setup, with};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const TOKENIZE: &str = "/tokenize";

fn chat(fields: Value) -> Value {
    with(json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}), fields)
}

/// The status, the fields without effect and the answer.
async fn ask(setup: &Setup, path: &str, body: Value) -> (u16, String, Value) {
    let response = send(&setup.app(), post(path, body.to_string())).await;
    let idle = response.headers().get("x-fields-without-effect").map(|names| names.to_str().unwrap().to_owned());
    let status = response.status().as_u16();
    let answer = serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
    (status, idle.unwrap_or_default(), answer)
}

/// opencode asks for 32000 tokens each time, Copilot for 128000.
#[tokio::test]
async fn an_answer_that_may_be_longer_than_there_is_room_ends_with_the_room() {
    let setup = Setup::default();
    for (path, body, limit) in [
        (COMPLETIONS, json!({"prompt": [5], "max_tokens": 256, "ignore_eos": true}), "max_tokens"),
        (CHAT, chat(json!({"max_tokens": 32_000, "ignore_eos": true})), "max_tokens"),
        (
            CHAT,
            chat(json!({"max_tokens": null, "max_completion_tokens": 32_000, "ignore_eos": true})),
            "max_completion_tokens",
        ),
    ] {
        let (status, idle, answer) = ask(&setup, path, body).await;
        assert_eq!((status, idle.as_str()), (200, limit), "{answer}");
        assert_eq!(
            (&answer["choices"][0]["finish_reason"], &answer["usage"]["total_tokens"]),
            (&json!("length"), &json!(256))
        );
    }
    let body = json!({"input": "Hi", "max_output_tokens": 128_000, "ignore_eos": true});
    let (status, idle, answer) = ask(&setup, RESPONSES, body).await;
    assert_eq!(
        (status, idle.as_str(), &answer["status"]),
        (200, "max_output_tokens", &json!("incomplete")),
        "{answer}"
    );
    assert_eq!(answer["incomplete_details"]["reason"], "max_output_tokens");
}

/// Strands and Xcode send a list always.
#[tokio::test]
async fn a_list_without_tools_offers_none() {
    let setup = Setup::default().roomy();
    let (status, idle, answer) = ask(&setup, CHAT, chat(json!({"tools": []}))).await;
    assert_eq!((status, idle.as_str()), (200, ""), "{answer}");
    assert_eq!(answer["usage"]["prompt_tokens"], ask(&setup, CHAT, chat(json!({}))).await.2["usage"]["prompt_tokens"]);
    let (status, _, error) = ask(&setup, CHAT, chat(json!({"tools": [], "tool_choice": "required"}))).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("tool_choice")));
}

#[tokio::test]
async fn hints_are_without_effect_and_named() {
    let setup = Setup::default();
    let text = json!({"input": "Hi", "max_output_tokens": 1, "text": {"verbosity": "low"}});
    assert_eq!(ask(&setup, RESPONSES, text).await.1, "text.verbosity");
    assert_eq!(ask(&setup, CHAT, chat(json!({"verbosity": "high"}))).await.1, "verbosity");
    let message = json!({"role": "user", "content": "Hi", "copilot_cache_control": {"type": "ephemeral"}});
    assert_eq!(ask(&setup, CHAT, chat(json!({"messages": [message]}))).await.1, "messages.copilot_cache_control");
}

/// DeepSeek's and others' object is the variable of templates.
#[tokio::test]
async fn thinking_is_enabled_or_disabled() {
    let setup = |template| Setup { template: Some(template), ..Setup::default() };
    let known = setup("{{ 'No.' if enable_thinking is defined and not enable_thinking else 'Hm, or so.' }}");
    let prompt = async |fields: Value| {
        let (status, idle, answer) = ask(&known, CHAT, chat(fields)).await;
        (status, idle, answer["usage"]["prompt_tokens"].clone())
    };
    for (kind, thinks) in [("enabled", true), ("disabled", false)] {
        let expected = prompt(json!({"chat_template_kwargs": {"enable_thinking": thinks}})).await;
        assert_eq!(prompt(json!({"thinking": {"type": kind}})).await, expected, "{kind}");
        assert_eq!(expected.0, 200);
    }
    assert_eq!(prompt(json!({"thinking": {"type": "auto"}})).await, prompt(json!({})).await);
    assert_eq!(prompt(json!({"thinking": {"type": "auto", "budget_tokens": 1024}})).await.1, "thinking.budget_tokens");
    assert_eq!(prompt(json!({"thinking": {"type": "much"}})).await.0, 400);
    assert_eq!(prompt(json!({"thinking": true})).await.0, 400);
    let unknown = setup("{{ messages[0].content }}");
    assert_eq!(ask(&unknown, CHAT, chat(json!({"thinking": {"type": "enabled"}}))).await.1, "thinking");
}

/// What a tool brings comes back with every request.
#[tokio::test]
async fn the_model_is_told_of_images_that_tools_bring() {
    let mut setup = Setup::default().roomy();
    setup.template = Some("{{ messages | tojson }}");
    let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]});
    let asking = |after: Value| {
        let mut messages = vec![json!({"role": "user", "content": "Hi"}), call.clone()];
        messages.extend(after.as_array().unwrap().clone());
        json!({"messages": messages})
    };
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    let line = json!({"type": "text", "text": "[image not shown: this model reads text only]"});
    let text = json!({"type": "text", "text": "I see:"});
    for of in [
        |part: &Value, text: &Value| json!([{"role": "tool", "tool_call_id": "c", "content": [text, part]}]),
        // As Cline has it.
        |part: &Value, text: &Value| json!([{"role": "tool", "tool_call_id": "c", "content": [text]}, {"role": "user", "content": [part]}]),
    ] {
        let tokens = ask(&setup, TOKENIZE, asking(of(&image, &text))).await.2;
        assert_eq!(tokens["tokens"], ask(&setup, TOKENIZE, asking(of(&line, &text))).await.2["tokens"], "{tokens}");
        assert!(tokens["count"].as_u64().unwrap() > 10, "{tokens}");
        let (status, idle, _) = ask(&setup, CHAT, with(asking(of(&image, &text)), json!({"max_tokens": 1}))).await;
        assert_eq!((status, idle.as_str()), (200, "messages.content.image_url"));
    }
    // What the user says is read, or refused.
    let said =
        json!([{"role": "tool", "tool_call_id": "c", "content": "x"}, {"role": "user", "content": [text, image]}]);
    let (status, _, error) = ask(&setup, CHAT, asking(said)).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("messages[3].content[1].type")));
}

#[tokio::test]
async fn tools_of_anthropics_are_left_out_beside_others() {
    let setup = Setup::default().roomy();
    let own = json!({"name": "now", "input_schema": {"type": "object"}});
    let asking = |tools: Value| json!({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}], "tools": tools});
    let [search, bash] = ["web_search", "bash"].map(|name| json!({"type": format!("{name}_20250305"), "name": name}));
    let (status, idle, answer) = ask(&setup, MESSAGES, asking(json!([search, own, bash]))).await;
    assert_eq!((status, idle.as_str()), (200, "tools.web_search, tools.bash"), "{answer}");
    assert_eq!(answer["usage"], ask(&setup, MESSAGES, asking(json!([own]))).await.2["usage"]);
    for (tools, field) in [(json!([search]), "tools[0].type"), (json!([own, {"type": "bashes"}]), "tools[1].type")] {
        let (status, _, error) = ask(&setup, MESSAGES, asking(tools)).await;
        assert!(status == 400 && error["error"]["message"].as_str().unwrap().contains(field), "{error}");
    }
}

/// Codex counts events alone: a comment does not keep it waiting.
#[tokio::test]
async fn events_come_while_nothing_else_does() {
    let mut setup = Setup::default();
    setup.fake.step_time = Duration::from_millis(300);
    setup.config.keep_alive = Duration::from_millis(10);
    for (path, body, expected) in [
        (RESPONSES, json!({"input": "Hi", "max_output_tokens": 1, "stream": true}), "event: keepalive"),
        (
            MESSAGES,
            json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "stream": true}),
            "event: ping",
        ),
    ] {
        let response = send(&setup.app(), post(path, body.to_string())).await;
        let text = response.into_body().collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&text).unwrap();
        let events = text.split("\n\n").filter(|event| !event.is_empty());
        assert!(
            text.matches(expected).count() > 1 && events.clone().all(|event| event.starts_with("event: ")),
            "{text}"
        );
        // Their numbers are among the others'.
        let number = |event: &str| -> Option<u64> {
            serde_json::from_str::<Value>(event.split_once("data: ")?.1).ok()?["sequence_number"].as_u64()
        };
        let numbers: Vec<u64> = events.filter_map(number).collect();
        assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "{numbers:?}");
    }
}
