//! Blocks that are more than a text: documents, what a search has found, and images, of which there is none to see. Knows their fields, no
//! message.

use serde_json::value::RawValue;

use crate::http::error::ApiError;
use crate::http::raw::{each, is_string, named, required, text, word};

/// The text of a document, after what it is called and what is said about it. `None`: it is no text.
pub fn document(block: &RawValue, path: &str) -> Result<Option<String>, ApiError> {
    let param = format!("{path}.source");
    let [source, title, context] = named(block, ["source", "title", "context"]).unwrap_or_default();
    let source = source.ok_or_else(|| ApiError::param(&param, format!("`{param}` is required")))?;
    let mut texts = Vec::new();
    for (name, said) in [("title", title), ("context", context)] {
        if let Some(said) = said {
            texts.push(text(said, &format!("{path}.{name}"))?);
        }
    }
    let kind = named(source, ["type"]).and_then(|[kind]| word(kind));
    match kind.as_deref() {
        Some("text") => texts.extend(required(source, &param, ["data"])?),
        Some("content") => {
            let [content] = named(source, ["content"]).unwrap_or_default();
            let param = format!("{param}.content");
            let content = content.ok_or_else(|| ApiError::param(&param, format!("`{param}` is required")))?;
            let Some(content) = parts(content, &param)? else { return Ok(None) };
            texts.extend(content);
        }
        _ => return Ok(None),
    }
    Ok(Some(texts.join("\n")))
}

/// What a search has found: what it is called, where it is, and its text.
pub fn search_result(block: &RawValue, path: &str) -> Result<String, ApiError> {
    let mut texts = required(block, path, ["title", "source"])?.to_vec();
    let param = format!("{path}.content");
    let content = named(block, ["content"]).and_then(|[content]| content);
    let content = content.map(|content| parts(content, &param)).transpose()?.flatten();
    texts.extend(content.ok_or_else(|| ApiError::param(&param, format!("`{param}` must be a list of text blocks")))?);
    Ok(texts.join("\n"))
}

/// The title of a block, if it is a short text.
pub fn title(block: &RawValue) -> Option<String> {
    named(block, ["title"]).and_then(|[title]| word(title))
}

/// A text, or blocks of text. `None`: there are others among them.
fn parts(content: &RawValue, path: &str) -> Result<Option<Vec<String>>, ApiError> {
    if is_string(content) {
        return Ok(Some(vec![text(content, path)?]));
    }
    let (mut texts, mut is_text) = (Vec::new(), true);
    each(path, content, |at, part| {
        let kind = named(part, ["type"]).and_then(|[kind]| word(kind));
        is_text &= kind.as_deref() == Some("text");
        if is_text {
            texts.extend(required(part, &format!("{path}[{at}]"), ["text"])?);
        }
        Ok(())
    })?;
    Ok(is_text.then_some(texts))
}
