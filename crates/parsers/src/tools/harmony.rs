//! gpt-oss: messages in channels. What it writes in `analysis` is reasoning, what it writes to a function are arguments of a call, the rest
//! is its answer. Between messages of a kind is a new line, as in vLLM.

use crate::Piece;
use crate::cut::{Cut, cut};
use crate::machine::Machine;

const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", START];

/// What stands in a header that was not finished, and in no other text.
const TAGS: [&str; 6] = [START, "<|channel|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"];

/// Tools that it was taught besides functions: nobody here runs them.
const OWN_TOOLS: [&str; 3] = ["python", "browser", "container"];

/// Recipients besides that are no function: who speaks, and one without a name.
const NO_FUNCTIONS: [&str; 2] = ["assistant", "functions."];

#[derive(Default)]
pub struct Harmony {
    state: State,
    /// Whether a message has begun.
    has_begun: bool,
    /// Whether the message has no text yet.
    is_fresh: bool,
    /// Whether there was text before: thoughts, an answer.
    has: [bool; 2],
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
    /// A call that is nobody's.
    Ignored,
}

impl Machine for Harmony {
    fn take(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        match self.state {
            State::Header => match cut(rest, &[MESSAGE], last) {
                Cut::Tag { before, .. } => {
                    self.state = State::Body(open(&rest[..before], out));
                    self.has_begun = true;
                    self.is_fresh = true;
                    before + MESSAGE.len()
                }
                Cut::Text(_) => 0,
            },
            State::Body(channel) => {
                let (bytes, tag) = match cut(rest, &ENDS, last) {
                    Cut::Tag { before, tag } => (before, Some(ENDS[tag])),
                    Cut::Text(safe) => (safe, None),
                };
                self.say(channel, &rest[..bytes], out);
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
        if matches!(self.state, State::Header) && !self.has_begun && !TAGS.iter().any(|tag| rest.contains(tag)) {
            out.push(Piece::Content(rest.to_owned()));
        }
    }
}

impl Harmony {
    /// Text of a message.
    fn say(&mut self, channel: Channel, text: &str, out: &mut Vec<Piece>) {
        let (piece, kind): (fn(String) -> Piece, _) = match channel {
            Channel::Analysis => (Piece::Reasoning, 0),
            Channel::Answer => (Piece::Content, 1),
            Channel::Call => return out.push(Piece::Arguments(text.to_owned())),
            Channel::Ignored => return,
        };
        if text.is_empty() {
            return;
        }
        if std::mem::take(&mut self.is_fresh) && std::mem::replace(&mut self.has[kind], true) {
            out.push(piece("\n".to_owned()));
        }
        out.push(piece(text.to_owned()));
    }
}

/// What a header says of its message.
fn open(header: &str, out: &mut Vec<Piece>) -> Channel {
    let recipient = header.split("to=").nth(1).map(|rest| {
        let end = rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len());
        &rest[..end]
    });
    let recipient = recipient.filter(|name| !name.is_empty());
    let channel = header.split("<|channel|>").nth(1).unwrap_or_default().trim_start();
    let is_own = |name: &str| OWN_TOOLS.contains(&name.split('.').next().unwrap_or_default());
    let is_function = |name: &str| !NO_FUNCTIONS.contains(&name) && !is_own(name);
    match recipient {
        Some(recipient) if is_function(recipient) => {
            out.push(Piece::Call { name: recipient.strip_prefix("functions.").unwrap_or(recipient).to_owned() });
            Channel::Call
        }
        _ if channel.starts_with("analysis") => Channel::Analysis,
        Some(_) if !channel.starts_with("final") => Channel::Ignored,
        _ => Channel::Answer,
    }
}
