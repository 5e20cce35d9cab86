//! The message of a chat answer: content, reasoning and calls told apart, whole or as deltas. Knows OpenAI's and vLLM's wording.

use serde_json::{Value, json};
use vllm_apple_parsers::{OutputParser, Piece, ReasoningFormat, ToolFormat, ToolSchemas};

/// How the answers to a request are told apart.
#[derive(Debug, Clone, Default)]
pub struct Telling {
    /// How reasoning is written, and whether the prompt has begun it.
    pub reasoning: Option<(ReasoningFormat, bool)>,
    /// How calls are written.
    pub tools: Option<ToolFormat>,
    /// The types of their arguments.
    pub schemas: ToolSchemas,
    /// Whether reasoning is shown.
    pub shows_reasoning: bool,
    /// Whether calls after the first are shown.
    pub parallel: bool,
}

/// One answer on its way.
#[derive(Debug)]
pub struct Told {
    /// `None`: all is content.
    parser: Option<OutputParser>,
    telling: Telling,
    num_calls: usize,
}

/// What a message or a delta holds.
#[derive(Default)]
struct Parts {
    content: String,
    reasoning: String,
    calls: Vec<Value>,
}

impl Told {
    pub fn new(telling: &Telling) -> Self {
        let Telling { reasoning, tools, schemas, .. } = telling;
        let is_plain = reasoning.is_none() && tools.is_none();
        let parser = (!is_plain).then(|| OutputParser::new(*reasoning, tools.clone(), schemas.clone()));
        Self { parser, telling: telling.clone(), num_calls: 0 }
    }

    /// Whether a call has begun.
    pub fn has_called(&self) -> bool {
        self.num_calls > 0
    }

    /// The message of a whole answer.
    pub fn message(&mut self, text: String) -> Value {
        let Parts { content, reasoning, calls } = self.parts(text, true);
        let content =
            if content.is_empty() && (!calls.is_empty() || !reasoning.is_empty()) { None } else { Some(content) };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.as_str().into();
            message["reasoning"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = whole_calls(calls).into();
        }
        message
    }

    /// The delta of the next text.
    pub fn delta(&mut self, text: String, last: bool) -> Value {
        let Parts { content, reasoning, calls } = self.parts(text, last);
        let mut delta = json!({});
        if !reasoning.is_empty() {
            delta["reasoning_content"] = reasoning.as_str().into();
            delta["reasoning"] = reasoning.into();
        }
        if !content.is_empty() {
            delta["content"] = content.into();
        }
        if !calls.is_empty() {
            delta["tool_calls"] = calls.into();
        }
        delta
    }

    fn parts(&mut self, text: String, last: bool) -> Parts {
        let mut parts = Parts::default();
        let Some(parser) = &mut self.parser else {
            parts.content = text;
            return parts;
        };
        let mut pieces = parser.push(&text);
        if last {
            pieces.extend(parser.finish());
        }
        for piece in pieces {
            match piece {
                Piece::Content(text) => parts.content.push_str(&text),
                Piece::Reasoning(text) if self.telling.shows_reasoning => parts.reasoning.push_str(&text),
                Piece::Reasoning(_) => {}
                Piece::Call { name } => {
                    self.num_calls += 1;
                    if self.is_shown() {
                        parts.calls.push(json!({
                            "index": self.num_calls - 1,
                            "id": self.id(),
                            "type": "function",
                            "function": {"name": name, "arguments": ""},
                        }));
                    }
                }
                Piece::Arguments(text) => {
                    let index = self.num_calls.saturating_sub(1);
                    match parts.calls.last_mut() {
                        _ if !self.is_shown() => {}
                        Some(call) if call["index"] == index => append(&mut call["function"]["arguments"], &text),
                        _ => parts.calls.push(json!({"index": index, "function": {"arguments": text}})),
                    }
                }
            }
        }
        parts
    }

    fn is_shown(&self) -> bool {
        self.telling.parallel || self.num_calls <= 1
    }

    /// Mistral's templates take ids of nine letters and digits alone.
    fn id(&self) -> String {
        let id = uuid::Uuid::new_v4().simple().to_string();
        match self.telling.tools {
            Some(ToolFormat::Mistral) => id[..9].to_owned(),
            _ => format!("chatcmpl-tool-{id}"),
        }
    }
}

fn append(text: &mut Value, more: &str) {
    if let Value::String(text) = text {
        text.push_str(more);
    }
}

/// Calls of a whole message have no index.
fn whole_calls(mut calls: Vec<Value>) -> Vec<Value> {
    for call in &mut calls {
        call.as_object_mut().into_iter().for_each(|call| {
            call.shift_remove("index");
        });
    }
    calls
}
