//! A response and the events of its stream, in OpenAI's words and order. Knows no request fields but those that a response repeats.

use std::sync::Arc;

use axum::body::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::item::{prefix, text_part, thought_part, worded};
use super::request::Asked;
use super::store::{Store, Stored};
use super::{custom, names};
use crate::generation::Finish;
use crate::http::error::ApiError;
use crate::http::item_answer::{End, ItemWording, Named};
use crate::http::items::{Counts, Item, Step};

/// How a response is worded, and where it is kept.
#[derive(Debug)]
pub struct ResponseWording {
    /// Its name.
    pub id: String,
    /// When it began, in seconds since 1970.
    pub created_at: u64,
    /// The model's name.
    pub model: String,
    /// What it repeats.
    pub asked: Asked,
    /// When it ended.
    pub completed_at: Option<u64>,
    /// As it was drawn.
    pub temperature: f32,
    pub top_p: f32,
    /// Where it is kept.
    pub store: Arc<Store>,
    /// Names of items, in their order.
    pub item_ids: Vec<String>,
    /// Of the call that goes on, if its input is free text.
    pub custom_input: Option<custom::Input>,
    /// Of the next event.
    pub sequence_number: u64,
}

/// OpenAI's response object.
#[derive(Serialize)]
struct Object<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    completed_at: Option<u64>,
    status: &'static str,
    background: bool,
    error: Option<Value>,
    incomplete_details: Option<Value>,
    instructions: Option<&'a str>,
    max_output_tokens: Option<u32>,
    max_tool_calls: Option<u32>,
    metadata: Verbatim<'a>,
    model: &'a str,
    output: Vec<Value>,
    parallel_tool_calls: bool,
    previous_response_id: Option<&'a str>,
    reasoning: Verbatim<'a>,
    service_tier: &'static str,
    store: bool,
    temperature: f32,
    text: Verbatim<'a>,
    tool_choice: Verbatim<'a>,
    tools: Verbatim<'a>,
    top_logprobs: u32,
    top_p: f32,
    truncation: &'static str,
    usage: Option<Value>,
    user: Option<&'a str>,
}

/// A field of the request as it came, or its default.
#[derive(Serialize)]
#[serde(untagged)]
enum Verbatim<'a> {
    Given(&'a RawValue),
    Default(Value),
}

impl<'a> Verbatim<'a> {
    fn of(raw: &'a Option<Box<RawValue>>, default: Value) -> Self {
        raw.as_deref().map_or(Self::Default(default), Self::Given)
    }
}

#[derive(Serialize)]
struct Lifecycle<'a> {
    r#type: &'static str,
    sequence_number: u64,
    response: Object<'a>,
}

/// How far a response has come.
struct State<'a> {
    status: &'static str,
    items: &'a [Item],
    end: Option<&'a End>,
    error: Option<&'a ApiError>,
}

impl ResponseWording {
    fn object<'a>(&'a self, state: &State<'_>) -> Object<'a> {
        let is_cut_off = state.end.map_or(state.status != "completed", |end| end.cuts_off(state.items));
        let last = state.items.len().saturating_sub(1);
        let item = |(index, item): (usize, &Item)| {
            let status = if is_cut_off && index == last { "incomplete" } else { "completed" };
            worded(&self.item_ids[index], item, &self.asked.called, status)
        };
        let incomplete = state.status == "incomplete";
        Object {
            id: &self.id,
            object: "response",
            created_at: self.created_at,
            completed_at: self.completed_at.filter(|_| state.status == "completed"),
            status: state.status,
            background: false,
            error: state.error.map(|error| json!({"code": "server_error", "message": error.message})),
            incomplete_details: incomplete.then(|| json!({"reason": "max_output_tokens"})),
            instructions: self.asked.instructions.as_deref(),
            max_output_tokens: self.asked.max_output_tokens,
            max_tool_calls: None,
            metadata: Verbatim::of(&self.asked.metadata, json!({})),
            model: &self.model,
            output: state.items.iter().enumerate().map(item).collect(),
            parallel_tool_calls: self.asked.parallel_tool_calls,
            previous_response_id: self.asked.previous_response_id.as_deref(),
            reasoning: Verbatim::of(&self.asked.reasoning, json!({"effort": null, "summary": null})),
            service_tier: "default",
            store: self.asked.store,
            temperature: self.temperature,
            text: Verbatim::of(&self.asked.text, json!({"format": {"type": "text"}})),
            tool_choice: Verbatim::of(&self.asked.tool_choice, json!("auto")),
            tools: Verbatim::of(&self.asked.tools, json!([])),
            top_logprobs: 0,
            top_p: self.top_p,
            truncation: "disabled",
            usage: state.end.map(|end| usage(end.counts)),
            user: None,
        }
    }

    fn event(&mut self, name: &'static str, fields: Value) -> Named {
        let mut event = json!({"type": name, "sequence_number": self.next_number()});
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
            event.extend(fields);
        }
        (name, event.to_string())
    }

    fn next_number(&mut self) -> u64 {
        self.sequence_number += 1;
        self.sequence_number - 1
    }

    /// An event with the whole response.
    fn lifecycle(&mut self, name: &'static str, state: &State<'_>) -> Named {
        let sequence_number = self.next_number();
        let event = Lifecycle { r#type: name, sequence_number, response: self.object(state) };
        (name, written(&event))
    }

    /// The response's JSON, kept if it is to be.
    fn finished(&mut self, end: &End, items: &[Item]) -> &'static str {
        let status = if end.finish == Finish::Length { "incomplete" } else { "completed" };
        self.completed_at = Some(super::now());
        self.name_items(items);
        let mut dialogue = std::mem::take(&mut self.asked.dialogue);
        // The model began a new message.
        dialogue.end_turn();
        for item in items {
            match item {
                Item::Reasoning(text) => dialogue.reasoning(text),
                Item::Text(text) => dialogue.answer(text),
                Item::Call { id, name, arguments } => dialogue.call(id, name, arguments),
            }
        }
        if self.asked.store {
            let response = written(&self.object(&State { status, items, end: Some(end), error: None }));
            // Without the room that it grew into, which would not be counted.
            let response = Bytes::from(response.into_bytes().into_boxed_slice());
            // What it says of itself must be true.
            self.asked.store = self.store.keep(self.id.clone(), Stored::new(response, dialogue));
        }
        status
    }

    fn name_items(&mut self, items: &[Item]) {
        for (index, item) in items.iter().enumerate().skip(self.item_ids.len()) {
            self.item_ids.push(names::item(prefix(item, &self.asked.called), &self.id, index));
        }
    }

    /// An item begins, and its part.
    fn begin(&mut self, index: usize, item: &Item) -> Vec<Named> {
        self.custom_input = self.is_custom(item).then(custom::Input::default);
        let part = match item {
            Item::Reasoning(_) => Some(thought_part("")),
            Item::Text(_) => Some(text_part("")),
            Item::Call { .. } => None,
        };
        let item = worded(&self.item_ids[index], item, &self.asked.called, "in_progress");
        let mut events = vec![self.event("response.output_item.added", json!({"output_index": index, "item": item}))];
        if let Some(part) = part {
            events.push(self.of_part("response.content_part.added", index, json!({"part": part})));
        }
        events
    }

    /// An item goes on. What arguments have around a free text shows nothing.
    fn more(&mut self, index: usize, item: &Item, text: String) -> Option<Named> {
        Some(match item {
            Item::Reasoning(_) => self.of_part("response.reasoning_text.delta", index, json!({"delta": text})),
            Item::Text(_) => self.of_part("response.output_text.delta", index, json!({"delta": text, "logprobs": []})),
            Item::Call { .. } => match &mut self.custom_input {
                Some(input) => {
                    let more = input.push(&text);
                    return self.more_input(index, more);
                }
                None => self.of_item("response.function_call_arguments.delta", index, json!({"delta": text})),
            },
        })
    }

    fn more_input(&mut self, index: usize, input: String) -> Option<Named> {
        (!input.is_empty())
            .then(|| self.of_item("response.custom_tool_call_input.delta", index, json!({"delta": input})))
    }

    fn done(&mut self, index: usize, item: &Item, status: &str) -> Vec<Named> {
        let mut events = match item {
            Item::Reasoning(text) => vec![
                self.of_part("response.reasoning_text.done", index, json!({"text": text})),
                self.of_part("response.content_part.done", index, json!({"part": thought_part(text)})),
            ],
            Item::Text(text) => vec![
                self.of_part("response.output_text.done", index, json!({"text": text, "logprobs": []})),
                self.of_part("response.content_part.done", index, json!({"part": text_part(text)})),
            ],
            Item::Call { name, arguments, .. } => match self.custom_input.take() {
                Some(input) => {
                    let rest = self.more_input(index, input.rest(arguments));
                    let done = json!({"input": custom::input(arguments)});
                    let done = self.of_item("response.custom_tool_call_input.done", index, done);
                    rest.into_iter().chain([done]).collect()
                }
                None => {
                    let fields = json!({"name": self.asked.called.parts(name).1, "arguments": arguments});
                    vec![self.of_item("response.function_call_arguments.done", index, fields)]
                }
            },
        };
        let item = worded(&self.item_ids[index], item, &self.asked.called, status);
        events.push(self.event("response.output_item.done", json!({"output_index": index, "item": item})));
        events
    }

    fn is_custom(&self, item: &Item) -> bool {
        matches!(item, Item::Call { name, .. } if self.asked.called.is_custom(name))
    }

    fn of_item(&mut self, name: &'static str, index: usize, more: Value) -> Named {
        let mut fields = json!({"item_id": self.item_ids[index], "output_index": index});
        if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
            fields.extend(more);
        }
        self.event(name, fields)
    }

    /// An item has one part at most.
    fn of_part(&mut self, name: &'static str, index: usize, mut more: Value) -> Named {
        more["content_index"] = 0.into();
        self.of_item(name, index, more)
    }
}

impl ItemWording for ResponseWording {
    /// OpenAI's, undocumented.
    fn keep_alive(&mut self) -> Named {
        self.event("keepalive", json!({}))
    }

    fn opening(&mut self) -> Vec<Named> {
        let state = State { status: "in_progress", items: &[], end: None, error: None };
        vec![self.lifecycle("response.created", &state), self.lifecycle("response.in_progress", &state)]
    }

    fn step(&mut self, step: Step, items: &[Item], is_cut_off: bool) -> Vec<Named> {
        match step {
            Step::Begin(index) => {
                self.name_items(&items[..=index]);
                self.begin(index, &items[index])
            }
            Step::More(index, text) => self.more(index, &items[index], text).into_iter().collect(),
            Step::End(index) => self.done(index, &items[index], if is_cut_off { "incomplete" } else { "completed" }),
        }
    }

    fn end(&mut self, end: &End, items: &[Item]) -> Vec<Named> {
        let status = self.finished(end, items);
        let name = if status == "completed" { "response.completed" } else { "response.incomplete" };
        vec![self.lifecycle(name, &State { status, items, end: Some(end), error: None })]
    }

    fn failed(&mut self, error: &ApiError, items: &[Item]) -> Vec<Named> {
        self.name_items(items);
        vec![self.lifecycle("response.failed", &State { status: "failed", items, end: None, error: Some(error) })]
    }

    fn whole(&mut self, end: &End, items: &[Item]) -> String {
        let status = self.finished(end, items);
        written(&self.object(&State { status, items, end: Some(end), error: None }))
    }
}

fn usage(counts: Counts) -> Value {
    let Counts { prompt, cached, output, reasoning } = counts;
    // What is written to the prefix cache costs nothing here, and is not counted.
    json!({
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + output,
    })
}

/// JSON of what has no keys but strings, which cannot fail. What is repeated as it came may have ends of lines between its values, which
/// events cannot have.
fn written(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    if text.contains(['\r', '\n']) { text.replace(['\r', '\n'], " ") } else { text }
}
