//! System messages where a template takes them at the beginning only: later ones are joined to the first, as in vLLM. It knows no template.

use serde_json::{Value, json};

use super::chat_template::part_text;

/// The first system message, with the texts of those that come later.
#[derive(Debug, Default)]
pub(super) struct Leading(Option<Value>);

impl Leading {
    /// Takes a system message out of the conversation. What is another, or has more than texts, stays where it is.
    pub fn take(&mut self, message: Value) -> Option<Value> {
        let Some(text) = text(&message).filter(|_| message["role"] == "system") else { return Some(message) };
        match &mut self.0 {
            None => self.0 = Some(message),
            Some(first) => append(first, &text),
        }
        None
    }

    /// What begins the conversation.
    pub fn message(self) -> Option<Value> {
        self.0
    }
}

fn text(message: &Value) -> Option<String> {
    match &message["content"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => Some(parts.iter().map(part_text).collect::<Option<Vec<_>>>()?.join("\n")),
        _ => None,
    }
}

fn append(first: &mut Value, text: &str) {
    match &mut first["content"] {
        Value::String(content) => content.push_str(&format!("\n\n{text}")),
        Value::Array(parts) => parts.push(json!({"type": "text", "text": format!("\n\n{text}")})),
        _ => unreachable!("only messages of texts are taken"),
    }
}
