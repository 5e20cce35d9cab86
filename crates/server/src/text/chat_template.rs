//! Renders a conversation into a prompt with the checkpoint's Jinja template, as transformers does. Knows no HTTP request.

use std::path::{Path, PathBuf};

use minijinja::value::Serde;
use minijinja::{Environment, Value as JinjaValue};
use serde_json::{Map, Value};
use vllm_apple_model::json;

use super::jinja::{describe, environment, render, without_generation_tags};
use super::system_messages::Leading;
use super::template_source::{DEFAULT, JinjaSource, TOOL_USE, TemplateSource};
use super::tokenizer::{Source, Tokenizer};
use super::{TextError, mistral_chat, text_parts};

/// A conversation and how to render it. The JSON values are those of the OpenAI API, with their keys in the order given.
#[derive(Debug, Clone, Default)]
pub struct ChatInput<'a> {
    /// The messages.
    pub messages: &'a [Value],
    /// The tools that the model may call.
    pub tools: Option<&'a [Value]>,
    /// The documents for retrieval-augmented generation.
    pub documents: Option<&'a [Value]>,
    /// End the prompt with the beginning of an answer. Off with `continue_final_message`.
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the model continues it.
    pub continue_final_message: bool,
    /// `chat_template_kwargs`: further variables such as `enable_thinking`.
    pub kwargs: Map<String, Value>,
}

impl<'a> ChatInput<'a> {
    /// The usual request: an answer to `messages`.
    pub fn new(messages: &'a [Value]) -> Self {
        Self { messages, add_generation_prompt: true, ..Self::default() }
    }
}

/// How a template wants the content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// One string.
    String,
    /// A list of parts such as `{"type": "text", "text": "…"}`, as in the OpenAI API.
    Parts,
}

/// The chat template of a checkpoint.
#[derive(Debug)]
pub struct ChatTemplate {
    format: Format,
    content_format: ContentFormat,
    /// Whether system messages are taken at the beginning only.
    system_leads: bool,
}

#[derive(Debug)]
enum Format {
    /// A Jinja template, and under `tool_use` maybe another one for requests with tools.
    Jinja(Box<Jinja>),
    /// The instruction format of a tekken.json's version.
    Mistral,
    /// The checkpoint has none: every conversation is refused.
    Missing { dir: PathBuf },
}

/// Compiled templates and what they may name.
#[derive(Debug)]
struct Jinja {
    environment: Environment<'static>,
    variables: Vec<(String, String)>,
    /// Whether any template mentions `content`.
    mentions_content: bool,
    /// Whether any knows the role of developers.
    names_developers: bool,
}

/// What a template is rendered with, as the template engine's values. The messages come one at a time: as a tree of JSON, a
/// conversation of short messages is many times as large as its text.
pub(super) struct Variables<M> {
    pub messages: M,
    pub tools: Option<JinjaValue>,
    pub documents: Option<JinjaValue>,
    pub add_generation_prompt: bool,
    pub continue_final_message: bool,
    pub kwargs: Vec<(String, JinjaValue)>,
    /// Whether later system messages are joined to the first.
    pub system_leads: bool,
}

impl ChatTemplate {
    /// Takes `override_text`, or chat_template.jinja, or `chat_template` in tokenizer_config.json, or Mistral's own format where there is only
    /// a tekken.json. A checkpoint without any is no error until somebody chats.
    pub fn from_dir(dir: &Path, tokenizer: &Tokenizer, override_text: Option<&str>) -> Result<Self, TextError> {
        match TemplateSource::find(dir, tokenizer, override_text)? {
            TemplateSource::Jinja(source) => Self::compile(&source),
            TemplateSource::Mistral => Ok(Self::without_jinja(Format::Mistral)),
            TemplateSource::Missing { dir } => Ok(Self::without_jinja(Format::Missing { dir })),
        }
    }

    fn without_jinja(format: Format) -> Self {
        Self { format, content_format: ContentFormat::Parts, system_leads: false }
    }

    /// Compiles Jinja templates and finds out how they want content.
    pub(super) fn compile(source: &JinjaSource) -> Result<Self, TextError> {
        let mut environment = environment();
        for (name, text) in &source.templates {
            environment
                .add_template_owned(name.clone(), without_generation_tags(text))
                .map_err(|e| TextError::TemplateSyntax { origin: source.origin.clone(), reason: describe(&e) })?;
        }
        let mention =
            |words: &[&str]| source.templates.iter().any(|(_, text)| words.iter().any(|word| text.contains(word)));
        let mentions_content = mention(&["content"]);
        let names_developers = mention(&["'developer'", "\"developer\""]);
        let jinja = Jinja { environment, variables: source.variables.clone(), mentions_content, names_developers };
        let mut template = Self::without_jinja(Format::Jinja(Box::new(jinja)));
        template.content_format = template.detect_content_format()?;
        template.system_leads = template.detect_system_leads()?;
        Ok(template)
    }

    /// Whether later system messages are joined to the first.
    pub(super) fn system_leads(&self) -> bool {
        self.system_leads
    }

    /// Whether messages' content may stay a list of parts.
    pub fn content_format(&self) -> ContentFormat {
        self.content_format
    }

    /// The prompt of a conversation as the server needs it: messages adapted to the template, rendered and tokenized.
    pub fn prompt(&self, tokenizer: &Tokenizer, input: &ChatInput) -> Result<Vec<u32>, TextError> {
        match (&self.format, &tokenizer.source) {
            (Format::Mistral, Source::Tekken(tekken)) => {
                let messages: Vec<_> = input.messages.iter().cloned().map(text_parts::as_text).collect();
                let input = ChatInput { messages: &messages, ..input.clone() };
                tokenizer.encode_pieces(&mistral_chat::pieces(tekken.version(), &input)?)
            }
            _ => {
                let messages = input.messages.iter().map(|message| Ok(self.adapt(message.clone())));
                let given = Variables { system_leads: self.system_leads, ..variables(input, messages) };
                tokenizer.encode(&self.render_with(given)?, false)
            }
        }
    }

    /// The prompt's text, exactly as transformers' `apply_chat_template` renders the given messages.
    pub fn render(&self, input: &ChatInput) -> Result<String, TextError> {
        self.render_with(variables(input, input.messages.iter().cloned().map(Ok)))
    }

    /// Renders messages that are given one at a time.
    pub(super) fn render_with(
        &self,
        given: Variables<impl ExactSizeIterator<Item = Result<Value, TextError>>>,
    ) -> Result<String, TextError> {
        let Jinja { environment, variables, mentions_content, .. } = match &self.format {
            Format::Jinja(jinja) => jinja.as_ref(),
            Format::Missing { dir } => return Err(TextError::NoChatTemplate { dir: dir.clone() }),
            Format::Mistral => return Err(refuse("a tekken.json model's prompt has no text form, only tokens")),
        };
        if given.continue_final_message && given.add_generation_prompt {
            return Err(refuse("continue_final_message and add_generation_prompt exclude each other"));
        }
        if given.continue_final_message && !mentions_content {
            return Err(refuse("continue_final_message needs a template that renders content"));
        }
        let (mut continued, mut leading) = (None, Leading::default());
        let mut messages = Vec::with_capacity(given.messages.len());
        let last = given.messages.len().wrapping_sub(1);
        for (at, message) in given.messages.enumerate() {
            let mut message = alias_reasoning(without_nulls(message?));
            if given.continue_final_message && at == last {
                continued = Some(tag_message(&mut message)?);
            } else if given.system_leads {
                let Some(other) = leading.take(message) else { continue };
                message = other;
            }
            messages.push(JinjaValue::from(Serde(&message)));
        }
        if let Some(message) = leading.message() {
            messages.insert(0, JinjaValue::from(Serde(&message)));
        }
        if given.continue_final_message && messages.is_empty() {
            return Err(refuse("continue_final_message needs a message"));
        }
        let name = [TOOL_USE, DEFAULT]
            .into_iter()
            .skip(usize::from(given.tools.is_none()))
            .find(|name| environment.get_template(name).is_ok())
            .ok_or_else(|| refuse("the checkpoint has several chat templates, but none named default"))?;
        let mut context: Vec<(&str, JinjaValue)> = variables.iter().map(|(n, t)| (n.as_str(), t.into())).collect();
        context.extend(given.kwargs.iter().map(|(name, value)| (name.as_str(), value.clone())));
        context.extend([
            ("messages", JinjaValue::from(messages)),
            ("tools", given.tools.unwrap_or(JinjaValue::from(()))),
            ("documents", given.documents.unwrap_or(JinjaValue::from(()))),
            ("add_generation_prompt", given.add_generation_prompt.into()),
        ]);
        let rendered = render(environment, name, JinjaValue::from_pairs(context))?;
        match continued {
            Some(text) => cut_at_tag(&rendered, &text),
            None => Ok(rendered),
        }
    }

    /// What vLLM does to messages before rendering: texts go by one name, text parts become one string where the template wants one and in
    /// results of tools, no content becomes an empty one, an empty list of calls none, the arguments of past calls become objects, and who is a
    /// developer to no template is the system.
    pub(super) fn adapt(&self, message: Value) -> Value {
        let mut message = text_parts::as_text(message);
        let Some(fields) = message.as_object_mut() else { return message };
        let wants_string = self.content_format == ContentFormat::String;
        if (wants_string || fields.get("role").is_some_and(|role| role == "tool"))
            && let Some(Value::Array(parts)) = fields.get("content")
            && let Some(texts) = parts.iter().map(part_text).collect::<Option<Vec<_>>>()
        {
            let text = texts.join("\n");
            fields.insert("content".to_owned(), text.into());
        }
        if wants_string && fields.get("content").is_none_or(Value::is_null) {
            fields.insert("content".to_owned(), "".into());
        }
        let names_developers = matches!(&self.format, Format::Jinja(jinja) if jinja.names_developers);
        if !names_developers && fields.get("role").is_some_and(|role| role == "developer") {
            fields.insert("role".to_owned(), "system".into());
        }
        if fields.get("tool_calls").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            fields.shift_remove("tool_calls");
        }
        let calls = fields.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            if let Some(Value::Object(function)) = call.get_mut("function") {
                adapt_arguments(function);
            }
        }
        message
    }

    /// A template takes parts if it renders a list of one text part like the text itself. It may refuse either, but one that
    /// exceeds a limit on a single short message is good for nothing.
    fn detect_content_format(&self) -> Result<ContentFormat, TextError> {
        const PROBE: &str = "a probe of the content format";
        let render = |content: Value| {
            let messages = [serde_json::json!({"role": "user", "content": content})];
            match self.render(&ChatInput::new(&messages)) {
                Err(limit @ TextError::TemplateLimit(_)) => Err(limit),
                rendered => Ok(rendered),
            }
        };
        let as_text = render(PROBE.into())?;
        let as_parts = render(serde_json::json!([{"type": "text", "text": PROBE}]))?;
        Ok(match (as_text, as_parts) {
            (Ok(text), Ok(parts)) if text == parts && text.contains(PROBE) => ContentFormat::Parts,
            (Err(_), Ok(parts)) if parts.contains(PROBE) && !parts.contains("'type'") => ContentFormat::Parts,
            _ => ContentFormat::String,
        })
    }

    /// A template takes system messages anywhere if it renders one between those of users; most that do not refuse it, some lose it.
    fn detect_system_leads(&self) -> Result<bool, TextError> {
        const PROBE: &str = "a probe of later system messages";
        let messages = [("system", "a"), ("user", "b"), ("system", PROBE), ("user", "c")];
        let messages =
            messages.map(|(role, content)| self.adapt(serde_json::json!({"role": role, "content": content})));
        match self.render(&ChatInput::new(&messages)) {
            Err(limit @ TextError::TemplateLimit(_)) => Err(limit),
            rendered => Ok(!rendered.is_ok_and(|text| text.contains(PROBE))),
        }
    }
}

/// A call's arguments, which the API has as a text of JSON. Templates go through their names: what is no object, such as the text of an
/// answer that was cut off, is an empty one, as in vLLM.
fn adapt_arguments(function: &mut Map<String, Value>) {
    let parsed = match function.get("arguments") {
        Some(Value::Object(_)) => return,
        Some(Value::String(text)) => json::parse(text.as_bytes()).ok().filter(Value::is_object),
        _ => None,
    };
    let arguments = parsed.unwrap_or_else(|| Value::Object(Map::new()));
    function.insert("arguments".to_owned(), arguments);
}

/// What `input` gives a template besides its messages.
fn variables<M>(input: &ChatInput, messages: M) -> Variables<M> {
    Variables {
        messages,
        tools: input.tools.map(|tools| JinjaValue::from(Serde(tools))),
        documents: input.documents.map(|documents| JinjaValue::from(Serde(documents))),
        add_generation_prompt: input.add_generation_prompt,
        continue_final_message: input.continue_final_message,
        kwargs: input.kwargs.iter().map(|(name, value)| (name.clone(), JinjaValue::from(Serde(value)))).collect(),
        system_leads: false,
    }
}

fn refuse(reason: &str) -> TextError {
    TextError::Template(reason.to_owned())
}

/// The text of a text part; `None` for images and the like.
pub(super) fn part_text(part: &Value) -> Option<&str> {
    part.as_str().or_else(|| part.get("text")?.as_str())
}

/// transformers drops a message's fields of no value: templates ask whether a field is there, and would write `None`.
fn without_nulls(mut message: Value) -> Value {
    if let Value::Object(fields) = &mut message {
        fields.retain(|_, value| !value.is_null());
    }
    message
}

/// A message's reasoning goes by three names; transformers fills in the standard one and the one that gpt-oss reads.
fn alias_reasoning(message: Value) -> Value {
    let Value::Object(fields) = message else { return message };
    let names = ["reasoning_content", "thinking", "reasoning"];
    let Some(reasoning) = names.iter().find_map(|name| fields.get(*name).cloned()) else {
        return Value::Object(fields);
    };
    let mut aliased = Map::new();
    aliased.insert("thinking".to_owned(), reasoning.clone());
    aliased.extend(fields);
    aliased.insert("reasoning_content".to_owned(), reasoning);
    Value::Object(aliased)
}

/// Marks the end of the text that is to be continued, so that it can be found in the rendered prompt.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Appends the tag to a message and returns the message's text.
fn tag_message(message: &mut Value) -> Result<String, TextError> {
    let nothing = || refuse("continue_final_message needs a final message with text content");
    let content = match message.get_mut("content") {
        Some(Value::Array(parts)) => {
            parts.iter_mut().rev().find_map(|part| part.get_mut("text")).ok_or_else(nothing)?
        }
        Some(content) => content,
        None => return Err(nothing()),
    };
    let text = content.as_str().ok_or_else(nothing)?.to_owned();
    *content = format!("{text}{TAG}").into();
    Ok(text)
}

/// The rendered prompt up to the tag; where the template trimmed the tag's space, trailing white space is trimmed too.
fn cut_at_tag(rendered: &str, text: &str) -> Result<String, TextError> {
    let tag = rendered.rfind(TAG.trim_end()).filter(|_| rendered.contains(text.trim()));
    let at = tag.ok_or_else(|| refuse("the chat template drops the final message, so it cannot be continued"))?;
    let kept = &rendered[..at];
    Ok(if rendered[at..].starts_with(TAG) { kept } else { kept.trim_end() }.to_owned())
}
