//! What an assistant said when it refused, as text: OpenAI's API keeps refusals apart, and no template knows them. Knows messages, no template.

use serde_json::{Value, json};

/// The message with its refusals as text: those among its parts, and the one that stands in the place of its content.
pub(super) fn as_text(mut message: Value) -> Value {
    let Value::Object(fields) = &mut message else { return message };
    if let Some(Value::Array(parts)) = fields.get_mut("content") {
        for part in parts {
            let is_refusal = part.get("type").and_then(Value::as_str) == Some("refusal");
            if let Some(text) = part.get("refusal").filter(|_| is_refusal) {
                *part = json!({"type": "text", "text": text});
            }
        }
    }
    let is_empty = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::Array(items)) => items.is_empty() && name == "tool_calls",
        Some(_) => false,
    };
    if is_empty("content")
        && is_empty("tool_calls")
        && let Some(text @ Value::String(_)) = fields.get("refusal").cloned()
    {
        fields.insert("content".to_owned(), text);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_what_was_said() {
        let (part, text) = (json!({"type": "refusal", "refusal": "No."}), json!({"type": "text", "text": "No."}));
        let cases = [
            (json!({"content": [part, text]}), json!({"content": [text, text]})),
            (json!({"content": null, "refusal": "No."}), json!({"content": "No.", "refusal": "No."})),
            (
                json!({"refusal": "No.", "tool_calls": []}),
                json!({"refusal": "No.", "tool_calls": [], "content": "No."}),
            ),
            (json!({"content": "Yes.", "refusal": "No."}), json!({"content": "Yes.", "refusal": "No."})),
            (json!({"refusal": "No.", "tool_calls": [1]}), json!({"refusal": "No.", "tool_calls": [1]})),
            (json!({"content": null, "refusal": null}), json!({"content": null, "refusal": null})),
        ];
        for (message, expected) in cases {
            assert_eq!(as_text(message.clone()), expected, "{message}");
        }
    }
}
