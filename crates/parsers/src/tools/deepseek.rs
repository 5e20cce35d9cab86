//! DeepSeek's calls: V3 and R1 write a type, a name and a block of JSON, V3.1 a name and JSON.

use crate::Piece;
use crate::cut::{Cut, cut};
use crate::machine::Machine;

const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
const CALLS_END: &str = "<｜tool▁calls▁end｜>";
const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";

pub struct DeepSeek {
    /// Before the name, what is between the name and the arguments, and what is after these.
    before_name: Option<&'static str>,
    before_arguments: &'static str,
    after: &'static str,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Text,
    Between,
    Type,
    Name,
    Arguments,
}

impl DeepSeek {
    pub fn v3() -> Self {
        Self {
            before_name: Some(SEPARATOR),
            before_arguments: "\n```json\n",
            after: "\n```<｜tool▁call▁end｜>",
            state: State::Text,
        }
    }

    pub fn v31() -> Self {
        Self { before_name: None, before_arguments: SEPARATOR, after: "<｜tool▁call▁end｜>", state: State::Text }
    }
}

impl Machine for DeepSeek {
    fn take(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        let all = [CALLS_BEGIN];
        let between = [CALL_BEGIN, CALLS_END];
        let (before_name, before_arguments, after) =
            ([self.before_name.unwrap_or(SEPARATOR)], [self.before_arguments], [self.after]);
        let tags: &[&str] = match self.state {
            State::Text => &all,
            State::Between => &between,
            State::Type => &before_name,
            State::Name => &before_arguments,
            State::Arguments => &after,
        };
        // What follows the arguments is none of them, even where it is cut off.
        let last = last && !matches!(self.state, State::Arguments);
        let (bytes, tag) = match cut(rest, tags, last) {
            Cut::Tag { before, tag } => (before, Some(tag)),
            Cut::Text(safe) => (safe, None),
        };
        let text = &rest[..bytes];
        match self.state {
            State::Text => out.push(Piece::Content(text.to_owned())),
            State::Arguments => out.push(Piece::Arguments(text.to_owned())),
            State::Name if tag.is_some() => out.push(Piece::Call { name: text.trim().to_owned() }),
            // A name is certain as a whole.
            State::Name => return 0,
            State::Between | State::Type => {}
        }
        let Some(tag) = tag else { return bytes };
        self.state = match (self.state, tag) {
            (State::Text, _) | (State::Arguments, _) => State::Between,
            (State::Between, 0) if self.before_name.is_some() => State::Type,
            (State::Between, 0) | (State::Type, _) => State::Name,
            (State::Between, _) => State::Text,
            (State::Name, _) => State::Arguments,
        };
        bytes + tags[tag].len()
    }

    fn end(&mut self, rest: &str, out: &mut Vec<Piece>) {
        if matches!(self.state, State::Name) {
            out.push(Piece::Content(rest.to_owned()));
        }
    }
}
