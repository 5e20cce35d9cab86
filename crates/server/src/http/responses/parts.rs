//! What items say: a text, or a list of parts. Knows parts, no item.

use serde_json::value::RawValue;

use crate::http::error::ApiError;
use crate::http::raw::{each, is_string, named, text, word};
use crate::http::returned::{Form, last, note};
use crate::http::unshown;

const PART: Form = Form {
    read: &["refusal", "text", "type"],
    idle: &[
        "input.content.annotations",
        "input.content.id",
        "input.content.logprobs",
        "input.content.parsed",
        "input.content.prompt_cache_breakpoint",
    ],
};

/// Parts of a tool's output that the model is not shown, by the paths that the answer's header has for them.
const UNSHOWN: [&str; 3] = ["input.output.input_audio", "input.output.input_file", "input.output.input_image"];

/// A field that is a text or a list of parts with text.
pub fn content(
    item: &RawValue,
    path: &str,
    name: &str,
    without_effect: &mut Vec<&'static str>,
) -> Result<Option<String>, ApiError> {
    texts(item, path, name, |part, path| part_text(part, path, without_effect))
}

/// The same of what a tool has put out. Clients send it with every request from then on, so that a part that is no text would end the
/// conversation: a line in its place tells the model.
pub fn output(
    item: &RawValue,
    path: &str,
    name: &str,
    without_effect: &mut Vec<&'static str>,
) -> Result<Option<String>, ApiError> {
    texts(item, path, name, |part, path| {
        let [kind, filename] = named(part, ["type", "filename"]).unwrap_or_default();
        let kind = word(kind);
        match UNSHOWN.iter().find(|path| kind.as_deref() == Some(last(path))) {
            Some(path) => {
                note(without_effect, path);
                Ok(unshown::line(last(path).trim_start_matches("input_"), word(filename).as_deref()))
            }
            None => part_text(part, path, without_effect),
        }
    })
}

fn texts(
    item: &RawValue,
    path: &str,
    name: &str,
    mut read: impl FnMut(&RawValue, &str) -> Result<String, ApiError>,
) -> Result<Option<String>, ApiError> {
    let path = format!("{path}.{name}");
    match named(item, [name]).and_then(|[raw]| raw) {
        None => Ok(None),
        Some(raw) if is_string(raw) => text(raw, &path).map(Some),
        Some(raw) if raw.get().starts_with('[') => {
            let mut texts = Vec::new();
            each(&path, raw, |at, part| {
                texts.push(read(part, &format!("{path}[{at}]"))?);
                Ok(())
            })?;
            // As chat's parts become one text.
            Ok(Some(texts.join("\n")))
        }
        Some(_) => Err(ApiError::param(&path, format!("`{path}` must be a string or a list of parts"))),
    }
}

fn part_text(part: &RawValue, path: &str, without_effect: &mut Vec<&'static str>) -> Result<String, ApiError> {
    let Some([kind, said, refusal]) = named(part, ["type", "text", "refusal"]) else {
        return Err(ApiError::param(path, format!("`{path}` must be a part such as {{\"type\": \"input_text\", …}}")));
    };
    let (name, raw) = match word(kind).as_deref() {
        Some("input_text" | "output_text" | "text" | "reasoning_text" | "summary_text") => ("text", said),
        Some("refusal") => ("refusal", refusal),
        kind => {
            let param = format!("{path}.type");
            let got = kind.map_or_else(|| "missing".to_owned(), |kind| format!("{kind:?}"));
            return Err(ApiError::param(&param, format!("`{param}` is {got}, but this server reads only text parts")));
        }
    };
    PART.check(path, part, without_effect)?;
    let param = format!("{path}.{name}");
    match raw {
        Some(raw) => text(raw, &param),
        None => Err(ApiError::param(&param, format!("`{param}` is required"))),
    }
}
