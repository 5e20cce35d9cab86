//! Mistral's calls: `[TOOL_CALLS][{"name": …, "arguments": …}, …]` of the older models, and of the newer ones, for each call,
//! `[TOOL_CALLS]name{…}` or `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`.

use crate::Piece;
use crate::cut::{Cut, cut, spaces, without_end};
use crate::json_call::{JsonCall, Step, ValueEnd};
use crate::machine::Machine;

const CALLS: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

#[derive(Default)]
pub struct Mistral {
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    Text,
    /// After the tag.
    Open,
    /// In the older models' list: a call, or what is between two.
    Listed(Option<Box<JsonCall>>),
    Id(String),
    Arguments(ValueEnd),
    Between,
}

impl Machine for Mistral {
    fn take(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        match &mut self.state {
            State::Text | State::Between => {
                let is_text = matches!(self.state, State::Text);
                let mut show = |text: &str| {
                    if is_text {
                        out.push(Piece::Content(text.to_owned()));
                    }
                };
                match cut(rest, &[CALLS], last) {
                    Cut::Tag { before, .. } => {
                        show(rest[..before].trim_end());
                        self.state = State::Open;
                        before + CALLS.len()
                    }
                    Cut::Text(safe) => {
                        let shown = without_end(&rest[..safe], last);
                        show(&rest[..shown]);
                        shown
                    }
                }
            }
            State::Open => self.open(rest, last, out),
            State::Listed(None) => match rest.as_bytes()[0] {
                b'{' => {
                    self.state = State::Listed(Some(Box::default()));
                    self.take(rest, last, out)
                }
                b']' => {
                    self.state = State::Between;
                    1
                }
                _ => rest.chars().next().map_or(0, char::len_utf8),
            },
            State::Listed(Some(call)) => match call.take(rest, out) {
                Step::Took(bytes) => bytes,
                Step::Done(bytes) => {
                    self.state = State::Listed(None);
                    bytes
                }
                Step::Bad => {
                    out.push(Piece::Content(std::mem::take(&mut call.raw)));
                    self.state = State::Between;
                    self.take(rest, last, out)
                }
            },
            State::Id(name) => match cut(rest, &[ARGS], last) {
                Cut::Tag { before, .. } => {
                    out.push(Piece::Call { name: std::mem::take(name) });
                    self.state = State::Arguments(ValueEnd::default());
                    before + ARGS.len()
                }
                Cut::Text(_) => 0,
            },
            State::Arguments(end) => {
                let blank = spaces(rest);
                if blank > 0 && end.is_fresh() {
                    return blank;
                }
                let (bytes, has_ended) = end.scan(rest);
                out.push(Piece::Arguments(rest[..bytes].to_owned()));
                if has_ended {
                    self.state = State::Between;
                    return if bytes == 0 { self.take(rest, last, out) } else { bytes };
                }
                bytes
            }
        }
    }

    fn end(&mut self, rest: &str, out: &mut Vec<Piece>) {
        match &mut self.state {
            State::Listed(Some(call)) if !call.has_begun() => {
                out.push(Piece::Content(std::mem::take(&mut call.raw) + rest));
            }
            State::Open | State::Id(_) => out.push(Piece::Content(rest.to_owned())),
            _ => {}
        }
    }
}

impl Mistral {
    fn open(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        let blank = spaces(rest);
        if blank > 0 {
            return blank;
        }
        match rest.as_bytes()[0] {
            // A name has no bracket, and `[ARGS]` no call before it.
            b'[' => {
                self.state = State::Listed(None);
                1
            }
            b'{' => {
                self.state = State::Listed(None);
                self.take(rest, last, out)
            }
            _ => match cut(rest, &[ARGS, CALL_ID, "{"], last) {
                Cut::Tag { before, tag } => {
                    let name = rest[..before].trim().to_owned();
                    if tag == 1 {
                        self.state = State::Id(name);
                        return before + CALL_ID.len();
                    }
                    out.push(Piece::Call { name });
                    self.state = State::Arguments(ValueEnd::default());
                    before + if tag == 0 { ARGS.len() } else { 0 }
                }
                Cut::Text(_) => 0,
            },
        }
    }
}
