//! What an assistant thought, where other clients have it: in parts of the content, in `thinking_blocks`, in `reasoning_text`. It is put where
//! templates look for it. Knows these forms, no template.

use serde_json::value::RawValue;

use super::error::ApiError;
use super::memory::Held;
use super::raw::{self, each, is_string, named, quoted, unread, visit, word};
use super::returned::{EMPTY, Form, note};

/// Fields in which templates find it, if a message has one of them.
const OWN: [&str; 3] = ["reasoning", "reasoning_content", "thinking"];

/// Of clients of GitHub Copilot, and of LiteLLM.
const TEXT: &str = "reasoning_text";
const BLOCKS: &str = "thinking_blocks";

/// A part that nobody but who wrote it can read.
const SEALED: &str = "redacted_thinking";

/// Bytes that are held for each of a conversation's when it is written anew: thoughts stand in it twice.
const PER_GATHERED_BYTE: usize = 4;

const PART: Form = Form {
    read: &["content", "data", "reasoning", "summary", "text", "thinking", "type"],
    idle: &[
        "messages.content.cache_control",
        "messages.content.closed",
        "messages.content.encrypted_content",
        "messages.content.extras",
        "messages.content.id",
        "messages.content.index",
        "messages.content.signature",
        "messages.content.status",
    ],
};

/// Where the thoughts of a message are taken from. What stands elsewhere besides is the same again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Own,
    Text,
    Parts,
    Blocks,
}

/// The fields of a message in which thoughts may stand.
struct Places<'m> {
    has_own: bool,
    text: Option<&'m RawValue>,
    blocks: Option<&'m RawValue>,
}

impl<'m> Places<'m> {
    fn of(message: &'m RawValue) -> Self {
        let holds = |raw: &&RawValue| !EMPTY.contains(&raw.get());
        let own = named(message, OWN).unwrap_or_default();
        let [text, blocks] = named(message, [TEXT, BLOCKS]).unwrap_or_default().map(|raw| raw.filter(holds));
        Self { has_own: own.into_iter().flatten().any(|raw| holds(&raw)), text, blocks }
    }

    fn first(&self, has_parts: bool) -> Option<Place> {
        let places = [
            (self.has_own, Place::Own),
            (self.text.is_some(), Place::Text),
            (has_parts, Place::Parts),
            (self.blocks.is_some(), Place::Blocks),
        ];
        places.into_iter().find(|(is_there, _)| *is_there).map(|(_, place)| place)
    }

    /// What stands in a place that has been checked. `None`: nothing to read, or it stays where it is.
    fn thought(&self, place: Place, parts: &[&RawValue]) -> Result<Option<String>, ApiError> {
        let mut all = Vec::new();
        let mut add = |part: &RawValue| {
            all.extend(texts(part, "messages")?.unwrap_or_default());
            Ok(())
        };
        match (place, self.text, self.blocks) {
            (Place::Text, Some(text), _) => all.push(raw::text(text, TEXT)?),
            (Place::Blocks, _, Some(blocks)) => _ = each(BLOCKS, blocks, |_, block| add(block))?,
            (Place::Parts, ..) => parts.iter().try_for_each(|part| add(part))?,
            _ => {}
        }
        all.retain(|text| !text.is_empty());
        Ok((!all.is_empty()).then(|| all.join("\n")))
    }
}

/// Whether a part of a message is a thought.
pub fn is_one(part: &RawValue) -> bool {
    let kind = named(part, ["type"]).and_then(|[kind]| word(kind));
    matches!(kind.as_deref(), Some("thinking" | "reasoning" | SEALED))
}

/// Checks such a part, and counts the texts in it besides the first.
pub fn check(part: &RawValue, path: &str, without_effect: &mut Vec<&'static str>) -> Result<usize, ApiError> {
    let texts = texts(part, path)?;
    if texts.is_none() {
        note(without_effect, "messages.content.redacted_thinking");
    }
    PART.check(path, part, without_effect)?;
    Ok(texts.map_or(0, |texts| texts.len().saturating_sub(1)))
}

/// What [`check_fields`] found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Checked {
    /// Whether the message is to be written anew.
    pub moves: bool,
    /// Thoughts and texts in its blocks.
    pub num_entries: usize,
}

/// Checks the fields of a message. `has_parts`: whether parts of it are thoughts; `None` of who does not think.
pub fn check_fields(
    message: &RawValue,
    path: &str,
    has_parts: Option<bool>,
    without_effect: &mut Vec<&'static str>,
) -> Result<Checked, ApiError> {
    let places = Places::of(message);
    let first = has_parts.and_then(|has_parts| places.first(has_parts));
    let has_parts = has_parts.unwrap_or(false);
    let mut num_entries = 0;
    match (first, places.text, places.blocks) {
        (Some(Place::Text), Some(text), _) => _ = raw::text(text, &format!("{path}.{TEXT}"))?,
        (Some(Place::Blocks), _, Some(blocks)) => {
            let param = format!("{path}.{BLOCKS}");
            each(&param, blocks, |at, block| {
                let param = format!("{param}[{at}]");
                if !is_one(block) {
                    let message = format!("`{param}` must be a thought such as {{\"type\": \"thinking\", …}}");
                    return Err(ApiError::param(&param, message));
                }
                num_entries += 1 + check(block, &param, without_effect)?;
                Ok(())
            })?;
        }
        _ => {}
    }
    for (is_there, place, name) in [
        (places.text.is_some(), Place::Text, "messages.reasoning_text"),
        (has_parts, Place::Parts, "messages.content.thinking"),
        (places.blocks.is_some(), Place::Blocks, "messages.thinking_blocks"),
    ] {
        if is_there && first != Some(place) {
            note(without_effect, name);
        }
    }
    Ok(Checked { moves: has_parts || matches!(first, Some(Place::Text | Place::Blocks)), num_entries })
}

/// The same messages, which have been checked, with thoughts where templates look for them.
pub fn gathered(messages: &RawValue, held: &mut Held) -> Result<Box<RawValue>, ApiError> {
    held.grow(PER_GATHERED_BYTE * messages.get().len())?;
    let mut list = "[".to_owned();
    each("messages", messages, |at, message| {
        if at > 0 {
            list.push(',');
        }
        match written_anew(message)? {
            Some(message) => list.push_str(&message),
            None => list.push_str(message.get()),
        }
        Ok(())
    })?;
    list.push(']');
    unread(list)
}

/// A message of an assistant whose thoughts stand elsewhere.
fn written_anew(message: &RawValue) -> Result<Option<String>, ApiError> {
    let [role, content] = named(message, ["role", "content"]).unwrap_or_default();
    if word(role).as_deref() != Some("assistant") {
        return Ok(None);
    }
    let (mut said, mut parts) = (Vec::new(), Vec::new());
    if let Some(content) = content.filter(|content| content.get().starts_with('[')) {
        each("content", content, |_, part| {
            let of = if is_one(part) { &mut parts } else { &mut said };
            of.push(part);
            Ok(())
        })?;
    }
    let places = Places::of(message);
    let thought = match places.first(!parts.is_empty()) {
        None => return Ok(None),
        Some(Place::Own) if parts.is_empty() => return Ok(None),
        Some(place) => places.thought(place, &parts)?,
    };
    let mut fields = Vec::new();
    visit(message, |name, value| {
        let is_replaced = match name {
            TEXT | BLOCKS => true,
            "content" => !parts.is_empty(),
            name => OWN.contains(&name) && thought.is_some(),
        };
        if !is_replaced {
            fields.push(format!("{}:{}", quoted(name), value.get()));
        }
    });
    if !parts.is_empty() {
        let said: Vec<&str> = said.into_iter().map(RawValue::get).collect();
        fields.push(format!(r#""content":[{}]"#, said.join(",")));
    }
    if let Some(thought) = thought {
        // As in vLLM, by both names that templates know.
        let thought = quoted(&thought);
        fields.push(format!(r#""reasoning":{thought},"reasoning_content":{thought}"#));
    }
    Ok(Some(format!("{{{}}}", fields.join(","))))
}

/// The texts of a thought; `None` of one that is sealed.
fn texts(part: &RawValue, path: &str) -> Result<Option<Vec<String>>, ApiError> {
    let [kind, thinking] = named(part, ["type", "thinking"]).unwrap_or_default();
    let (name, found) = match word(kind).as_deref() {
        Some(SEALED) => return Ok(None),
        // Anthropic's and Mistral's.
        Some("thinking") => ("thinking", thinking),
        // LangChain's, the AI SDK's and OpenAI's, of which a summary may be all that there is, or nothing.
        _ => {
            const NAMES: [&str; 4] = ["reasoning", "text", "content", "summary"];
            let found = named(part, NAMES).unwrap_or_default();
            let first = NAMES.into_iter().zip(found).find(|(_, raw)| raw.is_some_and(|raw| raw.get() != "[]"));
            let Some((name, raw)) = first else { return Ok(Some(Vec::new())) };
            (name, raw)
        }
    };
    let param = format!("{path}.{name}");
    let Some(found) = found else { return Err(ApiError::param(&param, format!("`{param}` is required"))) };
    if is_string(found) {
        return Ok(Some(vec![raw::text(found, &param)?]));
    }
    if !found.get().starts_with('[') {
        return Err(ApiError::param(&param, format!("`{param}` must be a string or a list of text parts")));
    }
    let mut texts = Vec::new();
    each(&param, found, |at, part| {
        let param = format!("{param}[{at}]");
        raw::only(&param, part, &["type", "text"])?;
        let [text] = raw::required(part, &param, ["text"])?;
        texts.push(text);
        Ok(())
    })?;
    Ok(Some(texts))
}
