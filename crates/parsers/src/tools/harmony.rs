//! gpt-oss: messages in channels. What it writes in `analysis` is reasoning, what it writes to a recipient are arguments of a call, the rest
//! is its answer.

use crate::Piece;
use crate::cut::{Cut, cut};
use crate::machine::Machine;

const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", START];

#[derive(Default)]
pub struct Harmony {
    state: State,
}

#[derive(Default, Clone, Copy)]
enum State {
    /// The prompt has written the beginning of one.
    #[default]
    Header,
    Body(Channel),
    Between,
}

#[derive(Clone, Copy)]
enum Channel {
    Analysis,
    Answer,
    Call,
}

impl Machine for Harmony {
    fn take(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        match self.state {
            State::Header => match cut(rest, &[MESSAGE], last) {
                Cut::Tag { before, .. } => {
                    self.state = State::Body(open(&rest[..before], out));
                    before + MESSAGE.len()
                }
                Cut::Text(_) => 0,
            },
            State::Body(channel) => {
                let (bytes, tag) = match cut(rest, &ENDS, last) {
                    Cut::Tag { before, tag } => (before, Some(ENDS[tag])),
                    Cut::Text(safe) => (safe, None),
                };
                let text = rest[..bytes].to_owned();
                out.push(match channel {
                    Channel::Analysis => Piece::Reasoning(text),
                    Channel::Answer => Piece::Content(text),
                    Channel::Call => Piece::Arguments(text),
                });
                let Some(tag) = tag else { return bytes };
                self.state = if tag == START { State::Header } else { State::Between };
                bytes + tag.len()
            }
            State::Between => match cut(rest, &[START], last) {
                Cut::Tag { before, .. } => {
                    self.state = State::Header;
                    before + START.len()
                }
                Cut::Text(safe) => safe,
            },
        }
    }

    fn end(&mut self, rest: &str, out: &mut Vec<Piece>) {
        // A text without any message is one.
        if matches!(self.state, State::Header) && !rest.contains("<|") {
            out.push(Piece::Content(rest.to_owned()));
        }
    }
}

/// What a header says of its message.
fn open(header: &str, out: &mut Vec<Piece>) -> Channel {
    let recipient = header.split("to=").nth(1).map(|rest| {
        let end = rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len());
        &rest[..end]
    });
    let channel = header.split("<|channel|>").nth(1).unwrap_or_default().trim_start();
    match recipient {
        Some(recipient) => {
            out.push(Piece::Call { name: recipient.strip_prefix("functions.").unwrap_or(recipient).to_owned() });
            Channel::Call
        }
        None if channel.starts_with("analysis") => Channel::Analysis,
        None => Channel::Answer,
    }
}
