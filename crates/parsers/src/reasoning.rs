//! Reasoning between two tags.

use crate::Piece;
use crate::cut::{Cut, begins, cut, spaces};
use crate::machine::Machine;

/// A model that thinks first, between `start` and `end`.
pub struct Think {
    start: &'static str,
    end: &'static str,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    /// Nothing has come; `begun`: the prompt has opened the tag.
    Begin {
        begun: bool,
    },
    Thinking,
    Answer,
}

impl Think {
    pub fn new(start: &'static str, end: &'static str, begun: bool) -> Self {
        Self { start, end, state: State::Begin { begun } }
    }
}

impl Machine for Think {
    fn take(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        match self.state {
            State::Begin { begun } => {
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
            State::Thinking => match cut(rest, &[self.end], last) {
                Cut::Tag { before, .. } => {
                    out.push(Piece::Reasoning(rest[..before].to_owned()));
                    self.state = State::Answer;
                    before + self.end.len()
                }
                Cut::Text(safe) => {
                    out.push(Piece::Reasoning(rest[..safe].to_owned()));
                    safe
                }
            },
            State::Answer => {
                out.push(Piece::Content(rest.to_owned()));
                rest.len()
            }
        }
    }

    fn end(&mut self, _rest: &str, _out: &mut Vec<Piece>) {}
}
