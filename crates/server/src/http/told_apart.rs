//! Content, reasoning and calls of an answer told apart, for every API that words them. Words them for chat itself: as a message or as deltas.

use serde_json::{Value, json};
use vllm_apple_parsers::{OutputParser, Piece, ReasoningFormat, ToolFormat, ToolSchemas};

use super::brackets::Brackets;

/// How the answers to a request are told apart.
#[derive(Debug, Clone, Default)]
pub struct Telling {
    /// How reasoning is written, and whether the prompt has begun it.
    pub reasoning: Option<(ReasoningFormat, bool)>,
    /// How calls are written.
    pub tools: Option<ToolFormat>,
    /// The types of their arguments.
    pub schemas: ToolSchemas,
    /// Whether what follows the reasoning is held to a form.
    pub is_held: bool,
    /// Whether reasoning is shown.
    pub shows_reasoning: bool,
    /// Calls that are shown, at most. gpt-oss may write some where none are offered.
    pub max_calls: usize,
}

/// One answer on its way.
#[derive(Debug)]
pub struct Told {
    /// `None`: all is content.
    parser: Option<OutputParser>,
    telling: Telling,
    num_calls: usize,
    /// The arguments of what came last, if that is a call.
    last_call: Option<Brackets>,
    /// Calls that have begun in chat's words.
    num_worded: usize,
    /// Whether what came last is reasoning, shown or not. `None`: nothing has come.
    is_reasoning: Option<bool>,
    /// Tokens of which is not known yet what they are.
    undecided: usize,
    reasoning_tokens: usize,
    /// White space that the content begins with. As in vLLM it is none if a call follows.
    blank: String,
    has_content: bool,
    /// Of an answer that is worded as one message, what has come.
    whole: Parts,
}

/// The next of what an answer holds and shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// More of what the model thinks.
    Reasoning(String),
    /// More of the answer itself.
    Content(String),
    /// A call begins.
    Call {
        /// Unique.
        id: String,
        /// The tool.
        name: String,
    },
    /// More of its arguments.
    Arguments(String),
}

/// Bytes counted for each call of a message besides its text: a tree of values.
pub const PER_CALL: usize = 1536;

/// What a message or a delta of chat holds.
#[derive(Debug, Default)]
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
        let parser = parser.map(|parser| if telling.is_held { parser.held() } else { parser });
        Self {
            parser,
            telling: telling.clone(),
            num_calls: 0,
            last_call: None,
            num_worded: 0,
            is_reasoning: None,
            undecided: 0,
            reasoning_tokens: 0,
            blank: String::new(),
            has_content: false,
            whole: Parts::default(),
        }
    }

    /// Whether a call has begun that is shown.
    pub fn has_called(&self) -> bool {
        self.num_calls.min(self.telling.max_calls) > 0
    }

    /// Whether it ends within a call.
    pub fn ends_within_a_call(&self) -> bool {
        self.last_call.is_some_and(|arguments| !arguments.are_closed())
    }

    /// Tokens that were thought so far, shown or not: those up to the first of the answer itself, with the tags around.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Takes in the next text of so many tokens, for [`Self::message`]. The number of calls that begin in it.
    pub fn take(&mut self, text: String, num_tokens: usize, last: bool) -> usize {
        let mut whole = std::mem::take(&mut self.whole);
        let before = whole.calls.len();
        self.add(&mut whole, text, num_tokens, last);
        self.whole = whole;
        self.whole.calls.len() - before
    }

    /// The message of a whole answer, of which all was taken in.
    pub fn message(&mut self) -> Value {
        let Parts { content, reasoning, calls } = std::mem::take(&mut self.whole);
        let content =
            if content.is_empty() && (!calls.is_empty() || !reasoning.is_empty()) { None } else { Some(content) };
        // As in vLLM `reasoning` is always there: OpenAI's client has no attribute otherwise.
        let mut message = json!({"role": "assistant", "content": content, "refusal": null, "reasoning": null});
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.as_str().into();
            message["reasoning"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = whole_calls(calls).into();
        }
        message
    }

    /// The delta of the next text of so many tokens.
    pub fn delta(&mut self, text: String, num_tokens: usize, last: bool) -> Value {
        let mut parts = Parts::default();
        self.add(&mut parts, text, num_tokens, last);
        let Parts { content, reasoning, calls } = parts;
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

    /// What the next text of so many tokens holds.
    pub fn push(&mut self, text: String, num_tokens: usize, last: bool) -> Vec<Shown> {
        let Some(parser) = &mut self.parser else {
            return if text.is_empty() { Vec::new() } else { vec![Shown::Content(text)] };
        };
        let mut pieces = parser.push(&text);
        if last {
            pieces.extend(parser.finish());
        }
        let shown: Vec<_> = pieces.into_iter().filter_map(|piece| self.show(piece)).collect();
        shown.iter().for_each(|shown| self.follow(shown));
        self.count(num_tokens);
        shown
    }

    fn follow(&mut self, shown: &Shown) {
        match shown {
            Shown::Call { .. } => self.last_call = Some(Brackets::default()),
            Shown::Arguments(text) => self.last_call.iter_mut().for_each(|arguments| arguments.push(text)),
            Shown::Content(text) | Shown::Reasoning(text) if text.trim().is_empty() => {}
            Shown::Content(_) | Shown::Reasoning(_) => self.last_call = None,
        }
    }

    /// Tokens are what the model does once they have come.
    fn count(&mut self, num_tokens: usize) {
        self.undecided += num_tokens;
        if let Some(is_reasoning) = self.is_reasoning {
            let tokens = std::mem::take(&mut self.undecided);
            self.reasoning_tokens += if is_reasoning { tokens } else { 0 };
        }
    }

    fn show(&mut self, piece: Piece) -> Option<Shown> {
        match piece {
            Piece::Content(text) => {
                self.is_reasoning = Some(false);
                Some(Shown::Content(text))
            }
            Piece::Reasoning(text) => {
                self.is_reasoning = Some(true);
                self.telling.shows_reasoning.then_some(Shown::Reasoning(text))
            }
            Piece::Call { name } => {
                self.is_reasoning = Some(false);
                self.num_calls += 1;
                self.is_shown().then(|| Shown::Call { id: self.id(), name })
            }
            Piece::Arguments(text) => self.is_shown().then_some(Shown::Arguments(text)),
        }
    }

    fn add(&mut self, parts: &mut Parts, text: String, num_tokens: usize, last: bool) {
        for shown in self.push(text, num_tokens, last) {
            match shown {
                Shown::Content(text) => self.say(parts, &text),
                Shown::Reasoning(text) => parts.reasoning.push_str(&text),
                Shown::Call { id, name } => {
                    parts.calls.push(json!({
                        "index": self.num_worded,
                        "id": id,
                        "type": "function",
                        "function": {"name": name, "arguments": ""},
                    }));
                    self.num_worded += 1;
                }
                // A call that has begun goes on in the next delta.
                Shown::Arguments(text) => match parts.calls.last_mut() {
                    Some(call) => append(&mut call["function"]["arguments"], &text),
                    None => {
                        let index = self.num_worded.saturating_sub(1);
                        parts.calls.push(json!({"index": index, "function": {"arguments": text}}));
                    }
                },
            }
        }
        if last && !self.has_called() {
            parts.content.push_str(&std::mem::take(&mut self.blank));
        }
    }

    fn say(&mut self, parts: &mut Parts, text: &str) {
        self.has_content |= self.telling.tools.is_none() || !text.trim().is_empty();
        if self.has_content {
            parts.content.push_str(&std::mem::take(&mut self.blank));
            parts.content.push_str(text);
        } else {
            self.blank.push_str(text);
        }
    }

    fn is_shown(&self) -> bool {
        self.num_calls <= self.telling.max_calls
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
