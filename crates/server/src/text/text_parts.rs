//! Text by other names, as text: what an assistant said when it refused, which OpenAI's API keeps apart, the parts of Responses, and parts that
//! are a plain text. No template knows them. Knows messages, no template.

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
                        *part = text_part(text);
                    }
                }
                None if part.is_string() => *part = text_part(part),
                _ => {}
            }
        }
    }
    let is_empty = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::Array(items)) => items.is_empty() && name == "tool_calls",
        Some(_) => false,
    };
    let has_calls = !is_empty("tool_calls");
    if is_empty("content")
        && !has_calls
        && let Some(text @ Value::String(_)) = fields.get("refusal").cloned()
    {
        fields.insert("content".to_owned(), text);
    }
    // Ministral's template refuses an empty text, and takes an empty part, which is what vLLM makes of it.
    let says_nothing = fields.get("content").is_some_and(|content| content == "");
    if says_nothing && fields.get("role").is_some_and(|role| role == "assistant") && !has_calls {
        fields.insert("content".to_owned(), json!([text_part(&json!(""))]));
    }
    message
}

fn text_part(text: &Value) -> Value {
    json!({"type": "text", "text": text})
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
                json!({"content": [text, {"type": "text", "text": "No.", "a": 1}, text]}),
            ),
            (json!({"content": null, "refusal": "No."}), json!({"content": "No.", "refusal": "No."})),
            (
                json!({"refusal": "No.", "tool_calls": []}),
                json!({"refusal": "No.", "tool_calls": [], "content": "No."}),
            ),
            (json!({"content": "Yes.", "refusal": "No."}), json!({"content": "Yes.", "refusal": "No."})),
            (json!({"refusal": "No.", "tool_calls": [1]}), json!({"refusal": "No.", "tool_calls": [1]})),
            (json!({"content": null, "refusal": null}), json!({"content": null, "refusal": null})),
            (
                json!({"role": "assistant", "content": "", "tool_calls": []}),
                json!({"role": "assistant", "content": [{"type": "text", "text": ""}], "tool_calls": []}),
            ),
            (
                json!({"role": "assistant", "content": "", "tool_calls": [1]}),
                json!({"role": "assistant", "content": "", "tool_calls": [1]}),
            ),
            (json!({"role": "user", "content": ""}), json!({"role": "user", "content": ""})),
        ];
        for (message, expected) in cases {
            assert_eq!(as_text(message.clone()), expected, "{message}");
        }
    }
}
