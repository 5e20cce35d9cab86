//! `GET /v1/responses/{id}/input_items`: the conversation that a response answers, as items. It is made of the messages that are kept, so that
//! it holds what the model was shown. Knows items and pages of them, no request's input.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use serde_json::value::RawValue;

use super::input::Reading;
use super::store::{Store, Stored};
use super::{id_of, name_of, names};
use crate::http::App;
use crate::http::dialogue::Dialogue;
use crate::http::error::ApiError;
use crate::http::fields::naming;
use crate::http::memory::Held;
use crate::http::raw::{each, named, quoted, unread, word};
use crate::http::respond::held_until_sent;
use crate::http::returned::note;

/// Bytes that are held for each of a conversation's: short messages make items that are many times as long.
const PER_LISTED_BYTE: usize = 16;

/// Items of a page, unless the client says how many, and at most.
const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 100;

/// `GET /v1/responses/{id}/input_items`
pub async fn list(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    app.generator(None)?;
    let id = id_of(id)?;
    let mut without_effect = Vec::new();
    let page = Page::take(query.as_deref().unwrap_or_default(), &mut without_effect)?;
    let stored = app.responses.get(&id).ok_or_else(|| ApiError::unknown_response(&id))?;
    let (store, mut held) = (Arc::clone(&app.responses), app.memory.hold());
    let bytes = stored.response.len() + stored.dialogue.bytes();
    held.grow(PER_LISTED_BYTE * bytes)?;
    let write = move || {
        let items = items(&id, &stored, &store, &mut held)?;
        Ok((page.write(&items)?, held))
    };
    let (list, held) = app.text.read(bytes, write).await?;
    Ok(naming(held_until_sent(vec![Bytes::from(list)], held), &without_effect))
}

/// Which of the items a client asks for.
#[derive(Debug)]
struct Page {
    limit: usize,
    /// Whether the first item comes first.
    ascends: bool,
    /// The name of the item before the first.
    after: Option<String>,
}

impl Page {
    /// Reads a query. Names and words need no other spelling in it.
    fn take(query: &str, without_effect: &mut Vec<&'static str>) -> Result<Self, ApiError> {
        let mut page = Self { limit: DEFAULT_LIMIT, ascends: false, after: None };
        for field in query.split('&').filter(|field| !field.is_empty()) {
            let (name, value) = (name_of(field), field.split_once('=').map_or("", |(_, value)| value));
            match (name, value) {
                ("order", "asc") => page.ascends = true,
                ("order", "desc") => page.ascends = false,
                ("order", _) => return Err(ApiError::param(name, "`order` must be \"asc\" or \"desc\"")),
                ("after", name) => page.after = Some(name.to_owned()),
                ("limit", limit) => {
                    let limit = limit.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                    let message = format!("`limit` must be a whole number from 1 to {MAX_LIMIT}");
                    page.limit = limit.ok_or_else(|| ApiError::param(name, message))?;
                }
                // What it asks for is not there to include. As a list it has brackets, spelled out or not.
                _ if name.split(['[', '%']).next() == Some("include") => note(without_effect, "include"),
                _ => return Err(ApiError::unknown_field(name, None)),
            }
        }
        Ok(page)
    }

    /// OpenAI's list object.
    fn write(&self, items: &[Item]) -> Result<String, ApiError> {
        let mut items: Vec<&Item> = items.iter().collect();
        if !self.ascends {
            items.reverse();
        }
        let start = match &self.after {
            None => 0,
            Some(name) => {
                let at = items.iter().position(|item| item.id == *name);
                let message = format!("`after` is {name:?}, which is no id of this list");
                1 + at.ok_or_else(|| ApiError::param("after", message))?
            }
        };
        let rest = &items[start..];
        let shown = &rest[..rest.len().min(self.limit)];
        let name = |item: Option<&&Item>| item.map_or_else(|| "null".to_owned(), |item| quoted(&item.id));
        let [first, last] = [shown.first(), shown.last()].map(name);
        let more = rest.len() > shown.len();
        let data = shown.iter().map(|item| item.json.as_str()).collect::<Vec<_>>().join(",");
        Ok(format!(r#"{{"object":"list","data":[{data}],"first_id":{first},"last_id":{last},"has_more":{more}}}"#))
    }
}

/// An item and its name.
#[derive(Debug)]
struct Item {
    id: String,
    json: String,
}

/// What the response of this name answers, in order.
fn items(response: &str, stored: &Stored, store: &Store, held: &mut Held) -> Result<Vec<Item>, ApiError> {
    let Some(all) = messages(stored.dialogue.clone())? else { return Ok(Vec::new()) };
    // The conversation goes up to the end of the answer, of which the items are kept, too.
    let mut answer = Dialogue::default();
    for item in stored.items() {
        Reading { dialogue: &mut answer, store, held, without_effect: &mut Vec::new() }.item(item, "output")?;
    }
    let answered = match messages(answer)? {
        Some(answered) => each("output", &answered, |_, _| Ok(()))?,
        None => 0,
    };
    let mut asked = Vec::new();
    each("input_items", &all, |_, message| {
        asked.push(message);
        Ok(())
    })?;
    asked.truncate(asked.len().saturating_sub(answered));
    let mut list = List { response, items: Vec::new() };
    for message in asked {
        list.message(message)?;
    }
    Ok(list.items)
}

fn messages(dialogue: Dialogue) -> Result<Option<Box<RawValue>>, ApiError> {
    dialogue.write(None).map(unread).transpose()
}

/// Items on their way into a list.
struct List<'r> {
    response: &'r str,
    items: Vec<Item>,
}

impl List<'_> {
    /// Adds what one of chat's messages says.
    fn message(&mut self, message: &RawValue) -> Result<(), ApiError> {
        let names = ["role", "content", "reasoning", "tool_calls", "tool_call_id"];
        let [role, content, thoughts, calls, call] = named(message, names).unwrap_or_default();
        let content = content.map(RawValue::get);
        match (word(role).unwrap_or_default().as_str(), content, call) {
            ("tool", Some(output), Some(call)) => {
                let call = call.get();
                self.add("fco", "function_call_output", format!(r#""call_id":{call},"output":{output}"#));
            }
            ("assistant", content, _) => {
                if let Some(text) = thoughts.map(RawValue::get) {
                    let content = format!(r#"[{{"type":"reasoning_text","text":{text}}}]"#);
                    self.add("rs", "reasoning", format!(r#""summary":[],"content":{content}"#));
                }
                if let Some(text) = content {
                    let content = format!(r#"[{{"type":"output_text","text":{text},"annotations":[],"logprobs":[]}}]"#);
                    self.add("msg", "message", format!(r#""role":"assistant","content":{content}"#));
                }
                if let Some(calls) = calls {
                    each("tool_calls", calls, |_, call| {
                        self.call(call);
                        Ok(())
                    })?;
                }
            }
            (role, Some(text), _) => {
                let content = format!(r#"[{{"type":"input_text","text":{text}}}]"#);
                self.add("msg", "message", format!(r#""role":{},"content":{content}"#, quoted(role)));
            }
            _ => {}
        }
        Ok(())
    }

    fn call(&mut self, call: &RawValue) {
        let [id, function] = named(call, ["id", "function"]).unwrap_or_default();
        let function = function.and_then(|function| named(function, ["name", "arguments"]));
        if let (Some(id), Some([Some(name), Some(arguments)])) = (id, function) {
            let [id, name, arguments] = [id, name, arguments].map(RawValue::get);
            self.add("fc", "function_call", format!(r#""call_id":{id},"name":{name},"arguments":{arguments}"#));
        }
    }

    /// Adds an item of this type with these fields. Its name begins with `kind`.
    fn add(&mut self, kind: &str, name: &str, fields: String) {
        let id = names::input_item(kind, self.response, self.items.len());
        let json = format!(r#"{{"id":"{id}","type":"{name}","status":"completed",{fields}}}"#);
        self.items.push(Item { id, json });
    }
}
