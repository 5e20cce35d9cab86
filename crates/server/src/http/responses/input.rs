//! `input` of a response: text or items, put into the conversation. Knows the items, not where they come from.

use axum::http::StatusCode;
use serde_json::value::RawValue;

use super::custom;
use super::parts::{content, output};
use super::request::PER_TRANSLATED_BYTE;
use super::store::{MAX_RESPONSES, Store};
use super::tools::flat;
use crate::http::dialogue::Dialogue;
use crate::http::error::ApiError;
use crate::http::memory::Held;
use crate::http::raw::{each, is_string, named, only, required, text, word};
use crate::http::returned::{Form, note};

/// The name of an item, which says nothing beside what the item says itself.
const ID: &str = "input.id";

const ITEM: Form = Form {
    read: &["arguments", "call_id", "content", "input", "name", "namespace", "output", "role", "summary", "type"],
    idle: &[
        "input.author",
        "input.caller",
        "input.created_by",
        "input.encrypted_content",
        "input.encrypted_function_args",
        ID,
        "input.internal_chat_message_metadata_passthrough",
        "input.parsed_arguments",
        "input.phase",
        "input.recipient",
        "input.status",
    ],
};

/// Items on their way into a conversation.
#[derive(Debug)]
pub struct Reading<'r> {
    pub dialogue: &'r mut Dialogue,
    /// Where items are that come by their names.
    pub store: &'r Store,
    /// What these take.
    pub held: &'r mut Held,
    /// What of the items has no effect.
    pub without_effect: &'r mut Vec<&'static str>,
}

impl Reading<'_> {
    /// Adds what `input` says.
    pub fn input(&mut self, raw: &RawValue) -> Result<(), ApiError> {
        if is_string(raw) {
            self.dialogue.user(&text(raw, "input")?);
            return Ok(());
        }
        if !raw.get().starts_with('[') {
            return Err(ApiError::param("input", "`input` must be a string or a list of items"));
        }
        each("input", raw, |at, item| self.item(item, &format!("input[{at}]"))).map(|_| ())
    }

    /// Adds an item, which stands at `path`.
    pub fn item(&mut self, item: &RawValue, path: &str) -> Result<(), ApiError> {
        let Some([kind, role, id]) = named(item, ["type", "role", "id"]) else {
            return Err(ApiError::param(path, format!("`{path}` must be an object with `type`")));
        };
        // As in OpenAI's API, what has a role and no type is a message, and a name alone stands for its item.
        let kind = match (kind, role, id) {
            (Some(_), ..) => word(kind),
            (None, Some(_), _) => Some("message".to_owned()),
            (None, None, id) => id.map(|_| "item_reference".to_owned()),
        };
        match kind.as_deref() {
            Some("item_reference") => self.reference(item, path),
            Some("message") => self.checked(item, path)?.message(item, path),
            // What one agent tells another, which this one reads.
            Some("agent_message") => {
                let content = self.checked(item, path)?.needed(item, path)?;
                self.dialogue.user(&content);
                Ok(())
            }
            Some("function_call") => {
                let [id, name, arguments] = self.checked(item, path)?.call(item, path, "arguments")?;
                self.dialogue.call(&id, &name, &arguments);
                Ok(())
            }
            Some("custom_tool_call") => {
                let [id, name, input] = self.checked(item, path)?.call(item, path, "input")?;
                self.dialogue.call(&id, &name, &custom::arguments(&input));
                Ok(())
            }
            Some("function_call_output" | "custom_tool_call_output") => self.checked(item, path)?.output(item, path),
            Some("reasoning") => self.reasoning(item, path),
            Some(kind) => {
                let param = format!("{path}.type");
                let message = format!(
                    "`{param}` is {kind:?}, but this server reads only messages, calls of functions and of custom tools, their outputs, \
                     reasoning, and names of such items"
                );
                Err(ApiError::param(param, message))
            }
            None => {
                let param = format!("{path}.type");
                Err(ApiError::param(&param, format!("`{param}` must be a string such as \"message\"")))
            }
        }
    }

    /// The same, once the item holds nothing that nobody knows.
    fn checked(&mut self, item: &RawValue, path: &str) -> Result<&mut Self, ApiError> {
        ITEM.check(path, item, self.without_effect)?;
        let [kind, namespace] = named(item, ["type", "namespace"]).unwrap_or_default();
        let is_call = matches!(word(kind).as_deref(), Some("function_call" | "custom_tool_call"));
        if namespace.is_some() && !is_call {
            note(self.without_effect, "input.namespace");
        }
        Ok(self)
    }

    /// An item of an answer that is kept, in the place of its name.
    fn reference(&mut self, item: &RawValue, path: &str) -> Result<(), ApiError> {
        only(path, item, &["type", "id"])?;
        let [id] = required(item, path, ["id"])?;
        let kept = self.store.item(&id);
        let Some(raw) = kept.as_ref().and_then(|kept| kept.raw()) else { return Err(unknown_item(&id, path)) };
        self.held.grow(PER_TRANSLATED_BYTE * raw.get().len())?;
        // Nobody sent what it holds besides.
        let mut unsent = Vec::new();
        let Self { dialogue, store, held, .. } = self;
        Reading { dialogue, store, held, without_effect: &mut unsent }.item(raw, path)
    }

    /// The id of a call, what the model calls the tool, and what stands in this field.
    fn call(&mut self, item: &RawValue, path: &str, field: &str) -> Result<[String; 3], ApiError> {
        let [id, name, input] = required(item, path, ["call_id", "name", field])?;
        let namespace = named(item, ["namespace"]).and_then(|[namespace]| namespace);
        let namespace = namespace.map(|namespace| text(namespace, &format!("{path}.namespace"))).transpose()?;
        let name = match namespace.as_deref() {
            None | Some("") => name,
            Some(namespace) => flat(namespace, &name),
        };
        Ok([id, name, input])
    }

    fn output(&mut self, item: &RawValue, path: &str) -> Result<(), ApiError> {
        const NAME: &str = "output";
        let [id] = required(item, path, ["call_id"])?;
        let output = output(item, path, NAME, self.without_effect)?.ok_or_else(|| missing(path, NAME))?;
        self.dialogue.tool(&id, &output);
        Ok(())
    }

    /// The thoughts themselves, or what there is of them. One without any may be kept here.
    fn reasoning(&mut self, item: &RawValue, path: &str) -> Result<(), ApiError> {
        let mut thoughts = String::new();
        for field in ["content", "summary"] {
            if thoughts.is_empty() {
                thoughts = content(item, path, field, self.without_effect)?.unwrap_or_default();
            }
        }
        let [id] = named(item, ["id"]).unwrap_or_default();
        let kept = id.filter(|_| thoughts.is_empty()).and_then(|id| self.store.item(&word(Some(id))?));
        let kept = kept.as_ref().and_then(|kept| kept.raw());
        if let Some(kept) = kept.filter(|kept| is_reasoning(kept)) {
            self.held.grow(PER_TRANSLATED_BYTE * kept.get().len())?;
            thoughts = content(kept, path, "content", &mut Vec::new())?.unwrap_or_default();
            let mut idle = Vec::new();
            ITEM.check(path, item, &mut idle)?;
            idle.into_iter().filter(|name| *name != ID).for_each(|name| note(self.without_effect, name));
        } else {
            self.checked(item, path)?;
        }
        self.dialogue.reasoning(&thoughts);
        Ok(())
    }

    fn message(&mut self, item: &RawValue, path: &str) -> Result<(), ApiError> {
        let role = named(item, ["role"]).and_then(|[role]| word(role));
        let content = self.needed(item, path)?;
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

    /// The content, which must be there: a message without one is a mistake, and no message without text.
    fn needed(&mut self, item: &RawValue, path: &str) -> Result<String, ApiError> {
        const NAME: &str = "content";
        content(item, path, NAME, self.without_effect)?.ok_or_else(|| missing(path, NAME))
    }
}

fn is_reasoning(item: &RawValue) -> bool {
    named(item, ["type"]).and_then(|[kind]| word(kind)).as_deref() == Some("reasoning")
}

fn missing(path: &str, name: &str) -> ApiError {
    let param = format!("{path}.{name}");
    ApiError::param(&param, format!("`{param}` is required"))
}

/// 404, as OpenAI has it and in its first words.
fn unknown_item(id: &str, path: &str) -> ApiError {
    let message = format!(
        "Item with id '{id}' not found. This server keeps the last {MAX_RESPONSES} responses at most, as many as --max-stored-responses has \
         room for, and none with `store` false: send the item itself in the place of its id"
    );
    let error = ApiError::param(format!("{path}.id"), message);
    ApiError { status: StatusCode::NOT_FOUND, code: Some("item_not_found"), ..error }
}
