//! The messages of a chat request: what they, their parts and their calls may hold. Knows OpenAI's messages and what clients send back with
//! them, no template.

use serde_json::value::RawValue;

use super::error::ApiError;
use super::field_names::Unsupported;
use super::fields::asks_for_nothing;
use super::raw::{self, MAX_ENTRIES, each, is_string, named, visit};
use super::returned::{Form, note};
use super::{thoughts, unshown};

const MESSAGE: Form = Form {
    // Thoughts go by several names. A refusal is text that stands elsewhere. Those of `REFUSED` may ask for nothing.
    read: &[
        "audio",
        "content",
        "function_call",
        "images",
        "prefix",
        "reasoning",
        "reasoning_content",
        "reasoning_text",
        "refusal",
        "role",
        "thinking",
        "thinking_blocks",
        "tool_call_id",
        "tool_calls",
    ],
    idle: &[
        "messages.annotations",
        "messages.cache_control",
        "messages.copilot_cache_control",
        "messages.extra_content",
        "messages.id",
        "messages.is_error",
        "messages.metadata",
        "messages.name",
        "messages.parsed",
        "messages.phase",
        "messages.provider_specific_fields",
        "messages.reasoning_details",
        "messages.reasoning_items",
        "messages.reasoning_opaque",
        "messages.tool_name",
    ],
};

/// Fields of messages that ask for what this server cannot do.
const REFUSED: &[Unsupported] = &[
    ("audio", "{}", "only text is read"),
    ("function_call", "null", "use `tool_calls`"),
    ("images", "[]", "only text is read"),
    ("prefix", "false", "use `continue_final_message`"),
];

const PART: Form = Form {
    read: &["refusal", "text", "type"],
    idle: &[
        "messages.content.annotations",
        "messages.content.cache_control",
        "messages.content.citations",
        "messages.content.extras",
        "messages.content.id",
        "messages.content.index",
        "messages.content.logprobs",
        "messages.content.phase",
        "messages.content.prompt_cache_breakpoint",
    ],
};

const CALL: Form = Form {
    read: &["function", "id", "type"],
    idle: &[
        "messages.tool_calls.custom",
        "messages.tool_calls.extra_content",
        "messages.tool_calls.index",
        "messages.tool_calls.provider_specific_fields",
    ],
};

const FUNCTION: Form = Form {
    read: &["arguments", "name"],
    idle: &[
        "messages.tool_calls.function.parsed_arguments",
        "messages.tool_calls.function.provider_specific_fields",
        "messages.tool_calls.function.thought_signature",
    ],
};

/// Most names of fields that only a template may know: none reads as many.
const MAX_STRANGERS: usize = 16;

/// A field of a message that nobody knows, unless the template reads it.
#[derive(Debug)]
pub struct Stranger {
    /// Its name.
    pub name: String,
    path: String,
}

impl Stranger {
    /// The refusal of it.
    pub fn refused(&self) -> ApiError {
        MESSAGE.refused(&self.path, &self.name)
    }
}

/// Fields of messages that are not read here.
#[derive(Debug, Default)]
pub struct Unread {
    /// Those that nobody knows, each name once.
    pub strangers: Vec<Stranger>,
    /// Those that change nothing, unless the template reads them.
    pub without_effect: Vec<&'static str>,
    /// Whether thoughts stand where no template looks for them: [`thoughts::gathered`] puts them there.
    pub has_thoughts_elsewhere: bool,
    /// Whether tools have brought what is no text: [`unshown::written_out`] says so to the model.
    pub has_unshown: bool,
}

/// There are messages, not too many; each is an object with a role, and its content is text.
pub fn check(raw: &RawValue) -> Result<Unread, ApiError> {
    let (mut unread, mut entries, mut is_of_tools) = (Unread::default(), 0, false);
    let messages = each("messages", raw, |at, message| {
        let path = format!("messages[{at}]");
        // Some clients put what a tool brings into a message of the user, behind its result and by itself.
        let [role, content] = named(message, ["role", "content"]).unwrap_or_default();
        is_of_tools = match raw::word(role).as_deref() {
            Some("tool") => true,
            Some("user") => is_of_tools && content.is_some_and(holds_no_text),
            _ => false,
        };
        entries += 1 + unread.check_message(message, &path, is_of_tools)?;
        if entries > MAX_ENTRIES {
            return Err(raw::too_many("messages", "messages, parts and calls together"));
        }
        Ok(())
    })?;
    match messages {
        0 => Err(ApiError::param("messages", "`messages` must hold at least one message")),
        _ => Ok(unread),
    }
}

impl Unread {
    /// The number of its parts and calls, and of texts in them.
    fn check_message(&mut self, message: &RawValue, path: &str, is_of_tools: bool) -> Result<usize, ApiError> {
        let Some([role, content, calls, refusal]) = named(message, ["role", "content", "tool_calls", "refusal"]) else {
            return Err(must_be(path, "an object with `role` and `content`"));
        };
        if !role.is_some_and(is_string) {
            let param = format!("{path}.role");
            return Err(ApiError::param(&param, format!("`{param}` must be a string such as \"user\"")));
        }
        self.check_names(message, path)?;
        if let Some(refusal) = refusal {
            raw::text(refusal, &format!("{path}.refusal"))?;
            // Without other content it is what the assistant said.
            if content.or(calls).is_some() {
                note(&mut self.without_effect, "messages.refusal");
            }
        }
        let is_assistant = raw::word(role).as_deref() == Some("assistant");
        let (mut num_thoughts, mut texts) = (0, 0);
        let param = format!("{path}.content");
        let parts = match content.map(|content| (content, content.get().as_bytes()[0])) {
            None => 0,
            Some((text, b'"')) => raw::text(text, &param).map(|_| 0)?,
            Some((parts, b'[')) => each(&param, parts, |at, part| {
                let path = format!("{param}[{at}]");
                if let Some(kind) = unshown::path_of(part).filter(|_| is_of_tools) {
                    note(&mut self.without_effect, kind);
                    self.has_unshown = true;
                    return Ok(());
                }
                if !is_assistant || !thoughts::is_one(part) {
                    return self.check_part(part, &path, is_assistant);
                }
                num_thoughts += 1;
                texts += thoughts::check(part, &path, &mut self.without_effect)?;
                Ok(())
            })?,
            Some(_) => {
                return Err(ApiError::param(&param, format!("`{param}` must be a string or a list of text parts")));
            }
        };
        let thinks = is_assistant.then_some(num_thoughts > 0);
        let thought = thoughts::check_fields(message, path, thinks, &mut self.without_effect)?;
        self.has_thoughts_elsewhere |= thought.moves;
        let param = format!("{path}.tool_calls");
        let calls = calls.map(|calls| each(&param, calls, |at, call| self.check_call(call, &format!("{param}[{at}]"))));
        Ok(parts + texts + thought.num_entries + calls.transpose()?.unwrap_or(0))
    }

    /// What its fields are called.
    fn check_names(&mut self, message: &RawValue, path: &str) -> Result<(), ApiError> {
        let mut refused = None;
        visit(message, |name, value| {
            let row = REFUSED.iter().find(|row| row.0 == name);
            refused = refused.or(row.filter(|row| !asks_for_nothing(value, row.1)));
        });
        if let Some((name, _, advice)) = refused {
            return Err(ApiError::unsupported(&format!("{path}.{name}"), advice));
        }
        let Self { strangers, without_effect, .. } = self;
        MESSAGE.strangers(message, without_effect, |name| {
            if strangers.len() <= MAX_STRANGERS && !strangers.iter().any(|stranger| stranger.name == name) {
                strangers.push(Stranger { name: name.to_owned(), path: format!("{path}.{name}") });
            }
        });
        if strangers.len() > MAX_STRANGERS {
            return Err(strangers[MAX_STRANGERS].refused());
        }
        Ok(())
    }

    fn check_part(&mut self, part: &RawValue, path: &str, can_refuse: bool) -> Result<(), ApiError> {
        if is_string(part) {
            return raw::text(part, path).map(|_| ());
        }
        let [kind, text, refusal] = named(part, ["type", "text", "refusal"]).unwrap_or_default();
        let kind = kind.and_then(|kind| serde_json::from_str::<String>(kind.get()).ok());
        let (name, text) = match kind.as_deref() {
            // Responses have other names of it, as vLLM knows.
            Some("text" | "input_text" | "output_text") => ("text", text),
            Some("refusal") if can_refuse => ("refusal", refusal),
            Some(kind) => {
                let param = format!("{path}.type");
                let message = format!("`{param}` is {kind:?}, but this server reads only text parts");
                return Err(ApiError::param(param, message));
            }
            None => {
                return Err(ApiError::param(
                    path,
                    format!("`{path}` must be a part such as {{\"type\": \"text\", …}}"),
                ));
            }
        };
        let param = format!("{path}.{name}");
        match text {
            Some(text) => raw::text(text, &param)?,
            None => return Err(ApiError::param(&param, format!("`{param}` must be a string"))),
        };
        PART.check(path, part, &mut self.without_effect)
    }

    /// What a call holds besides, the template reads.
    fn check_call(&mut self, call: &RawValue, path: &str) -> Result<(), ApiError> {
        let Some([kind, id, function]) = named(call, ["type", "id", "function"]) else {
            return Err(must_be(path, "an object with `type`, `id` and `function`"));
        };
        if kind.is_some_and(|kind| kind.get() != r#""function""#) {
            return Err(ApiError::unsupported(&format!("{path}.type"), "only calls of functions are read"));
        }
        if let Some(id) = id {
            raw::text(id, &format!("{path}.id"))?;
        }
        CALL.check(path, call, &mut self.without_effect)?;
        let path = format!("{path}.function");
        let Some(function) = function else { return Err(ApiError::param(&path, format!("`{path}` is required"))) };
        let Some([name, arguments]) = named(function, ["name", "arguments"]) else {
            return Err(must_be(&path, "an object with `name` and `arguments`"));
        };
        match name {
            Some(name) => raw::text(name, &format!("{path}.name"))?,
            None => return Err(ApiError::param(format!("{path}.name"), format!("`{path}.name` is required"))),
        };
        // Some libraries send the object that OpenAI's API has as text.
        match arguments {
            Some(arguments) if is_string(arguments) => {
                raw::text(arguments, &format!("{path}.arguments")).map(|_| ())?
            }
            Some(arguments) if !arguments.get().starts_with('{') => {
                return Err(must_be(&format!("{path}.arguments"), "a string of JSON, or an object"));
            }
            _ => {}
        }
        FUNCTION.check(&path, function, &mut self.without_effect)
    }
}

/// Whether a content has parts, but no text.
fn holds_no_text(content: &RawValue) -> bool {
    let mut all = true;
    content.get().starts_with('[')
        && each("content", content, |_, part| {
            all &= unshown::path_of(part).is_some();
            Ok(())
        })
        .is_ok_and(|parts| parts > 0 && all)
}

fn must_be(path: &str, what: &str) -> ApiError {
    ApiError::param(path, format!("`{path}` must be {what}"))
}
