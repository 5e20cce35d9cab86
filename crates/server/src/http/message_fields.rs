//! The messages of a chat request: what they, their parts and their calls may hold. Knows OpenAI's messages and what clients send back with
//! them, no template.

use serde_json::value::RawValue;

use super::error::ApiError;
use super::field_names::{Unsupported, nearest};
use super::fields::asks_for_nothing;
use super::raw::{self, MAX_ENTRIES, each, is_string, named, only, unknown};

/// Fields of messages: those of OpenAI's API, and what servers and libraries add to an answer, which comes back with it.
const OF_MESSAGE: &[&str] = &[
    "annotations",
    "cache_control",
    "content",
    "id",
    "metadata",
    "name",
    "parsed",
    "provider_specific_fields",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "refusal",
    "role",
    "thinking_blocks",
    "tool_call_id",
    "tool_calls",
];

/// Fields of messages that ask for what this server cannot do.
const REFUSED: &[Unsupported] = &[
    ("audio", "{}", "only text is read"),
    ("function_call", "null", "use `tool_calls`"),
    ("images", "[]", "only text is read"),
    ("prefix", "false", "use `continue_final_message`"),
];

const OF_PART: &[&str] = &["annotations", "cache_control", "citations", "id", "index", "text", "type"];

const OF_CALL: &[&str] = &["custom", "function", "id", "index", "provider_specific_fields", "type"];

const OF_FUNCTION: &[&str] = &["arguments", "name", "parsed_arguments", "provider_specific_fields"];

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
        ApiError::unknown_field(&self.path, nearest(&self.name, OF_MESSAGE.iter().copied()))
    }
}

/// There are messages, not too many; each is an object with a role, and its content is text. Tells the first field that nobody knows.
pub fn check(raw: &RawValue) -> Result<Option<Stranger>, ApiError> {
    let (mut stranger, mut entries) = (None, 0);
    let messages = each("messages", raw, |at, message| {
        let path = format!("messages[{at}]");
        entries += 1 + check_message(message, &path)?;
        if entries > MAX_ENTRIES {
            return Err(raw::too_many("messages", "messages, parts and calls together"));
        }
        if stranger.is_none() {
            stranger = strange(message, path)?;
        }
        Ok(())
    })?;
    match messages {
        0 => Err(ApiError::param("messages", "`messages` must hold at least one message")),
        _ => Ok(stranger),
    }
}

/// A field of the message that nobody knows.
fn strange(message: &RawValue, path: String) -> Result<Option<Stranger>, ApiError> {
    let is_refused = |name: &str| REFUSED.iter().any(|row| row.0 == name);
    let Some(name) = unknown(message, |name| OF_MESSAGE.contains(&name) || is_refused(name)) else { return Ok(None) };
    let path = format!("{path}.{name}");
    Ok(Some(Stranger { name, path }))
}

/// The number of its parts and calls.
fn check_message(message: &RawValue, path: &str) -> Result<usize, ApiError> {
    let Some([role, content, calls]) = named(message, ["role", "content", "tool_calls"]) else {
        return Err(ApiError::param(path, format!("`{path}` must be an object with `role` and `content`")));
    };
    if !role.is_some_and(is_string) {
        let param = format!("{path}.role");
        return Err(ApiError::param(&param, format!("`{param}` must be a string such as \"user\"")));
    }
    let refused = named(message, REFUSED_NAMES).unwrap_or_default();
    for ((name, neutral, advice), raw) in REFUSED.iter().zip(refused) {
        if raw.is_some_and(|raw| !asks_for_nothing(raw, neutral)) {
            return Err(ApiError::unsupported(&format!("{path}.{name}"), advice));
        }
    }
    let param = format!("{path}.content");
    let parts = match content.map(|content| (content, content.get().as_bytes()[0])) {
        None => 0,
        Some((text, b'"')) => raw::text(text, &param).map(|_| 0)?,
        Some((parts, b'[')) => each(&param, parts, |at, part| check_part(part, &format!("{param}[{at}]")))?,
        Some(_) => {
            return Err(ApiError::param(&param, format!("`{param}` must be a string or a list of text parts")));
        }
    };
    let param = format!("{path}.tool_calls");
    let calls = calls.map(|calls| each(&param, calls, |at, call| check_call(call, &format!("{param}[{at}]"))));
    Ok(parts + calls.transpose()?.unwrap_or(0))
}

const REFUSED_NAMES: [&str; REFUSED.len()] = [REFUSED[0].0, REFUSED[1].0, REFUSED[2].0, REFUSED[3].0];

fn check_part(part: &RawValue, path: &str) -> Result<(), ApiError> {
    if is_string(part) {
        return raw::text(part, path).map(|_| ());
    }
    let [kind, text] = named(part, ["type", "text"]).unwrap_or_default();
    match kind.and_then(|kind| serde_json::from_str::<String>(kind.get()).ok()).as_deref() {
        Some("text") => match text.filter(|text| is_string(text)) {
            Some(text) => {
                raw::text(text, &format!("{path}.text"))?;
                only(path, part, OF_PART)
            }
            None => Err(ApiError::param(format!("{path}.text"), format!("`{path}.text` must be a string"))),
        },
        Some(kind) => {
            let param = format!("{path}.type");
            let message = format!("`{param}` is {kind:?}, but this server reads only text parts");
            Err(ApiError::param(param, message))
        }
        None => Err(ApiError::param(path, format!("`{path}` must be a part such as {{\"type\": \"text\", …}}"))),
    }
}

/// What a call holds besides, the template reads.
fn check_call(call: &RawValue, path: &str) -> Result<(), ApiError> {
    only(path, call, OF_CALL)?;
    let [kind, function] = named(call, ["type", "function"]).unwrap_or_default();
    if kind.is_some_and(|kind| is_string(kind) && kind.get() != r#""function""#) {
        return Err(ApiError::unsupported(&format!("{path}.type"), "only calls of functions are read"));
    }
    match function {
        Some(function) => only(&format!("{path}.function"), function, OF_FUNCTION),
        None => Ok(()),
    }
}
