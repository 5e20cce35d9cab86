//! Items of an answer in OpenAI's words. Knows no events.

use serde_json::{Value, json};

use super::custom;
use super::tools::Called;
use crate::http::items::Item;

/// What the name of an item begins with.
pub fn prefix(item: &Item, called: &Called) -> &'static str {
    match item {
        Item::Reasoning(_) => "rs",
        Item::Text(_) => "msg",
        Item::Call { name, .. } if called.is_custom(name) => "ctc",
        Item::Call { .. } => "fc",
    }
}

/// An item as it stands in `output`. One that is in progress has nothing in it.
pub fn worded(id: &str, item: &Item, called: &Called, status: &str) -> Value {
    let has_begun = status != "in_progress";
    let parts = |part: Value| if has_begun { vec![part] } else { Vec::new() };
    match item {
        Item::Reasoning(text) => {
            let content = parts(thought_part(text));
            json!({"id": id, "type": "reasoning", "summary": [], "content": content, "encrypted_content": null, "status": status})
        }
        Item::Text(text) => {
            let content = parts(text_part(text));
            json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
        }
        Item::Call { id: call_id, name, arguments } => {
            let arguments = if has_begun { arguments } else { "" };
            let (namespace, own) = called.parts(name);
            let mut call = if called.is_custom(name) {
                let input = custom::input(arguments);
                json!({"id": id, "type": "custom_tool_call", "status": status, "call_id": call_id, "name": own, "input": input})
            } else {
                json!({"id": id, "type": "function_call", "status": status, "call_id": call_id, "name": own, "arguments": arguments})
            };
            if let Some(namespace) = namespace {
                call["namespace"] = namespace.into();
            }
            call
        }
    }
}

/// The part of a message.
pub fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// The part of what the model thinks.
pub fn thought_part(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}
