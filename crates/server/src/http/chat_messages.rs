//! The conversation of a chat request: messages, tools and what the template is told. Knows the template, no sampling.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::error::ApiError;
use super::fields::{Fields, Object};
use super::memory::Held;
use super::message_fields::{self, Unread};
use super::raw::{each, named, word};
use super::returned::{last, note};
use super::text_queue::TextQueue;
use super::tools::Tools;
use super::{thoughts, unshown};
use crate::served::ServedModel;
use crate::text::{ChatRequest, Rendered, TextError, Tokenizer};

/// vLLM's words for how much a model should think. Templates take what they do not know as nothing.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// The fields of a request that the chat template sees.
#[derive(Debug)]
pub struct Conversation {
    request: ChatRequest,
    /// What may be called.
    pub tools: Tools,
    /// Fields that are variables of the template.
    pub variables: Vec<Variable>,
    /// Fields of messages that only the template may know.
    unread: Unread,
}

/// A field that changes nothing, unless the template reads it.
#[derive(Debug)]
pub struct Variable {
    /// Its name.
    pub field: &'static str,
    /// What the template may call it.
    names: Vec<String>,
}

impl Conversation {
    /// Takes the fields and checks what a template would only stumble over. They stay text: a tree of a conversation is
    /// many times as large.
    pub fn take(fields: &mut Fields, trusts_template: bool) -> Result<Self, ApiError> {
        let mut messages =
            fields.raw("messages").ok_or_else(|| ApiError::param("messages", "`messages` is required"))?;
        let mut unread = message_fields::check(&messages)?;
        if unread.has_thoughts_elsewhere {
            messages = thoughts::gathered(&messages, &mut fields.held)?;
        }
        if unread.has_unshown {
            messages = unshown::written_out(&messages, &mut fields.held)?;
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
        let mut kwargs = take_kwargs(fields)?;
        let template = take_template(fields, &mut kwargs, trusts_template)?;
        let of_kwargs = |name: &String| Variable { field: "chat_template_kwargs", names: vec![name.clone()] };
        let mut variables: Vec<_> = kwargs.keys().map(of_kwargs).collect();
        // Other servers' names of the same.
        for name in ["enable_thinking", "think"] {
            if let Some(thinks) = fields.optional::<bool>(name)? {
                let thinks = if thinks { "true" } else { "false" };
                let raw = RawValue::from_string(thinks.to_owned()).expect("it is JSON");
                kwargs.entry("enable_thinking".to_owned()).or_insert(raw);
                variables.push(Variable { field: name, names: vec!["enable_thinking".to_owned()] });
            }
        }
        // DeepSeek's and others' object; templates do without what they leave to the model.
        if let Some(thinking) = fields.raw("thinking") {
            let thinks = match word(named(&thinking, ["type"]).and_then(|[kind]| kind)).as_deref() {
                Some("enabled") => Some("true"),
                Some("disabled") => Some("false"),
                Some("auto" | "adaptive") => None,
                _ => {
                    let message = "`thinking.type` must be \"enabled\", \"disabled\" or \"auto\"";
                    return Err(ApiError::param("thinking.type", message));
                }
            };
            if named(&thinking, ["budget_tokens"]).is_some_and(|[budget]| budget.is_some()) {
                note(&mut unread.without_effect, "thinking.budget_tokens");
            }
            if let Some(thinks) = thinks {
                let raw = RawValue::from_string(thinks.to_owned()).expect("it is JSON");
                kwargs.entry("enable_thinking".to_owned()).or_insert(raw);
                variables.push(Variable { field: "thinking", names: vec!["enable_thinking".to_owned()] });
            }
        }
        if let Some(effort) = fields.raw("reasoning_effort") {
            if !word(Some(&effort)).is_some_and(|effort| EFFORTS.contains(&&*effort)) {
                let message = format!("`reasoning_effort` must be one of {}", EFFORTS.join(", "));
                return Err(ApiError::param("reasoning_effort", message));
            }
            // As in vLLM: templates know the one or the other. Whether to think is said by `chat_template_kwargs` first, how much by this.
            let thinks = if effort.get() == r#""none""# { "false" } else { "true" };
            let raw = RawValue::from_string(thinks.to_owned()).expect("it is JSON");
            kwargs.entry("enable_thinking".to_owned()).or_insert(raw);
            if kwargs.insert("reasoning_effort".to_owned(), effort).is_some() {
                note(&mut unread.without_effect, "chat_template_kwargs.reasoning_effort");
            }
            let names = ["enable_thinking", "reasoning_effort"].map(str::to_owned).to_vec();
            variables.push(Variable { field: "reasoning_effort", names });
        }
        let documents = fields.raw("documents");
        if let Some(documents) = &documents {
            each("documents", documents, |_, _| Ok(()))?;
        }
        let mut tools = Tools::take(fields)?;
        let request = ChatRequest {
            messages,
            tools: tools.raw.take(),
            documents,
            add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
            continue_final_message,
            kwargs,
            template,
        };
        Ok(Self { request, tools, variables, unread })
    }

    /// Fields that change nothing, as the template does not read them either.
    pub fn without_effect(&self, model: &ServedModel) -> Vec<&'static str> {
        if self.unread.without_effect.is_empty() && self.variables.is_empty() {
            return Vec::new();
        }
        let names = model.chat_template.names(self.request.template.as_deref());
        let is_read = |variable: &Variable| variable.names.iter().any(|name| names.has_variable(name));
        let mut idle = Vec::new();
        for variable in self.variables.iter().filter(|variable| !is_read(variable)) {
            note(&mut idle, variable.field);
        }
        idle.extend(self.unread.without_effect.iter().filter(|path| !names.has_field(last(path))));
        idle
    }

    /// The tokens of a prompt.
    pub async fn tokenize(
        self,
        queue: &TextQueue,
        held: &Held,
        model: &Arc<ServedModel>,
    ) -> Result<Vec<u32>, ApiError> {
        self.tokenize_by(Arc::clone(&model.tokenizer), queue, held, model).await
    }

    /// The same by a tokenizer that takes texts of another length.
    pub async fn tokenize_by(
        self,
        tokenizer: Arc<Tokenizer>,
        queue: &TextQueue,
        held: &Held,
        model: &Arc<ServedModel>,
    ) -> Result<Vec<u32>, ApiError> {
        let request = self.request;
        let own = request.template.as_deref();
        if !self.unread.strangers.is_empty() {
            let names = model.chat_template.names(own);
            if let Some(stranger) = self.unread.strangers.iter().find(|stranger| !names.has_field(&stranger.name)) {
                return Err(stranger.refused());
            }
        }
        if request.tools.is_some() && !model.chat_template.shows_tools(own) {
            let message = "the model's chat template does not show tools to the model, which would not know of them: leave `tools` out, or \
                           start the server with a --chat-template that shows them";
            return Err(ApiError::param("tools", message));
        }
        let documents = request.documents.as_ref().filter(|documents| documents.get() != "[]");
        if documents.is_some() && !model.chat_template.names(own).has_variable("documents") {
            let message = "the model's chat template does not show documents to the model: write them into a message, or start the server \
                           with a --chat-template that shows them";
            return Err(ApiError::param("documents", message));
        }
        let given = [Some(&request.messages), request.tools.as_ref(), request.documents.as_ref()];
        let raw = given.into_iter().flatten().chain(request.kwargs.values());
        let bytes = raw.map(|raw| raw.get().len()).sum::<usize>() + request.template.as_ref().map_or(0, String::len);
        let (renders, writes) = (Arc::clone(model), Arc::clone(&tokenizer));
        let render = move || {
            let rendered = renders.chat_template.write(&writes, &request);
            rendered.map_err(|error| {
                let is_its_own = request.template.is_some();
                let param = match error {
                    TextError::TemplateSyntax { .. } | TextError::TemplateLimit(_) if is_its_own => "chat_template",
                    _ => "messages",
                };
                ApiError::from(error).about(param)
            })
        };
        let rendered = queue.render(bytes, held, render).await?;
        // A template may write far more than it was given, and many may wait for their turn.
        let mut written = held.beside();
        written.grow(rendered.bytes())?;
        let (bytes, weighs) = (rendered.bytes(), Arc::clone(&tokenizer));
        let weigh = move |(_, rendered): &(Held, Rendered)| rendered.normalized_len(&weighs);
        let encode = move |(_written, rendered): (Held, Rendered)| {
            rendered.encode(&tokenizer).map_err(|error| ApiError::from(error).about("messages"))
        };
        queue.tokenize(bytes, held, (written, rendered), weigh, encode).await
    }
}

/// Takes `chat_template_kwargs`, each value as its text.
fn take_kwargs(fields: &mut Fields) -> Result<BTreeMap<String, Box<RawValue>>, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    let Object(kwargs) = fields.optional(NAME)?.unwrap_or_default();
    for name in ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"] {
        if kwargs.contains_key(name) {
            let message = format!("`{NAME}` has `{name}`, which is a field of the request itself: send it there");
            return Err(ApiError::param(format!("{NAME}.{name}"), message));
        }
    }
    Ok(kwargs)
}

/// Takes the request's own template, by either of the names that vLLM knows. Templates are programs: as in vLLM, the server runs
/// only its own ones unless it was told otherwise.
fn take_template(
    fields: &mut Fields,
    kwargs: &mut BTreeMap<String, Box<RawValue>>,
    trusts_template: bool,
) -> Result<Option<String>, ApiError> {
    let among_kwargs = kwargs.remove("chat_template").filter(|raw| raw.get() != "null");
    let (name, raw) = match (among_kwargs, fields.raw("chat_template")) {
        (Some(raw), _) => ("chat_template_kwargs.chat_template", raw),
        (None, Some(raw)) => ("chat_template", raw),
        (None, None) => return Ok(None),
    };
    if !trusts_template {
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
