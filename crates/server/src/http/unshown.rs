//! What tools bring besides text. Clients send it with every request from then on, so that it would end the conversation: a line in its place tells
//! the model. Knows OpenAI's parts, no template.

use serde_json::value::RawValue;

use super::error::ApiError;
use super::memory::Held;
use super::raw::{each, named, quoted, unread, visit, word};
use super::returned::last;

/// Parts by the paths that the answer's header has for them.
const PARTS: [&str; 7] = [
    "messages.content.audio_url",
    "messages.content.file",
    "messages.content.image",
    "messages.content.image_url",
    "messages.content.input_audio",
    "messages.content.input_image",
    "messages.content.video_url",
];

/// Bytes that are held for each of a conversation's when it is written anew.
const PER_WRITTEN_BYTE: usize = 2;

/// What stands in the place of something that is no text, of this kind and perhaps with this name.
pub fn line(kind: &str, name: Option<&str>) -> String {
    let name = name.map(|name| format!(" {name:?}")).unwrap_or_default();
    format!("[{kind}{name} not shown: this model reads text only]")
}

/// The path of a part that is no text.
pub fn path_of(part: &RawValue) -> Option<&'static str> {
    let kind = word(named(part, ["type"]).and_then(|[kind]| kind))?;
    PARTS.into_iter().find(|path| last(path) == kind)
}

/// The messages with a line for each such part.
pub fn written_out(messages: &RawValue, held: &mut Held) -> Result<Box<RawValue>, ApiError> {
    held.grow(PER_WRITTEN_BYTE * messages.get().len())?;
    let mut list = Vec::new();
    each("messages", messages, |_, message| {
        list.push(of_message(message)?);
        Ok(())
    })?;
    unread(format!("[{}]", list.join(",")))
}

fn of_message(message: &RawValue) -> Result<String, ApiError> {
    let content = named(message, ["content"]).and_then(|[content]| content);
    let Some(content) = content.filter(|content| content.get().starts_with('[')) else {
        return Ok(message.get().to_owned());
    };
    let mut parts = Vec::new();
    each("content", content, |_, part| {
        parts.push(match path_of(part) {
            Some(path) => {
                let kind = last(path).trim_start_matches("input_").trim_end_matches("_url");
                format!(r#"{{"type":"text","text":{}}}"#, quoted(&line(kind, None)))
            }
            None => part.get().to_owned(),
        });
        Ok(())
    })?;
    let mut fields = Vec::new();
    visit(message, |name, value| match name {
        "content" => {}
        name => fields.push(format!("{}:{}", quoted(name), value.get())),
    });
    fields.push(format!(r#""content":[{}]"#, parts.join(",")));
    Ok(format!("{{{}}}", fields.join(",")))
}
