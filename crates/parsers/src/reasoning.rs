//! Reasoning between two tags.

use crate::Piece;
use crate::cut::{Cut, begins, cut, spaces};
use crate::machine::Machine;

/// A model that thinks first, between `start` and `end`.
pub struct Think {
    start: &'static str,
    end: &'static str,
    opening: Option<Opening>,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    /// Nothing has come; `begun`: the prompt has opened the tag.
    Begin {
        begun: bool,
    },
    Thinking,
    /// The answer has no text yet.
    Ended,
    Answer,
}

/// How a call begins that a model writes without ending its thoughts.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    /// What it begins with.
    pub tag: &'static str,
    /// What follows, maybe after white space. Thoughts may tell of the tag alone.
    pub behind: Behind,
}

/// What follows the tag of a call.
#[derive(Debug, Clone, Copy)]
pub enum Behind {
    /// No text has such a tag.
    Anything,
    /// A name.
    Name,
    /// This.
    Text(&'static str),
}

impl Opening {
    /// Whether what stands behind the tag makes it a call: `None` while that is open.
    fn is_call(self, behind: &str, last: bool) -> Option<bool> {
        let text = behind.trim_start();
        match self.behind {
            Behind::Anything => Some(true),
            _ if text.is_empty() => last.then_some(false),
            Behind::Name => Some(text.starts_with(|c: char| c.is_alphanumeric() || c == '_')),
            Behind::Text(expected) => begins(text, expected, last),
        }
    }
}

impl Think {
    pub fn new(start: &'static str, end: &'static str, begun: bool, opening: Option<Opening>) -> Self {
        Self { start, end, opening, state: State::Begin { begun } }
    }

    /// The same, which its own tag alone ends.
    pub fn without_opening(self) -> Self {
        Self { opening: None, ..self }
    }

    fn begin(&mut self, begun: bool, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        let blank = spaces(rest);
        if blank == rest.len() && !last {
            return 0;
        }
        match begins(&rest[blank..], self.start, last) {
            None => 0,
            Some(true) => {
                self.state = State::Thinking;
                blank + self.start.len()
            }
            Some(false) => {
                self.state = if begun { State::Thinking } else { State::Answer };
                self.take(rest, last, out)
            }
        }
    }

    fn think(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        let tags = [self.end, self.opening.map_or(self.end, |opening| opening.tag)];
        let mut think = |bytes: usize| {
            out.push(Piece::Reasoning(rest[..bytes].to_owned()));
            bytes
        };
        let (before, tag) = match cut(rest, &tags, last) {
            Cut::Text(safe) => return think(safe),
            Cut::Tag { before, tag } => (before, tags[tag]),
        };
        let behind = before + tag.len();
        let Some(opening) = self.opening.filter(|opening| opening.tag == tag) else {
            self.state = State::Ended;
            think(before);
            return behind;
        };
        match opening.is_call(&rest[behind..], last) {
            None => think(before),
            Some(false) => think(behind),
            Some(true) => {
                self.state = State::Answer;
                think(before);
                if before == 0 { self.take(rest, last, out) } else { before }
            }
        }
    }

    /// Some models end their thoughts twice before they answer.
    fn ended(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        match (spaces(rest), begins(rest, self.end, last)) {
            (0, None) => 0,
            (0, Some(true)) => self.end.len(),
            (0, Some(false)) => {
                self.state = State::Answer;
                self.take(rest, last, out)
            }
            (blank, _) => {
                out.push(Piece::Content(rest[..blank].to_owned()));
                blank
            }
        }
    }
}

impl Machine for Think {
    fn take(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        match self.state {
            State::Begin { begun } => self.begin(begun, rest, last, out),
            State::Thinking => self.think(rest, last, out),
            State::Ended => self.ended(rest, last, out),
            State::Answer => {
                out.push(Piece::Content(rest.to_owned()));
                rest.len()
            }
        }
    }

    fn end(&mut self, _rest: &str, _out: &mut Vec<Piece>) {}
}
