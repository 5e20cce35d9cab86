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
    /// White space before the tag, which is content if no call follows; `None` behind a call, where text is left out.
    Name(Option<String>),
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

    /// What stands behind the tag is none, and text as the tag is.
    fn no_call(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        self.state = match std::mem::replace(&mut self.state, State::After) {
            State::Name(Some(blank)) => {
                out.push(Piece::Content(blank + OPEN));
                State::Text
            }
            _ => State::After,
        };
        self.take(rest, last, out)
    }
}

impl Machine for Glm {
    fn take(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        let tags: &[&str] = match self.state {
            State::Text | State::After => &[OPEN],
            State::Name(_) => &[KEY, CLOSE],
            State::Between => &[KEY, CLOSE],
            State::Key => &[KEY_END],
            State::BeforeValue(_) => &[VALUE],
            State::Value(_) => &[VALUE_END],
        };
        if matches!(self.state, State::Name(_)) && !begins_name(rest.split('<').next().unwrap_or_default()) {
            return self.no_call(rest, last, out);
        }
        let (before, tag) = match cut(rest, tags, last) {
            Cut::Tag { before, tag } => (before, tag),
            Cut::Text(safe) => match self.state {
                State::Text => {
                    let shown = without_end(&rest[..safe], last);
                    out.push(Piece::Content(rest[..shown].to_owned()));
                    return shown;
                }
                State::After | State::Between | State::BeforeValue(_) => return safe,
                State::Name(_) | State::Key | State::Value(_) => return 0,
            },
        };
        let text = &rest[..before];
        let closes = tags[tag] == CLOSE;
        if matches!(self.state, State::Name(_)) {
            if text.trim().is_empty() || !begins_name(text) {
                return self.no_call(rest, last, out);
            }
            self.call(text, out);
        }
        self.state = match std::mem::replace(&mut self.state, State::After) {
            State::Text => {
                let (text, blank) = text.split_at(text.trim_end().len());
                out.push(Piece::Content(text.to_owned()));
                State::Name(Some(blank.to_owned()))
            }
            State::After => State::Name(None),
            State::Name(_) | State::Between if closes => {
                out.push(Piece::Arguments("}".to_owned()));
                State::After
            }
            State::Name(_) | State::Between => State::Key,
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
        if let State::Name(blank) = &self.state {
            let blank = blank.as_deref().unwrap_or_default();
            out.push(Piece::Content(format!("{blank}{OPEN}{rest}")));
        }
    }
}

/// Whether a text may still become a name. Its letters are the tool's affair, but JSON is none.
fn begins_name(text: &str) -> bool {
    !text.trim().contains(|c: char| c.is_whitespace() || "{}[]<>\"`".contains(c))
}
