//! `tool_choice` of a response, put into chat's form. Knows the field and what is offered, no wording.

use serde_json::value::RawValue;

use super::request::small;
use super::tools::{Offer, hosted, kind_of};
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::http::raw::{each, is_string, joined, named, object, only, quoted, text, unread, word};

/// `tool_choice`, which may name what is offered.
pub fn take_tool_choice(fields: &mut Fields, offer: &Offer) -> Result<Option<Box<RawValue>>, ApiError> {
    const NAME: &str = "tool_choice";
    let Some(raw) = small(NAME, fields.raw(NAME))? else { return Ok(None) };
    let invalid = || {
        let message = "`tool_choice` must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": …}";
        ApiError::param(NAME, message)
    };
    if is_string(&raw) {
        if !matches!(word(Some(&raw)).as_deref(), Some("none" | "auto" | "required")) {
            return Err(invalid());
        }
        fields.set(NAME, raw.clone());
        return Ok(Some(raw));
    }
    let [kind, name, mode, tools] = named(&raw, ["type", "name", "mode", "tools"]).ok_or_else(invalid)?;
    if word(kind).as_deref() == Some("allowed_tools") {
        only(NAME, &raw, &["type", "mode", "tools"])?;
        fields.set(NAME, allowed_tools(mode, tools, offer)?);
        return Ok(Some(raw));
    }
    match (word(kind).as_deref(), name.filter(|name| is_string(name))) {
        (Some("function" | "custom"), Some(name)) => {
            only(NAME, &raw, &["type", "name"])?;
            let name = text(name, "tool_choice.name")?;
            let called = quoted(offer.called(&name).unwrap_or(&name));
            fields.set(NAME, unread(format!(r#"{{"type":"function","function":{{"name":{called}}}}}"#))?);
            Ok(Some(raw))
        }
        (Some(kind), _) if !["function", "custom"].contains(&kind) => {
            let advice = "\"function\" and \"custom\" are: this server has no tools of its own";
            Err(ApiError::unsupported("tool_choice.type", advice))
        }
        _ => Err(invalid()),
    }
}

/// A choice among some of the tools, in chat's form. Those that the model is not shown are not among them.
fn allowed_tools(mode: Option<&RawValue>, tools: Option<&RawValue>, offer: &Offer) -> Result<Box<RawValue>, ApiError> {
    let mut among = Vec::new();
    if let Some(tools) = tools {
        each("tool_choice.tools", tools, |at, tool| {
            if kind_of(tool).as_deref().and_then(hosted).is_some() {
                return Ok(());
            }
            let path = format!("tool_choice.tools[{at}]");
            let [_, name] = object(&path, tool, ["type", "name"])?;
            let called = match word(name).as_deref().and_then(|name| offer.called(name)) {
                Some(called) => Some(unread(quoted(called))?),
                None => None,
            };
            let name = called.as_deref().or(name);
            among.push(format!(r#"{{"type":"function","function":{}}}"#, joined([("name", name)])));
            Ok(())
        })?;
    }
    let tools = unread(format!("[{}]", among.join(",")))?;
    let among = joined([("mode", mode), ("tools", Some(&tools))]);
    unread(format!(r#"{{"type":"allowed_tools","allowed_tools":{among}}}"#))
}
