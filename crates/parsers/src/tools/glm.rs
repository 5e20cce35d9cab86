//! GLM's calls: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>…</tool_call>`, with or without new lines between them.

use crate::Piece;
use crate::cut::{Cut, cut, without_end};
use crate::machine::Machine;
use crate::schemas::{ToolSchemas, quoted};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

pub struct Glm {
    schemas: ToolSchemas,
    state: State,
    name: String,
    num_arguments: usize,
}

enum State {
    Text,
    Name,
    Between,
    Key,
    BeforeValue(String),
    Value(String),
    After,
}

impl Glm {
    pub fn new(schemas: ToolSchemas) -> Self {
        Self { schemas, state: State::Text, name: String::new(), num_arguments: 0 }
    }

    fn call(&mut self, name: &str, out: &mut Vec<Piece>) {
        self.name = name.trim().to_owned();
        self.num_arguments = 0;
        out.push(Piece::Call { name: self.name.clone() });
        out.push(Piece::Arguments("{".to_owned()));
    }

    fn argument(&mut self, key: &str, value: &str, out: &mut Vec<Piece>) {
        let separator = if self.num_arguments == 0 { "" } else { ", " };
        self.num_arguments += 1;
        let value = self.schemas.json(&self.name, key, value);
        out.push(Piece::Arguments(format!("{separator}{}: {value}", quoted(key))));
    }
}

impl Machine for Glm {
    fn take(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        let tags: &[&str] = match self.state {
            State::Text | State::After => &[OPEN],
            State::Name => &[KEY, CLOSE],
            State::Between => &[KEY, CLOSE],
            State::Key => &[KEY_END],
            State::BeforeValue(_) => &[VALUE],
            State::Value(_) => &[VALUE_END],
        };
        let (before, tag) = match cut(rest, tags, last) {
            Cut::Tag { before, tag } => (before, tag),
            Cut::Text(safe) => match self.state {
                State::Text => {
                    let shown = without_end(&rest[..safe], last);
                    out.push(Piece::Content(rest[..shown].to_owned()));
                    return shown;
                }
                State::After | State::Between | State::BeforeValue(_) => return safe,
                State::Name | State::Key | State::Value(_) => return 0,
            },
        };
        let text = &rest[..before];
        let closes = tags[tag] == CLOSE;
        if matches!(self.state, State::Name) {
            self.call(text, out);
        }
        self.state = match std::mem::replace(&mut self.state, State::After) {
            State::Text => {
                out.push(Piece::Content(text.trim_end().to_owned()));
                State::Name
            }
            State::After => State::Name,
            State::Name | State::Between if closes => {
                out.push(Piece::Arguments("}".to_owned()));
                State::After
            }
            State::Name | State::Between => State::Key,
            State::Key => State::BeforeValue(text.trim().to_owned()),
            State::BeforeValue(key) => State::Value(key),
            State::Value(key) => {
                self.argument(&key, text, out);
                State::Between
            }
        };
        before + tags[tag].len()
    }

    fn end(&mut self, rest: &str, out: &mut Vec<Piece>) {
        if matches!(self.state, State::Name) {
            out.push(Piece::Content(format!("{OPEN}{rest}")));
        }
    }
}
