//! `system` and `messages`, put into the conversation. Knows Anthropic's blocks, not where they come from.

use serde_json::value::RawValue;

use super::documents::{document, search_result, title};
use super::tools::Change;
use crate::http::dialogue::Dialogue;
use crate::http::error::ApiError;
use crate::http::raw::{each, is_string, named, required, text, word};
use crate::http::returned::{Form, last, note};
use crate::http::unshown;

/// Messages, and whole answers in their place.
const MESSAGE: Form = Form {
    read: &["content", "role", "type"],
    idle: &[
        "messages.container",
        "messages.context_management",
        "messages.diagnostics",
        "messages.id",
        "messages.model",
        "messages.stop_details",
        "messages.stop_reason",
        "messages.stop_sequence",
        "messages.usage",
    ],
};

const BLOCK: Form = Form {
    read: &[
        "content",
        "context",
        "data",
        "id",
        "input",
        "is_error",
        "name",
        "source",
        "text",
        "thinking",
        "title",
        "tool",
        "tool_name",
        "tool_use_id",
        "type",
    ],
    idle: &[
        "messages.content.cache_control",
        "messages.content.caller",
        "messages.content.citations",
        "messages.content.parsed_output",
        "messages.content.signature",
        "messages.content.toolset_name",
    ],
};

/// Blocks of the result of a tool that the model is not shown, by the paths that the answer's header has for them. Documents are if they are no
/// texts.
const UNSHOWN: [&str; 2] = ["messages.content.content.document", "messages.content.content.image"];

/// Begins a line with which Claude Code's instructions begin. It says nothing to the model, but has a hash that is another one in each
/// request, so that nothing after it would be found in the prefix cache.
const BILLING: &str = "x-anthropic-billing-header";

/// A conversation, and what of it the model does not see.
#[derive(Debug, Default)]
pub struct Read {
    pub dialogue: Dialogue,
    /// What of the tools changes on its way.
    pub changes: Vec<Change>,
    /// Whether the last message is one of the assistant, which the answer continues.
    pub is_begun: bool,
    pub without_effect: Vec<&'static str>,
}

/// What a message holds besides results of tools, which are messages of their own.
#[derive(Default)]
struct Said {
    thoughts: Vec<String>,
    texts: Vec<String>,
    /// Id, name and input.
    calls: Vec<(String, String, String)>,
}

impl Read {
    /// Adds what the model is told first.
    pub fn system(&mut self, raw: &RawValue) -> Result<(), ApiError> {
        self.instructions(raw, "system", Self::of_instructions)
    }

    /// Adds the messages.
    pub fn messages(&mut self, raw: &RawValue) -> Result<(), ApiError> {
        match each("messages", raw, |at, message| self.message(message, &format!("messages[{at}]")))? {
            0 => Err(ApiError::param("messages", "`messages` must hold at least one message")),
            _ => Ok(()),
        }
    }

    fn message(&mut self, message: &RawValue, path: &str) -> Result<(), ApiError> {
        let Some([role, content]) = named(message, ["role", "content"]) else {
            return Err(ApiError::param(path, format!("`{path}` must be an object with `role` and `content`")));
        };
        MESSAGE.check(path, message, &mut self.without_effect)?;
        let param = format!("{path}.content");
        let content = content.ok_or_else(|| ApiError::param(&param, format!("`{param}` is required")))?;
        let role = word(role);
        self.is_begun = role.as_deref() == Some("assistant");
        match role.as_deref() {
            Some("system") => self.instructions(content, &param, Self::of_later_instructions)?,
            Some("user") => {
                let said = self.said(content, &param, false)?;
                if !said.texts.is_empty() {
                    self.dialogue.user(&said.texts.join("\n"));
                }
            }
            Some("assistant") => {
                let Said { thoughts, texts, calls } = self.said(content, &param, true)?;
                self.is_begun &= calls.is_empty() && !texts.is_empty();
                self.dialogue.end_turn();
                for thought in thoughts {
                    self.dialogue.reasoning(&thought);
                }
                if !texts.is_empty() {
                    self.dialogue.answer(&texts.join("\n"));
                }
                for (id, name, input) in calls {
                    self.dialogue.call(&id, &name, &input);
                }
            }
            _ => {
                let param = format!("{path}.role");
                let message = format!("`{param}` must be \"user\", \"assistant\" or \"system\"");
                return Err(ApiError::param(param, message));
            }
        }
        Ok(())
    }

    /// Adds what the model is told, but for the line of [`BILLING`].
    fn instructions(&mut self, raw: &RawValue, path: &str, read: ReadBlock) -> Result<(), ApiError> {
        let mut texts = self.texts(raw, path, read)?;
        for text in texts.iter_mut().filter(|text| text.starts_with(BILLING)) {
            *text = text.split_once('\n').map_or_else(String::new, |(_, rest)| rest.to_owned());
            note(&mut self.without_effect, "system.x-anthropic-billing-header");
        }
        texts.retain(|text| !text.is_empty());
        if !texts.is_empty() {
            self.dialogue.system(&texts.join("\n"));
        }
        Ok(())
    }

    fn said(&mut self, content: &RawValue, path: &str, is_assistant: bool) -> Result<Said, ApiError> {
        let mut said = Said::default();
        if is_string(content) {
            said.texts.push(text(content, path)?);
            return Ok(said);
        }
        if !content.get().starts_with('[') {
            return Err(ApiError::param(path, format!("`{path}` must be a string or a list of blocks")));
        }
        each(path, content, |at, block| self.block(block, &format!("{path}[{at}]"), is_assistant, &mut said))?;
        Ok(said)
    }

    fn block(&mut self, block: &RawValue, path: &str, is_assistant: bool, said: &mut Said) -> Result<(), ApiError> {
        let kind = kind_of(block);
        match (kind.as_deref(), is_assistant) {
            (Some("text"), _) => {
                let [text] = required(block, path, ["text"])?;
                said.texts.push(text);
            }
            (Some("document"), false) => said.texts.push(document(block, path)?.ok_or_else(|| {
                let param = format!("{path}.source");
                ApiError::param(&param, format!("`{param}` must be a text: this server reads no other documents here"))
            })?),
            (Some("search_result"), false) => said.texts.push(search_result(block, path)?),
            (Some("thinking"), true) => {
                let [thought] = required(block, path, ["thinking"])?;
                said.thoughts.push(thought);
            }
            // Nobody but who wrote it can read it.
            (Some("redacted_thinking"), true) => note(&mut self.without_effect, "messages.content.redacted_thinking"),
            (Some("tool_use"), true) => {
                let [id, name] = required(block, path, ["id", "name"])?;
                let param = format!("{path}.input");
                let input = named(block, ["input"]).and_then(|[input]| input).map_or("{}", RawValue::get);
                if !input.starts_with('{') {
                    return Err(ApiError::param(&param, format!("`{param}` must be an object")));
                }
                said.calls.push((id, name, input.to_owned()));
            }
            (Some("tool_result"), false) => self.tool_result(block, path)?,
            (kind, _) => {
                let param = format!("{path}.type");
                let got = kind.map_or_else(|| "missing".to_owned(), |kind| format!("{kind:?}"));
                let here = if is_assistant {
                    "text, thinking and tool_use"
                } else {
                    "text, tool_result, search_result and documents that are text"
                };
                let message = format!("`{param}` is {got}, but this server reads only {here} here");
                return Err(ApiError::param(param, message));
            }
        }
        BLOCK.check(path, block, &mut self.without_effect)
    }

    fn tool_result(&mut self, block: &RawValue, path: &str) -> Result<(), ApiError> {
        let [call] = required(block, path, ["tool_use_id"])?;
        let [content, is_error] = named(block, ["content", "is_error"]).unwrap_or_default();
        let result = match content {
            Some(content) => {
                let path = format!("{path}.content");
                self.texts(content, &path, Self::of_result)?.join("\n")
            }
            None => String::new(),
        };
        // Chat's messages have no place for it; what went wrong stands in the content.
        match is_error.map(RawValue::get) {
            None | Some("false") => {}
            Some("true") => note(&mut self.without_effect, "messages.content.is_error"),
            Some(_) => {
                let param = format!("{path}.is_error");
                return Err(ApiError::param(&param, format!("`{param}` must be true or false")));
            }
        }
        self.dialogue.tool(&call, &result);
        Ok(())
    }

    /// A text, or blocks, each read so.
    fn texts(&mut self, raw: &RawValue, path: &str, read: ReadBlock) -> Result<Vec<String>, ApiError> {
        if is_string(raw) {
            return Ok(vec![text(raw, path)?]);
        }
        if !raw.get().starts_with('[') {
            return Err(ApiError::param(path, format!("`{path}` must be a string or a list of blocks")));
        }
        let mut texts = Vec::new();
        each(path, raw, |at, block| {
            let path = format!("{path}[{at}]");
            texts.extend(read(self, block, &path)?);
            BLOCK.check(&path, block, &mut self.without_effect)
        })?;
        Ok(texts)
    }

    fn of_instructions(&mut self, block: &RawValue, path: &str) -> Result<Option<String>, ApiError> {
        match kind_of(block).as_deref() {
            Some("text") => required(block, path, ["text"]).map(|[text]| Some(text)),
            _ => Err(must_be(path, "\"text\"")),
        }
    }

    /// The same in the middle of a conversation, where tools may change, too.
    fn of_later_instructions(&mut self, block: &RawValue, path: &str) -> Result<Option<String>, ApiError> {
        let removes = match kind_of(block).as_deref() {
            Some("tool_addition") => false,
            Some("tool_removal") => true,
            Some("text") => return self.of_instructions(block, path),
            _ => return Err(must_be(path, "\"text\", \"tool_addition\" or \"tool_removal\"")),
        };
        self.changes.push(Change::of(block, path, removes)?);
        Ok(None)
    }

    /// A block of the result of a tool. Clients send it with every request from then on, so that one that is no text would end the conversation:
    /// a line in its place tells the model.
    fn of_result(&mut self, block: &RawValue, path: &str) -> Result<Option<String>, ApiError> {
        let kind = kind_of(block);
        let text = match kind.as_deref() {
            Some("text") => required(block, path, ["text"]).map(|[text]| Some(text))?,
            // What a search for tools has found. The model was shown all of them, so that the name is enough.
            Some("tool_reference") => required(block, path, ["tool_name"]).map(|[name]| Some(name))?,
            Some("search_result") => Some(search_result(block, path)?),
            Some("document") => document(block, path)?,
            _ => None,
        };
        let unshown = UNSHOWN.iter().find(|path| kind.as_deref() == Some(last(path)));
        match (text, unshown) {
            (Some(text), _) => Ok(Some(text)),
            (None, Some(unshown)) => {
                note(&mut self.without_effect, unshown);
                Ok(Some(unshown::line(last(unshown), title(block).as_deref())))
            }
            (None, None) => {
                let known = "\"text\", \"tool_reference\", \"search_result\", \"document\" or \"image\"";
                Err(must_be(path, known))
            }
        }
    }
}

/// Reads a block, which may say something.
type ReadBlock = fn(&mut Read, &RawValue, &str) -> Result<Option<String>, ApiError>;

fn kind_of(block: &RawValue) -> Option<String> {
    named(block, ["type"]).and_then(|[kind]| word(kind))
}

fn must_be(path: &str, known: &str) -> ApiError {
    let param = format!("{path}.type");
    ApiError::param(&param, format!("`{param}` must be {known}: nothing else is read here"))
}
