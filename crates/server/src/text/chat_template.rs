//! Renders a conversation into a prompt with the checkpoint's Jinja template, as transformers does. Knows no HTTP request.

mod harmony;
mod probes;

use std::path::{Path, PathBuf};

use minijinja::value::Serde;
use minijinja::{Environment, Value as JinjaValue};
use serde_json::{Map, Value, json};
use vllm_apple_model::json;
use vllm_apple_parsers::ToolFormat;

use self::harmony::{SingleCalls, THOUGHTS};
use super::jinja::{describe, environment, render, without_generation_tags};
use super::system_messages::{Leading, Leads};
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
    /// A list of parts such as `{"type": "text", "text": "…"}`, as in the OpenAI API, or one string.
    Parts,
    /// A list of parts always: it loses a string, or refuses it.
    PartsAlone,
}

/// The chat template of a checkpoint.
#[derive(Debug)]
pub struct ChatTemplate {
    format: Format,
    content_format: ContentFormat,
    order: Order,
    /// Whether what gpt-oss' own template cannot say is put otherwise.
    is_harmony: bool,
    /// Whether an assistant's text is put behind its thoughts where it calls.
    joins_said: bool,
    /// Whether functions that have no description get an empty one.
    describes: bool,
}

/// How messages are put in another order for a template.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Order {
    leads: Leads,
    /// Each message has one call at most.
    single_calls: bool,
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
    pub order: Order,
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
        Self {
            format,
            content_format: ContentFormat::Parts,
            order: Order::default(),
            is_harmony: false,
            joins_said: false,
            describes: false,
        }
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
        let is_harmony = |text: &str| ToolFormat::of_template(text) == Some(ToolFormat::Harmony);
        template.is_harmony = source.templates.iter().any(|(_, text)| is_harmony(text));
        template.describes = mention(&["description"]);
        template.find_out()?;
        Ok(template)
    }

    /// How messages are put for it.
    pub(super) fn order(&self) -> Order {
        self.order
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
                let tools = input.tools.map(|tools| self.adapt_tools(tools.to_vec().into()));
                let tools = tools.as_ref().map(|tools| JinjaValue::from(Serde(tools)));
                let given = Variables { order: self.order, tools, ..variables(input, messages) };
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
        let (mut continued, mut leading) = (None, Leading::new(given.order.leads));
        let mut calls = given.order.single_calls.then(SingleCalls::default);
        let mut messages = Vec::with_capacity(given.messages.len());
        let mut add = |message: &Value| messages.push(JinjaValue::from(Serde(message)));
        let last = given.messages.len().wrapping_sub(1);
        for (at, message) in given.messages.enumerate() {
            let mut message = alias_reasoning(without_nulls(message?));
            if given.continue_final_message && at == last {
                continued = Some(tag_message(&mut message)?);
            } else {
                let Some(other) = leading.take(message) else { continue };
                message = other;
            }
            match &mut calls {
                Some(calls) => calls.take(message).iter().for_each(&mut add),
                None => add(&message),
            }
        }
        calls.into_iter().flat_map(|mut calls| calls.finish()).for_each(|message| add(&message));
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
    /// results of tools, a string becomes a part where it wants these, no content becomes an empty one, thoughts have vLLM's name, too, an empty list of
    /// calls becomes none, the arguments of past calls become objects, and who is a developer to no template is the system.
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
        if self.content_format == ContentFormat::PartsAlone {
            let parts = match fields.get_mut("content").map(Value::take) {
                Some(Value::String(text)) => json!([{"type": "text", "text": text}]),
                None | Some(Value::Null) => json!([]),
                Some(parts) => parts,
            };
            fields.insert("content".to_owned(), parts);
        }
        let thoughts = THOUGHTS.iter().filter_map(|name| fields.get(*name)).find(|thoughts| !thoughts.is_null());
        if let Some(thoughts) = thoughts.cloned() {
            fields.insert("reasoning".to_owned(), thoughts);
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
        if self.joins_said {
            harmony::join_said(fields);
        }
        message
    }

    /// Fills in what tools do not say, which some templates take for said: that they are functions, that they have no parameters, and no description.
    /// What is `null` stays so where it can, as in vLLM.
    pub(super) fn adapt_tools(&self, mut tools: Value) -> Value {
        for tool in tools.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            if tool.get("type").is_none_or(Value::is_null) {
                tool.shift_insert(0, "type".to_owned(), "function".into());
            }
            let Some(Value::Object(function)) = tool.get_mut("function") else { continue };
            let nothing = || json!({"type": "object", "properties": {}});
            function.entry("parameters").or_insert_with(nothing);
            if self.describes && function.get("description").is_none_or(Value::is_null) {
                function.insert("description".to_owned(), "".into());
            }
            if self.is_harmony {
                harmony::defaults_as_text(function);
            }
        }
        tools
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
        order: Order::default(),
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
    let Some(reasoning) = THOUGHTS.iter().find_map(|name| fields.get(*name).cloned()) else {
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
