//! Calls that are JSON objects with a name and arguments: between tags (Hermes, Qwen), alone (Llama), or in a list (a required call).

use crate::Piece;
use crate::cut::{Cut, begins, cut, spaces};
use crate::json_call::{JsonCall, Step};
use crate::machine::Machine;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const PYTHON_TAG: &str = "<|python_tag|>";

/// What may stand before the first of Llama's calls.
const BEFORE: [&str; 3] = [PYTHON_TAG, "```json\n", "```\n"];

/// What stands around the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Tags.
    Tagged,
    /// Nothing, a first token or a fence; `;` or `,` between them, or a list around.
    Bare,
    /// A list.
    List,
}

pub struct JsonTools {
    form: Form,
    state: State,
    has_called: bool,
    /// Whether a list of Llama's has begun.
    is_list: bool,
}

enum State {
    Begin,
    Text,
    Call(Box<JsonCall>),
    /// After a call.
    Between,
}

impl State {
    /// Objects without a tag or a list around them may be answers, which have names, too.
    fn call(form: Form) -> Self {
        Self::Call(Box::new(JsonCall::new(form == Form::Bare)))
    }
}

impl JsonTools {
    pub fn new(form: Form) -> Self {
        let state = if form == Form::Tagged { State::Text } else { State::Begin };
        Self { form, state, has_called: false, is_list: false }
    }

    /// What stands before the first call decides whether there is one.
    fn begin(&mut self, rest: &str, last: bool) -> usize {
        let blank = spaces(rest);
        let text = &rest[blank..];
        if text.is_empty() && !last {
            return 0;
        }
        match self.form {
            Form::List if text.starts_with('[') => {
                self.state = State::Between;
                return blank + 1;
            }
            Form::Bare if text.starts_with(['{', '[']) => self.state = State::call(self.form),
            Form::Bare => {
                let begun = BEFORE.map(|before| begins(text, before, last));
                if let Some(at) = begun.iter().position(|begun| *begun == Some(true)) {
                    return blank + self.behind(BEFORE[at]);
                }
                if begun.contains(&None) {
                    return 0;
                }
                self.state = State::Text;
            }
            _ => self.state = State::Text,
        }
        blank
    }

    /// A call is expected. A fence that none follows is the answer's.
    fn behind(&mut self, before: &str) -> usize {
        let mut call = JsonCall::new(true);
        if before != PYTHON_TAG {
            before.clone_into(&mut call.raw);
        }
        self.state = State::Call(Box::new(call));
        before.len()
    }

    fn text(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        if self.form != Form::Tagged {
            out.push(Piece::Content(rest.to_owned()));
            return rest.len();
        }
        match cut(rest, &[OPEN], last) {
            Cut::Tag { before, .. } => {
                out.push(Piece::Content(rest[..before].to_owned()));
                self.state = State::call(self.form);
                before + OPEN.len()
            }
            Cut::Text(safe) => {
                out.push(Piece::Content(rest[..safe].to_owned()));
                safe
            }
        }
    }

    fn call(&mut self, rest: &str, out: &mut Vec<Piece>) -> usize {
        let State::Call(call) = &mut self.state else { return 0 };
        if self.form == Form::Bare && !self.is_list && call.is_fresh() && rest.starts_with('[') {
            self.is_list = true;
            call.raw.push('[');
            return 1;
        }
        let step = call.take(rest, out);
        self.has_called |= call.has_begun();
        match step {
            Step::Took(bytes) => bytes,
            Step::Done(bytes) => {
                self.state = State::Between;
                bytes
            }
            Step::Bad => {
                let raw = std::mem::take(&mut call.raw);
                self.not_a_call(&raw, out);
                0
            }
        }
    }

    /// What was no call is text, where no call was before.
    fn not_a_call(&mut self, raw: &str, out: &mut Vec<Piece>) {
        if self.has_called {
            self.state = State::Between;
            return;
        }
        let tag = if self.form == Form::Tagged { OPEN } else { "" };
        out.push(Piece::Content(format!("{tag}{raw}")));
        self.state = State::Text;
    }

    /// As in vLLM, text after a call is left out.
    fn between(&mut self, rest: &str, last: bool) -> usize {
        match self.form {
            Form::Tagged => match cut(rest, &[OPEN, CLOSE], last) {
                Cut::Tag { before, tag } => {
                    if tag == 0 {
                        self.state = State::call(self.form);
                        return before + OPEN.len();
                    }
                    before + CLOSE.len()
                }
                Cut::Text(safe) => safe,
            },
            Form::Bare | Form::List => match rest.find('{') {
                Some(0) => {
                    self.state = State::call(self.form);
                    self.call_of_the_same(rest)
                }
                Some(at) => at,
                None => rest.len(),
            },
        }
    }

    /// The bracket that was seen is the call's own: nothing is taken of it here but by the call.
    fn call_of_the_same(&mut self, rest: &str) -> usize {
        let State::Call(call) = &mut self.state else { return 0 };
        match call.take(rest, &mut Vec::new()) {
            Step::Took(bytes) => bytes,
            _ => 0,
        }
    }
}

impl Machine for JsonTools {
    fn take(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        loop {
            let before = std::mem::discriminant(&self.state);
            let taken = match self.state {
                State::Begin => self.begin(rest, last),
                State::Text => self.text(rest, last, out),
                State::Call(_) => self.call(rest, out),
                State::Between => self.between(rest, last),
            };
            // A state that only changes lets the next one read.
            if taken > 0 || std::mem::discriminant(&self.state) == before {
                return taken;
            }
        }
    }

    fn end(&mut self, rest: &str, out: &mut Vec<Piece>) {
        if let State::Call(call) = &mut self.state
            && !call.has_begun()
        {
            let raw = std::mem::take(&mut call.raw) + rest;
            self.not_a_call(&raw, out);
        }
    }
}
