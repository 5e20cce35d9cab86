//! System messages where a template takes them at the beginning only: later ones are joined to the first, as in vLLM. So are developers', whose role
//! some templates know and take there alone. It knows no template.

use serde_json::{Value, json};

use super::chat_template::part_text;

/// Whose messages a template takes at the beginning only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Leads {
    pub system: bool,
    /// Where it does so of the system's as well: else a developer's would go before them.
    pub developer: bool,
}

/// The first of these messages, with the texts of those that come later.
#[derive(Debug, Default)]
pub(super) struct Leading {
    leads: Leads,
    first: Option<Value>,
}

impl Leading {
    /// Of a template's messages.
    pub fn new(leads: Leads) -> Self {
        Self { leads, first: None }
    }

    /// Takes such a message out of the conversation. What is another, or has more than texts, stays where it is.
    pub fn take(&mut self, message: Value) -> Option<Value> {
        let leads = match message["role"].as_str() {
            Some("system") => self.leads.system,
            Some("developer") => self.leads.developer,
            _ => false,
        };
        let Some(text) = leads.then(|| text(&message)).flatten() else { return Some(message) };
        match &mut self.first {
            None => self.first = Some(message),
            Some(first) => append(first, &text),
        }
        None
    }

    /// What begins the conversation.
    pub fn message(self) -> Option<Value> {
        self.first
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
