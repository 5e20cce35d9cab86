//! `input` of a response: text or items, put into the conversation. Knows the items, not where they come from.

use serde_json::value::RawValue;

use super::tools::flat;
use crate::http::dialogue::Dialogue;
use crate::http::error::ApiError;
use crate::http::raw::{each, is_string, named, required, text, word};
use crate::http::returned::{Form, note};

const ITEM: Form = Form {
    read: &["arguments", "call_id", "content", "name", "namespace", "output", "role", "summary", "type"],
    idle: &[
        "input.caller",
        "input.created_by",
        "input.encrypted_content",
        "input.id",
        "input.parsed_arguments",
        "input.phase",
        "input.status",
    ],
};

const PART: Form = Form {
    read: &["refusal", "text", "type"],
    idle: &[
        "input.content.annotations",
        "input.content.id",
        "input.content.logprobs",
        "input.content.parsed",
        "input.content.prompt_cache_breakpoint",
    ],
};

/// What is said, and what of it has no effect.
struct Reading<'d> {
    dialogue: &'d mut Dialogue,
    without_effect: &'d mut Vec<&'static str>,
}

/// Adds what `input` says.
pub fn read(raw: &RawValue, dialogue: &mut Dialogue, without_effect: &mut Vec<&'static str>) -> Result<(), ApiError> {
    if is_string(raw) {
        dialogue.user(&text(raw, "input")?);
        return Ok(());
    }
    if !raw.get().starts_with('[') {
        return Err(ApiError::param("input", "`input` must be a string or a list of items"));
    }
    let mut reading = Reading { dialogue, without_effect };
    each("input", raw, |at, item| reading.item(item, &format!("input[{at}]"))).map(|_| ())
}

impl Reading<'_> {
    fn item(&mut self, item: &RawValue, path: &str) -> Result<(), ApiError> {
        let Some([kind, role, namespace]) = named(item, ["type", "role", "namespace"]) else {
            return Err(ApiError::param(path, format!("`{path}` must be an object with `type`")));
        };
        // As in OpenAI's API, what has a role and no type is a message.
        let kind = if kind.is_some() { word(kind) } else { role.map(|_| "message".to_owned()) };
        // What is of no kind that is read here is refused for that.
        if matches!(kind.as_deref(), Some("message" | "function_call" | "function_call_output" | "reasoning")) {
            ITEM.check(path, item, self.without_effect)?;
            if namespace.is_some() && kind.as_deref() != Some("function_call") {
                note(self.without_effect, "input.namespace");
            }
        }
        match kind.as_deref() {
            Some("message") => self.message(item, path),
            Some("function_call") => {
                let [id, name, arguments] = required(item, path, ["call_id", "name", "arguments"])?;
                let namespace = namespace.map(|namespace| text(namespace, &format!("{path}.namespace"))).transpose()?;
                let name = match namespace.as_deref() {
                    None | Some("") => name,
                    Some(namespace) => flat(namespace, &name),
                };
                self.dialogue.call(&id, &name, &arguments);
                Ok(())
            }
            Some("function_call_output") => {
                let [id] = required(item, path, ["call_id"])?;
                let output = self.needed(item, path, "output")?;
                self.dialogue.tool(&id, &output);
                Ok(())
            }
            Some("reasoning") => {
                // The thoughts themselves, or what there is of them.
                let thoughts = match self.content(item, path, "content")? {
                    Some(thoughts) if !thoughts.is_empty() => Some(thoughts),
                    _ => self.content(item, path, "summary")?,
                };
                self.dialogue.reasoning(&thoughts.unwrap_or_default());
                Ok(())
            }
            Some(kind) => {
                let param = format!("{path}.type");
                let message = format!(
                    "`{param}` is {kind:?}, but this server reads only messages, calls of functions, their outputs and reasoning"
                );
                Err(ApiError::param(param, message))
            }
            None => {
                let param = format!("{path}.type");
                Err(ApiError::param(&param, format!("`{param}` must be a string such as \"message\"")))
            }
        }
    }

    fn message(&mut self, item: &RawValue, path: &str) -> Result<(), ApiError> {
        let role = named(item, ["role"]).and_then(|[role]| word(role));
        let content = self.needed(item, path, "content")?;
        match role.as_deref().unwrap_or_default() {
            "user" => self.dialogue.user(&content),
            "assistant" => self.dialogue.answer(&content),
            // Few templates know the second name.
            "system" | "developer" => self.dialogue.system(&content),
            _ => {
                let param = format!("{path}.role");
                let message = format!("`{param}` must be \"user\", \"assistant\", \"system\" or \"developer\"");
                return Err(ApiError::param(param, message));
            }
        }
        Ok(())
    }

    /// As `content`, of a field that must be there: a message without one is a mistake, and no message without text.
    fn needed(&mut self, item: &RawValue, path: &str, name: &str) -> Result<String, ApiError> {
        self.content(item, path, name)?.ok_or_else(|| {
            let param = format!("{path}.{name}");
            ApiError::param(&param, format!("`{param}` is required"))
        })
    }

    /// A field that is a text or a list of parts with text.
    fn content(&mut self, item: &RawValue, path: &str, name: &str) -> Result<Option<String>, ApiError> {
        let path = format!("{path}.{name}");
        match named(item, [name]).and_then(|[raw]| raw) {
            None => Ok(None),
            Some(raw) if is_string(raw) => text(raw, &path).map(Some),
            Some(raw) if raw.get().starts_with('[') => {
                let mut texts = Vec::new();
                each(&path, raw, |at, part| {
                    texts.push(self.part_text(part, &format!("{path}[{at}]"))?);
                    Ok(())
                })?;
                // As chat's parts become one text.
                Ok(Some(texts.join("\n")))
            }
            Some(_) => Err(ApiError::param(&path, format!("`{path}` must be a string or a list of parts"))),
        }
    }

    fn part_text(&mut self, part: &RawValue, path: &str) -> Result<String, ApiError> {
        let Some([kind, said, refusal]) = named(part, ["type", "text", "refusal"]) else {
            return Err(ApiError::param(
                path,
                format!("`{path}` must be a part such as {{\"type\": \"input_text\", …}}"),
            ));
        };
        let (name, raw) = match word(kind).as_deref() {
            Some("input_text" | "output_text" | "text" | "reasoning_text" | "summary_text") => ("text", said),
            Some("refusal") => ("refusal", refusal),
            kind => {
                let param = format!("{path}.type");
                let got = kind.map_or_else(|| "missing".to_owned(), |kind| format!("{kind:?}"));
                return Err(ApiError::param(
                    &param,
                    format!("`{param}` is {got}, but this server reads only text parts"),
                ));
            }
        };
        PART.check(path, part, self.without_effect)?;
        let param = format!("{path}.{name}");
        match raw {
            Some(raw) => text(raw, &param),
            None => Err(ApiError::param(&param, format!("`{param}` is required"))),
        }
    }
}
