//! Calls of Qwen3-Coder and its kin: `<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>`. A value has a new
//! line around it that is not its own. The outer tag may be missing.

use crate::Piece;
use crate::cut::{Cut, cut, without_end};
use crate::machine::Machine;
use crate::schemas::{ToolSchemas, quoted};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

pub struct QwenXml {
    schemas: ToolSchemas,
    state: State,
    has_called: bool,
    name: String,
    num_arguments: usize,
}

enum State {
    Text,
    Open,
    Name,
    Between,
    Key,
    Value(String),
}

impl QwenXml {
    pub fn new(schemas: ToolSchemas) -> Self {
        Self { schemas, state: State::Text, has_called: false, name: String::new(), num_arguments: 0 }
    }

    fn argument(&mut self, key: &str, text: &str, out: &mut Vec<Piece>) {
        let text = text.strip_prefix('\n').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        let separator = if self.num_arguments == 0 { "" } else { ", " };
        self.num_arguments += 1;
        let value = self.schemas.json(&self.name, key, text);
        out.push(Piece::Arguments(format!("{separator}{}: {value}", quoted(key))));
    }

    fn show(&self, text: &str, out: &mut Vec<Piece>) {
        // As in vLLM, text after a call is left out.
        if !self.has_called {
            out.push(Piece::Content(text.to_owned()));
        }
    }
}

impl Machine for QwenXml {
    fn take(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        let tags: &[&str] = match self.state {
            State::Text => &[OPEN, FUNCTION],
            State::Open => &[FUNCTION, CLOSE],
            State::Name | State::Key => &[">"],
            State::Between => &[PARAMETER, FUNCTION_END, CLOSE],
            // A model may forget to close a value.
            State::Value(_) => &[PARAMETER_END, PARAMETER, FUNCTION_END],
        };
        let (before, tag) = match cut(rest, tags, last) {
            Cut::Tag { before, tag } => (before, tags[tag]),
            Cut::Text(safe) => match self.state {
                State::Text => {
                    let shown = without_end(&rest[..safe], last);
                    self.show(&rest[..shown], out);
                    return shown;
                }
                State::Open | State::Between => return safe,
                State::Name | State::Key | State::Value(_) => return 0,
            },
        };
        let text = &rest[..before];
        let mut taken = before + tag.len();
        self.state = match std::mem::replace(&mut self.state, State::Text) {
            State::Text => {
                self.show(text.trim_end(), out);
                if tag == FUNCTION { State::Name } else { State::Open }
            }
            State::Open if tag == FUNCTION => State::Name,
            State::Open => State::Text,
            State::Name => {
                (self.name, self.num_arguments, self.has_called) = (text.trim().to_owned(), 0, true);
                out.push(Piece::Call { name: self.name.clone() });
                out.push(Piece::Arguments("{".to_owned()));
                State::Between
            }
            State::Between if tag == PARAMETER => State::Key,
            State::Between => {
                out.push(Piece::Arguments("}".to_owned()));
                if tag == CLOSE { State::Text } else { State::Open }
            }
            State::Key => State::Value(text.trim().to_owned()),
            State::Value(key) => {
                self.argument(&key, text, out);
                if tag != PARAMETER_END {
                    taken = before;
                }
                State::Between
            }
        };
        if taken == 0 { self.take(rest, last, out) } else { taken }
    }

    fn end(&mut self, rest: &str, out: &mut Vec<Piece>) {
        if matches!(self.state, State::Name) {
            self.show(&format!("{FUNCTION}{rest}"), out);
        }
    }
}
