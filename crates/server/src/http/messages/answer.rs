//! A message and the events of its stream, in Anthropic's words and order. Knows no request.

use serde_json::{Value, json};

use super::errors;
use crate::generation::Finish;
use crate::http::error::ApiError;
use crate::http::item_answer::{End, ItemWording, Named};
use crate::http::items::{Counts, Item, Step};
use crate::structured::tree;

/// What stands where Anthropic signs thoughts; clients send it back, and nothing is done with it.
const SIGNATURE: &str = "unsigned";

/// How a message is worded.
#[derive(Debug)]
pub struct MessageWording {
    id: String,
    model: String,
    /// As asked for; the model's length may leave fewer.
    max_tokens: u32,
}

impl MessageWording {
    /// One that the client has named is called as vLLM calls it, which words a chat completion.
    pub fn new(model: String, max_tokens: u32, request_id: Option<&str>) -> Self {
        let id = request_id.map(|id| format!("chatcmpl-{id}"));
        Self { id: id.unwrap_or_else(|| format!("msg_{}", uuid::Uuid::new_v4().simple())), model, max_tokens }
    }

    fn message(&self, content: Vec<Value>, stop: Option<(&str, Option<&str>)>, counts: Counts) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop.map(|stop| stop.0),
            "stop_sequence": stop.and_then(|stop| stop.1),
            "usage": usage(counts),
        })
    }

    /// Anthropic's `stop_reason` and `stop_sequence`.
    fn stop<'a>(&self, end: &'a End, items: &[Item]) -> (&'static str, Option<&'a str>) {
        let has_whole_call = items.last().is_some_and(|last| matches!(last, Item::Call { .. }) && last.is_whole());
        match &end.finish {
            Finish::Length if end.counts.output < self.max_tokens as usize => ("model_context_window_exceeded", None),
            Finish::Length => ("max_tokens", None),
            // A call that a stop string cut short must not run.
            Finish::StopString(stop) if !has_whole_call => ("stop_sequence", Some(stop)),
            _ if end.has_called => ("tool_use", None),
            Finish::StopString(stop) => ("stop_sequence", Some(stop)),
            Finish::EndToken | Finish::StopToken(_) | Finish::Abort => ("end_turn", None),
        }
    }
}

impl ItemWording for MessageWording {
    fn keep_alive(&mut self) -> Named {
        event("ping", json!({}))
    }

    fn begin(&mut self, counts: Counts) -> Vec<Named> {
        let message = self.message(Vec::new(), None, Counts { output: 0, reasoning: 0, ..counts });
        vec![event("message_start", json!({"message": message})), event("ping", json!({}))]
    }

    fn step(&mut self, step: Step, items: &[Item], _is_cut_off: bool) -> Vec<Named> {
        match step {
            Step::Begin(index) => {
                let block = match &items[index] {
                    Item::Reasoning(_) => json!({"type": "thinking", "thinking": "", "signature": ""}),
                    Item::Text(_) => json!({"type": "text", "text": ""}),
                    Item::Call { id, name, .. } => json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
                };
                vec![event("content_block_start", json!({"index": index, "content_block": block}))]
            }
            Step::More(index, text) => vec![delta(
                index,
                match &items[index] {
                    Item::Reasoning(_) => json!({"type": "thinking_delta", "thinking": text}),
                    Item::Text(_) => json!({"type": "text_delta", "text": text}),
                    Item::Call { .. } => json!({"type": "input_json_delta", "partial_json": text}),
                },
            )],
            Step::End(index) => {
                let is_thought = matches!(items[index], Item::Reasoning(_));
                let signed =
                    is_thought.then(|| delta(index, json!({"type": "signature_delta", "signature": SIGNATURE})));
                signed.into_iter().chain([event("content_block_stop", json!({"index": index}))]).collect()
            }
        }
    }

    fn end(&mut self, end: &End, items: &[Item]) -> Vec<Named> {
        let (reason, sequence) = self.stop(end, items);
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        let last = json!({"delta": delta, "usage": usage(end.counts)});
        vec![event("message_delta", last), event("message_stop", json!({}))]
    }

    fn failed(&mut self, error: &ApiError, _items: &[Item]) -> Vec<Named> {
        vec![("error", errors::to_json(error).to_string())]
    }

    fn whole(&mut self, end: &End, items: &[Item]) -> String {
        let stop = self.stop(end, items);
        let blocks = items.iter().map(|item| match item {
            Item::Reasoning(text) => json!({"type": "thinking", "thinking": text, "signature": SIGNATURE}),
            Item::Text(text) => json!({"type": "text", "text": text}),
            Item::Call { id, name, arguments } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": input(arguments)})
            }
        });
        self.message(blocks.collect(), Some(stop), end.counts).to_string()
    }
}

/// The input of a call, which must be an object: what is none, because it was cut off or the model writes no JSON, is said to be so.
fn input(arguments: &str) -> Value {
    match tree::parse(arguments) {
        Ok(input @ Value::Object(_)) => input,
        _ => json!({"unparsed_arguments": arguments}),
    }
}

fn event(name: &'static str, fields: Value) -> Named {
    let mut event = json!({"type": name});
    if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
        event.extend(fields);
    }
    (name, event.to_string())
}

fn delta(index: usize, delta: Value) -> Named {
    event("content_block_delta", json!({"index": index, "delta": delta}))
}

fn usage(counts: Counts) -> Value {
    let Counts { prompt, cached, output, reasoning } = counts;
    json!({
        "input_tokens": prompt.saturating_sub(cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
        "output_tokens_details": {"thinking_tokens": reasoning},
    })
}
