//! The conversation of a chat request: messages, tools and what the template is told. Knows the template, no sampling.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::Fields;
use super::prompt::blocking;
use crate::served::ServedModel;
use crate::text::ChatInput;

/// The fields of a request that the chat template sees.
#[derive(Debug)]
pub struct Conversation {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    documents: Option<Vec<Value>>,
    add_generation_prompt: bool,
    continue_final_message: bool,
    kwargs: Map<String, Value>,
}

impl Conversation {
    /// Takes the fields and checks what a template would only stumble over.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let messages: Vec<Value> = fields.required("messages")?;
        if messages.is_empty() {
            return Err(ApiError::param("messages", "`messages` must hold at least one message"));
        }
        for (at, message) in messages.iter().enumerate() {
            check_message(message, &format!("messages[{at}]"))?;
        }
        let continue_final_message = fields.flag("continue_final_message")?;
        let add_generation_prompt = fields.optional("add_generation_prompt")?;
        if continue_final_message && add_generation_prompt == Some(true) {
            let message = "`continue_final_message` and `add_generation_prompt` exclude each other: set one of them";
            return Err(ApiError::param("continue_final_message", message));
        }
        if fields.flag("add_special_tokens")? {
            return Err(ApiError::unsupported("add_special_tokens", "the chat template writes them"));
        }
        let mut kwargs: Map<String, Value> = fields.optional("chat_template_kwargs")?.unwrap_or_default();
        if let Some(effort) = fields.optional::<Value>("reasoning_effort")? {
            kwargs.entry("reasoning_effort").or_insert(effort);
        }
        Ok(Self {
            messages,
            tools: take_tools(fields)?,
            documents: fields.optional("documents")?,
            add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
            continue_final_message,
            kwargs,
        })
    }

    /// The prompt's tokens.
    pub async fn tokenize(self, model: &Arc<ServedModel>) -> Result<Vec<u32>, ApiError> {
        let model = Arc::clone(model);
        blocking(move || {
            let input = ChatInput {
                messages: &self.messages,
                tools: self.tools.as_deref(),
                documents: self.documents.as_deref(),
                add_generation_prompt: self.add_generation_prompt,
                continue_final_message: self.continue_final_message,
                kwargs: self.kwargs,
            };
            let prompt = model.chat_template.prompt(&model.tokenizer, &input);
            prompt.map_err(|error| ApiError::from(error).about("messages"))
        })
        .await
    }
}

/// A message is an object with a role, and its content is text.
fn check_message(message: &Value, path: &str) -> Result<(), ApiError> {
    let Value::Object(fields) = message else {
        return Err(ApiError::param(path, format!("`{path}` must be an object with `role` and `content`")));
    };
    if !fields.get("role").is_some_and(Value::is_string) {
        let param = format!("{path}.role");
        return Err(ApiError::param(&param, format!("`{param}` must be a string such as \"user\"")));
    }
    let param = format!("{path}.content");
    match fields.get("content") {
        None | Some(Value::Null | Value::String(_)) => Ok(()),
        Some(Value::Array(parts)) => {
            parts.iter().enumerate().try_for_each(|(at, part)| check_part(part, &format!("{param}[{at}]")))
        }
        Some(_) => Err(ApiError::param(&param, format!("`{param}` must be a string or a list of text parts"))),
    }
}

fn check_part(part: &Value, path: &str) -> Result<(), ApiError> {
    let kind = part.get("type").and_then(Value::as_str);
    match kind {
        _ if part.is_string() => Ok(()),
        Some("text") if part.get("text").is_some_and(Value::is_string) => Ok(()),
        Some("text") => Err(ApiError::param(format!("{path}.text"), format!("`{path}.text` must be a string"))),
        Some(kind) => {
            let param = format!("{path}.type");
            let message = format!("`{param}` is {kind:?}, but this server reads only text parts");
            Err(ApiError::param(param, message))
        }
        None => Err(ApiError::param(path, format!("`{path}` must be a part such as {{\"type\": \"text\", …}}"))),
    }
}

/// Takes `tools`, which the template shows to the model, and `tool_choice`, of which only letting the model choose works.
fn take_tools(fields: &mut Fields) -> Result<Option<Vec<Value>>, ApiError> {
    let tools: Option<Vec<Value>> = fields.optional("tools")?;
    for (at, tool) in tools.iter().flatten().enumerate() {
        if !tool.pointer("/function/name").is_some_and(Value::is_string) {
            let param = format!("tools[{at}].function.name");
            return Err(ApiError::param(&param, format!("`{param}` must be a string")));
        }
    }
    if tools.as_ref().is_some_and(Vec::is_empty) {
        return Err(ApiError::param("tools", "`tools` must not be empty: leave it out to offer none"));
    }
    let choice: Option<Value> = fields.optional("tool_choice")?;
    match choice.as_ref().map(|choice| choice.as_str()) {
        None | Some(Some("auto" | "none")) => Ok(tools),
        Some(_) => {
            let advice = "only \"auto\" and \"none\" are; forcing a tool needs structured output";
            Err(ApiError::unsupported("tool_choice", advice))
        }
    }
}
