//! Renders a conversation into a prompt with the checkpoint's Jinja template, as transformers does. Knows no HTTP request.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value as JinjaValue};
use regex::Regex;
use serde_json::{Map, Value};

use super::special::read_object;
use super::tokenizer::{Source, Tokenizer};
use super::{TextError, mistral_chat, python, python_json};

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
}

#[derive(Debug)]
enum Format {
    /// A Jinja template, and under `tool_use` maybe another one for requests with tools.
    Jinja { environment: Box<Environment<'static>>, variables: Vec<(String, String)>, source: String },
    /// The instruction format of a tekken.json's version.
    Mistral,
    /// The checkpoint has none: every conversation is refused.
    Missing { dir: PathBuf },
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

impl ChatTemplate {
    /// Takes `override_text`, or chat_template.jinja, or `chat_template` in tokenizer_config.json, or Mistral's own format where there is only
    /// a tekken.json. A checkpoint without any is no error until somebody chats.
    pub fn from_dir(dir: &Path, tokenizer: &Tokenizer, override_text: Option<&str>) -> Result<Self, TextError> {
        let (templates, origin) = match override_text {
            Some(text) => (vec![(DEFAULT.to_owned(), text.to_owned())], "--chat-template".to_owned()),
            None => find_templates(dir)?,
        };
        if templates.is_empty() {
            let format = match &tokenizer.source {
                Source::Tekken(_) => Format::Mistral,
                Source::HuggingFace(_) => Format::Missing { dir: dir.to_owned() },
            };
            return Ok(Self { format, content_format: ContentFormat::Parts });
        }
        let mut environment = Box::new(environment());
        let source = templates.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("\n");
        for (name, text) in templates {
            environment
                .add_template_owned(name, without_generation_tags(&text))
                .map_err(|e| TextError::TemplateSyntax { origin: origin.clone(), reason: describe(&e) })?;
        }
        let variables = tokenizer.special_tokens().iter().map(|(n, t)| (n.to_owned(), t.to_owned())).collect();
        let format = Format::Jinja { environment, variables, source };
        let mut template = Self { format, content_format: ContentFormat::String };
        template.content_format = template.detect_content_format();
        Ok(template)
    }

    /// Whether messages' content may stay a list of parts.
    pub fn content_format(&self) -> ContentFormat {
        self.content_format
    }

    /// The prompt of a conversation as the server needs it: messages adapted to the template, rendered and tokenized.
    pub fn prompt(&self, tokenizer: &Tokenizer, input: &ChatInput) -> Result<Vec<u32>, TextError> {
        let messages: Vec<Value> = input.messages.iter().map(|m| self.adapt(m)).collect();
        let input = ChatInput { messages: &messages, ..input.clone() };
        match (&self.format, &tokenizer.source) {
            (Format::Mistral, Source::Tekken(tekken)) => mistral_chat::encode(tekken, &input),
            _ => tokenizer.encode(&self.render(&input)?, false),
        }
    }

    /// The prompt's text, exactly as transformers' `apply_chat_template` renders the given messages.
    pub fn render(&self, input: &ChatInput) -> Result<String, TextError> {
        let (environment, variables, source) = match &self.format {
            Format::Jinja { environment, variables, source } => (environment, variables, source),
            Format::Missing { dir } => return Err(TextError::NoChatTemplate { dir: dir.clone() }),
            Format::Mistral => return Err(refuse("a tekken.json model's prompt has no text form, only tokens")),
        };
        if input.continue_final_message && input.add_generation_prompt {
            return Err(refuse("continue_final_message and add_generation_prompt exclude each other"));
        }
        let mut messages: Vec<Value> = input.messages.iter().map(alias_reasoning).collect();
        let continued = match input.continue_final_message {
            true => Some(tag_final_message(&mut messages, source)?),
            false => None,
        };
        let mut context: Vec<(&str, JinjaValue)> = variables.iter().map(|(n, t)| (n.as_str(), t.into())).collect();
        context.extend(input.kwargs.iter().map(|(name, v)| (name.as_str(), JinjaValue::from(Serde(v)))));
        context.extend([
            ("messages", JinjaValue::from(Serde(&messages))),
            ("tools", JinjaValue::from(Serde(input.tools))),
            ("documents", JinjaValue::from(Serde(input.documents))),
            ("add_generation_prompt", input.add_generation_prompt.into()),
        ]);
        let name = [TOOL_USE, DEFAULT]
            .into_iter()
            .skip(usize::from(input.tools.is_none()))
            .find(|name| environment.get_template(name).is_ok())
            .ok_or_else(|| refuse("the checkpoint has several chat templates, but none named default"))?;
        let context = JinjaValue::from_pairs(context);
        // The template engine panics on some legal input, such as the reverse of an empty list (minijinja 3.0.5).
        let render = || environment.get_template(name).and_then(|template| template.render(context));
        let rendered = catch_unwind(AssertUnwindSafe(render))
            .map_err(|_| refuse("the template engine failed on this conversation"))?
            .map_err(|e| TextError::Template(describe(&e)))?;
        match continued {
            Some(text) => cut_at_tag(&rendered, &text),
            None => Ok(rendered),
        }
    }

    /// What vLLM does to messages before rendering: text parts become one string where the template wants one, and the
    /// arguments of past tool calls become objects.
    fn adapt(&self, message: &Value) -> Value {
        let mut message = message.clone();
        if self.content_format == ContentFormat::String
            && let Some(Value::Array(parts)) = message.get("content")
            && let Some(texts) = parts.iter().map(part_text).collect::<Option<Vec<_>>>()
        {
            message["content"] = texts.join("\n").into();
        }
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let arguments = call.get_mut("function").and_then(|f| f.get_mut("arguments"));
            if let Some(arguments) = arguments
                && let Some(parsed) = arguments.as_str().and_then(|text| serde_json::from_str(text).ok())
                && matches!(self.format, Format::Jinja { .. })
            {
                *arguments = parsed;
            }
        }
        message
    }

    /// A template takes parts if it renders a list of one text part like the text itself.
    fn detect_content_format(&self) -> ContentFormat {
        const PROBE: &str = "a probe of the content format";
        let render = |content: Value| {
            let messages = [serde_json::json!({"role": "user", "content": content})];
            self.render(&ChatInput::new(&messages))
        };
        let as_text = render(PROBE.into());
        let as_parts = render(serde_json::json!([{"type": "text", "text": PROBE}]));
        match (as_text, as_parts) {
            (Ok(text), Ok(parts)) if text == parts && text.contains(PROBE) => ContentFormat::Parts,
            (Err(_), Ok(parts)) if parts.contains(PROBE) && !parts.contains("'type'") => ContentFormat::Parts,
            _ => ContentFormat::String,
        }
    }
}

fn refuse(reason: &str) -> TextError {
    TextError::Template(reason.to_owned())
}

/// The text of a text part; `None` for images and the like.
pub(super) fn part_text(part: &Value) -> Option<&str> {
    part.as_str().or_else(|| part.get("text")?.as_str())
}

/// The checkpoint's templates by name, and the file that they come from.
fn find_templates(dir: &Path) -> Result<(Vec<(String, String)>, String), TextError> {
    let file = dir.join("chat_template.jinja");
    match std::fs::read_to_string(&file) {
        Ok(text) => return Ok((vec![(DEFAULT.to_owned(), text)], file.display().to_string())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(TextError::Read { path: file, source }),
    }
    let file = dir.join("tokenizer_config.json");
    let config = read_object(&file)?.unwrap_or_default();
    let named =
        |entry: &Value| Some((entry.get("name")?.as_str()?.to_owned(), entry.get("template")?.as_str()?.to_owned()));
    let templates = match config.get("chat_template") {
        Some(Value::String(text)) => vec![(DEFAULT.to_owned(), text.clone())],
        Some(Value::Array(list)) => {
            list.iter().map(named).collect::<Option<Vec<_>>>().ok_or_else(|| TextError::Invalid {
                path: file.clone(),
                reason: "chat_template is a list, and each entry must have a name and a template".to_owned(),
            })?
        }
        _ => Vec::new(),
    };
    Ok((templates, file.display().to_string()))
}

/// The environment that transformers' `_compile_jinja_template` sets up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the standard delimiters"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(python::method);
    environment.add_filter("tojson", python_json::tojson);
    minijinja_contrib::add_to_environment(&mut environment);
    environment.add_filter("count", python::length);
    environment.add_filter("length", python::length);
    environment.add_filter("default", python::default);
    environment.add_filter("d", python::default);
    environment.add_filter("indent", python::indent);
    environment.set_formatter(python::write);
    environment.add_test("iterable", |value: JinjaValue| python::is_iterable(&value));
    environment.add_test("sequence", |value: JinjaValue| python::is_sequence(&value));
    environment.add_function("raise_exception", |message: String| -> Result<JinjaValue, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
    });
    environment.add_function("strftime_now", |format: String| {
        jiff::fmt::strtime::format(&format, &jiff::Zoned::now())
            .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
    });
    environment
}

/// What a template said with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// The template's own words where it refused, else what went wrong and where.
fn describe(error: &Error) -> String {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = source {
        if let Some(Raised(message)) = e.downcast_ref() {
            return message.clone();
        }
        source = e.source();
    }
    error.to_string()
}

/// `{% generation %}` marks answers for training. Here its body is rendered in a scope of its own, as transformers does.
fn without_generation_tags(template: &str) -> String {
    static TAG: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").expect("a constant pattern"));
    let replace = |c: &regex::Captures| {
        let tag = if c.get(2).is_some() { "endwith" } else { "with" };
        format!("{{%{} {tag} {}%}}", &c[1], &c[3])
    };
    TAG.replace_all(template, replace).into_owned()
}

/// A message's reasoning goes by three names; transformers fills in the standard one and the one that gpt-oss reads.
fn alias_reasoning(message: &Value) -> Value {
    let Value::Object(fields) = message else { return message.clone() };
    let names = ["reasoning_content", "thinking", "reasoning"];
    let Some(reasoning) = names.iter().find_map(|name| fields.get(*name).filter(|v| !v.is_null())) else {
        return message.clone();
    };
    let mut aliased = Map::new();
    aliased.insert("thinking".to_owned(), reasoning.clone());
    aliased.extend(fields.clone());
    aliased.insert("reasoning_content".to_owned(), reasoning.clone());
    Value::Object(aliased)
}

/// Marks the end of the text that is to be continued, so that it can be found in the rendered prompt.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Appends the tag to the last message and returns that message's text.
fn tag_final_message(messages: &mut [Value], source: &str) -> Result<String, TextError> {
    let last = messages.last_mut().ok_or_else(|| refuse("continue_final_message needs a message"))?;
    if !source.contains("content") {
        return Err(refuse("continue_final_message needs a template that renders content"));
    }
    let nothing = || refuse("continue_final_message needs a final message with text content");
    let content = match last.get_mut("content") {
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
