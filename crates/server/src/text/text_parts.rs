//! Text by other names, as text: what an assistant said when it refused, which OpenAI's API keeps apart, and the parts of Responses. No template
//! knows them. Knows messages, no template.

use serde_json::{Value, json};

/// The message with its texts as text: its parts, and a refusal that stands in the place of its content.
pub(super) fn as_text(mut message: Value) -> Value {
    let Value::Object(fields) = &mut message else { return message };
    if let Some(Value::Array(parts)) = fields.get_mut("content") {
        for part in parts {
            match part.get("type").and_then(Value::as_str) {
                Some("input_text" | "output_text") => part["type"] = json!("text"),
                Some("refusal") => {
                    if let Some(text) = part.get("refusal") {
                        *part = json!({"type": "text", "text": text});
                    }
                }
                _ => {}
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
    fn text_goes_by_one_name() {
        let (part, text) = (json!({"type": "refusal", "refusal": "No."}), json!({"type": "text", "text": "No."}));
        let cases = [
            (json!({"content": [part, text]}), json!({"content": [text, text]})),
            (
                json!({"content": [{"type": "input_text", "text": "No."}, {"type": "output_text", "text": "No.", "a": 1}, "No."]}),
                json!({"content": [text, {"type": "text", "text": "No.", "a": 1}, "No."]}),
            ),
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
