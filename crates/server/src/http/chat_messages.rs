//! The conversation of a chat request: messages, tools and what the template is told. Knows the template, no sampling.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use super::App;
use super::error::ApiError;
use super::fields::Fields;
use super::memory::Held;
use super::text_queue::TextQueue;
use crate::served::ServedModel;
use crate::text::{ChatRequest, TextError};

/// The fields of a request that the chat template sees.
#[derive(Debug)]
pub struct Conversation(ChatRequest);

impl Conversation {
    /// Takes the fields and checks what a template would only stumble over. They stay text: a tree of a conversation is
    /// many times as large.
    pub fn take(fields: &mut Fields, app: &App) -> Result<Self, ApiError> {
        let messages = fields.raw("messages").ok_or_else(|| ApiError::param("messages", "`messages` is required"))?;
        check_messages(&messages)?;
        let continue_final_message = fields.flag("continue_final_message")?;
        let add_generation_prompt = fields.optional("add_generation_prompt")?;
        if continue_final_message && add_generation_prompt == Some(true) {
            let message = "`continue_final_message` and `add_generation_prompt` exclude each other: set one of them";
            return Err(ApiError::param("continue_final_message", message));
        }
        if fields.flag("add_special_tokens")? {
            return Err(ApiError::unsupported("add_special_tokens", "the chat template writes them"));
        }
        let mut kwargs = take_kwargs(fields)?;
        let template = take_template(fields, &mut kwargs, app)?;
        if let Some(effort) = fields.raw("reasoning_effort") {
            kwargs.entry("reasoning_effort".to_owned()).or_insert(effort);
        }
        let documents = fields.raw("documents");
        if let Some(documents) = &documents {
            items("documents", documents)?;
        }
        Ok(Self(ChatRequest {
            messages,
            tools: take_tools(fields)?,
            documents,
            add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
            continue_final_message,
            kwargs,
            template,
        }))
    }

    /// The prompt's tokens.
    pub async fn tokenize(
        self,
        queue: &TextQueue,
        held: &Held,
        model: &Arc<ServedModel>,
    ) -> Result<Vec<u32>, ApiError> {
        let model = Arc::clone(model);
        let bytes = self.0.messages.get().len();
        let render = move || {
            let prompt = model.chat_template.prompt(&model.tokenizer, &self.0);
            prompt.map_err(|error| {
                let is_its_own = self.0.template.is_some();
                let param = match error {
                    TextError::TemplateSyntax { .. } | TextError::TemplateLimit(_) if is_its_own => "chat_template",
                    _ => "messages",
                };
                ApiError::from(error).about(param)
            })
        };
        queue.render(bytes, held, render).await
    }
}

/// Takes `chat_template_kwargs`, each value as its text.
fn take_kwargs(fields: &mut Fields) -> Result<BTreeMap<String, Box<RawValue>>, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    let Some(raw) = fields.raw(NAME) else { return Ok(BTreeMap::new()) };
    serde_json::from_str(raw.get()).map_err(|_| ApiError::param(NAME, format!("`{NAME}` must be an object")))
}

/// Takes the request's own template, by either of the names that vLLM knows. Templates are programs: as in vLLM, the server runs
/// only its own ones unless it was told otherwise.
fn take_template(
    fields: &mut Fields,
    kwargs: &mut BTreeMap<String, Box<RawValue>>,
    app: &App,
) -> Result<Option<String>, ApiError> {
    let among_kwargs = kwargs.remove("chat_template").filter(|raw| raw.get() != "null");
    let (name, raw) = match (among_kwargs, fields.raw("chat_template")) {
        (Some(raw), _) => ("chat_template_kwargs.chat_template", raw),
        (None, Some(raw)) => ("chat_template", raw),
        (None, None) => return Ok(None),
    };
    if !app.config.trust_request_chat_template {
        let message = format!(
            "`{name}` brings a chat template, but this server was started without --trust-request-chat-template and renders \
             only its own: leave it out, or start the server with that flag"
        );
        return Err(ApiError::param(name, message));
    }
    match serde_json::from_str(raw.get()) {
        Ok(template) => Ok(Some(template)),
        Err(_) => Err(ApiError::param(name, format!("`{name}` must be a string, a Jinja template"))),
    }
}

/// The values of a list, as text.
fn items<'a>(name: &str, raw: &'a RawValue) -> Result<Vec<&'a RawValue>, ApiError> {
    serde_json::from_str(raw.get()).map_err(|_| ApiError::param(name, format!("`{name}` must be a list")))
}

fn parse(path: &str, raw: &RawValue) -> Result<Value, ApiError> {
    serde_json::from_str(raw.get())
        .map_err(|error| ApiError::param(path, format!("`{path}` is not valid: {error}, counted from its beginning")))
}

/// There are messages; each is an object with a role, and its content is text.
fn check_messages(raw: &RawValue) -> Result<(), ApiError> {
    let messages = items("messages", raw)?;
    if messages.is_empty() {
        return Err(ApiError::param("messages", "`messages` must hold at least one message"));
    }
    messages.iter().enumerate().try_for_each(|(at, message)| check_message(message, &format!("messages[{at}]")))
}

fn check_message(message: &RawValue, path: &str) -> Result<(), ApiError> {
    let Ok(fields) = serde_json::from_str::<BTreeMap<String, &RawValue>>(message.get()) else {
        return Err(ApiError::param(path, format!("`{path}` must be an object with `role` and `content`")));
    };
    if !fields.get("role").is_some_and(|role| is_string(role)) {
        let param = format!("{path}.role");
        return Err(ApiError::param(&param, format!("`{param}` must be a string such as \"user\"")));
    }
    let param = format!("{path}.content");
    match fields.get("content") {
        None => Ok(()),
        Some(content) if content.get() == "null" || is_string(content) => Ok(()),
        Some(content) => {
            let Ok(parts) = items(&param, content) else {
                return Err(ApiError::param(&param, format!("`{param}` must be a string or a list of text parts")));
            };
            parts.iter().enumerate().try_for_each(|(at, part)| check_part(part, &format!("{param}[{at}]")))
        }
    }
}

fn is_string(raw: &RawValue) -> bool {
    serde_json::from_str::<String>(raw.get()).is_ok()
}

fn check_part(part: &RawValue, path: &str) -> Result<(), ApiError> {
    let part = parse(path, part)?;
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
fn take_tools(fields: &mut Fields) -> Result<Option<Box<RawValue>>, ApiError> {
    let tools = fields.raw("tools");
    if let Some(tools) = &tools {
        let tools = items("tools", tools)?;
        for (at, tool) in tools.iter().enumerate() {
            if !parse(&format!("tools[{at}]"), tool)?.pointer("/function/name").is_some_and(Value::is_string) {
                let param = format!("tools[{at}].function.name");
                return Err(ApiError::param(&param, format!("`{param}` must be a string")));
            }
        }
        if tools.is_empty() {
            return Err(ApiError::param("tools", "`tools` must not be empty: leave it out to offer none"));
        }
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
