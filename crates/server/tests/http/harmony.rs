//! gpt-oss' channels: a form holds in the message that it is about, and so do calls that must come. The fake model begins as a test wants, and goes on
//! with any token that it may.

use std::sync::Arc;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use tempfile::TempDir;
use vllm_apple::http::App;

use crate::errors::{CHAT, post, send};
use crate::more_tokens::{app, ask, checkpoint_with};
use crate::support::{events, with};

/// As gpt-oss' own, as far as it matters here.
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|start|>{{ m.role }}\
                        {% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}\
                        {% if add_generation_prompt %}<|start|>assistant{% endif %}";

const MARKS: [&str; 7] =
    ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"];

const THOUGHT: &str = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";

fn checkpoint() -> TempDir {
    checkpoint_with(&MARKS, true, &["<|call|>", "<|return|>"], TEMPLATE)
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"name": {"enum": ["Ann", "Bob"]}, "old": {"type": "boolean"}},
        "required": ["name", "old"], "additionalProperties": false})
}

fn format() -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": schema()}}})
}

fn tools(strict: bool) -> Value {
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}});
    json!({"tools": [tool("weather", schema()), tool("now", json!({"type": "object", "additionalProperties": false}))]})
}

fn body(fields: Value) -> Value {
    with(json!({"messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 200, "seed": 3}), fields)
}

/// The deltas of the streamed answer.
async fn stream(app: &Arc<App>, body: Value) -> Vec<Value> {
    let response = send(app, post(CHAT, with(body, json!({"stream": true})).to_string())).await;
    assert_eq!(response.status(), 200);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let events = events(std::str::from_utf8(&bytes).unwrap());
    events.iter().map(|event| event["choices"][0]["delta"].clone()).collect()
}

/// A text of the deltas, in its parts.
fn parts<'d>(deltas: &'d [Value], field: &str) -> Vec<&'d str> {
    deltas.iter().filter_map(|delta| delta[field].as_str()).filter(|text| !text.is_empty()).collect()
}

fn is_person(text: &str) -> bool {
    let person: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    ["Ann", "Bob"].contains(&person["name"].as_str().unwrap()) && person["old"].is_boolean()
}

#[tokio::test]
async fn a_form_holds_in_the_last_message() {
    let dir = checkpoint();
    for (begins, thought) in [
        (format!("{THOUGHT}<|channel|>final"), Some("Hm.")),
        (format!("{THOUGHT}{THOUGHT}<|channel|>final <|constrain|>"), Some("Hm.\nHm.")),
        // It has not thought.
        ("<|channel|>final json".to_owned(), None),
    ] {
        let app = app(dir.path(), &begins);
        let (choice, _) = ask(&app, body(format())).await;
        let message = &choice["message"];
        assert!(is_person(message["content"].as_str().unwrap()), "{choice}");
        assert_eq!((message["reasoning_content"].as_str(), &choice["finish_reason"]), (thought, &json!("stop")));
        let deltas = stream(&app, body(format())).await;
        let (content, thoughts) = (parts(&deltas, "content"), parts(&deltas, "reasoning_content"));
        assert_eq!(
            (content.concat(), thoughts.concat()),
            (message["content"].as_str().unwrap().to_owned(), thought.unwrap_or_default().to_owned())
        );
        assert!(content.len() > 2, "it comes as it is written: {content:?}");
    }
    // What is no JSON has no mark of it.
    let app = app(dir.path(), "<|channel|>final");
    let (choice, _) = ask(&app, body(json!({"guided_regex": "[ab]{3}"}))).await;
    assert!(["a", "b"].contains(&&choice["message"]["content"].as_str().unwrap()[2..]), "{choice}");
}

#[tokio::test]
async fn a_call_that_must_come_is_a_message_to_a_function() {
    let dir = checkpoint();
    let said = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant";
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for (begins, choice, content, reason) in [
        (format!("{THOUGHT}{said} to=functions.weather"), json!("required"), json!("I look."), "tool_calls"),
        (
            format!("{THOUGHT}<|channel|>commentary to=functions.weather <|constrain|>"),
            json!("required"),
            json!(null),
            "tool_calls",
        ),
        (" to=functions".to_owned(), named, json!(null), "stop"),
    ] {
        let app = app(dir.path(), &begins);
        let body = with(body(tools(false)), json!({"tool_choice": choice}));
        let (choice, _) = ask(&app, body.clone()).await;
        let (message, function) = (&choice["message"], &choice["message"]["tool_calls"][0]["function"]);
        assert_eq!((&function["name"], &message["content"]), (&json!("weather"), &content), "{choice}");
        assert!(is_person(function["arguments"].as_str().unwrap()), "{choice}");
        assert_eq!(choice["finish_reason"], reason);
        let deltas = stream(&app, body).await;
        let calls: Vec<&Value> = deltas.iter().filter_map(|delta| delta["tool_calls"].get(0)).collect();
        let arguments: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
        assert_eq!(
            (&calls[0]["function"]["name"], json!(arguments)),
            (&json!("weather"), function["arguments"].clone())
        );
    }
}

#[tokio::test]
async fn a_tool_may_be_called_beside_a_form() {
    let dir = checkpoint();
    let fields = |strict: bool| with(body(format()), tools(strict));
    let calls = app(dir.path(), &format!("{THOUGHT} to=functions.weather"));
    let (choice, idle) = ask(&calls, fields(true)).await;
    assert!(is_person(choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap()), "{choice}");
    assert_eq!((&choice["finish_reason"], idle.as_str()), (&json!("tool_calls"), ""));
    let answers = app(dir.path(), &format!("{THOUGHT}<|channel|>final"));
    for strict in [true, false] {
        let (choice, idle) = ask(&answers, fields(strict)).await;
        assert!(is_person(choice["message"]["content"].as_str().unwrap()), "{choice}");
        assert_eq!(idle, "", "{strict}");
    }
}

#[tokio::test]
async fn what_goes_on_with_an_answer_is_one() {
    let dir = checkpoint();
    let messages = json!([{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "I think"}]);
    let body = body(json!({"messages": messages, "continue_final_message": true}));
    let app = app(dir.path(), " so, and so<|return|>");
    let (choice, _) = ask(&app, body.clone()).await;
    assert_eq!(choice["message"]["content"], " so, and so", "{choice}");
    let deltas = stream(&app, body.clone()).await;
    assert!(parts(&deltas, "content").len() > 2, "{deltas:?}");
    // A form holds at once.
    let app = crate::more_tokens::app(dir.path(), "");
    let (choice, _) = ask(&app, with(body, json!({"guided_regex": "[ab]{3}"}))).await;
    assert_eq!(choice["message"]["content"].as_str().unwrap().len(), 3, "{choice}");
}

/// As in vLLM, a call that nobody offered is none.
#[tokio::test]
async fn calls_are_shown_where_they_may_come() {
    let dir = checkpoint();
    let app = app(dir.path(), &format!("{THOUGHT} to=functions.now<|channel|>commentary json<|message|>{{}}<|call|>"));
    for (fields, calls, reason) in [
        (json!({}), 0, "stop"),
        (with(tools(false), json!({"tool_choice": "none"})), 0, "stop"),
        (tools(false), 1, "tool_calls"),
    ] {
        let (choice, _) = ask(&app, body(fields.clone())).await;
        let count = |calls: &Value| calls.as_array().map_or(0, Vec::len);
        assert_eq!(
            (count(&choice["message"]["tool_calls"]), &choice["finish_reason"]),
            (calls, &json!(reason)),
            "{choice}"
        );
        let deltas = stream(&app, body(fields)).await;
        assert_eq!(deltas.iter().any(|delta| count(&delta["tool_calls"]) > 0), calls > 0);
    }
}
