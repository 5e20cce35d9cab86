//! A list of Python calls and nothing else: `[name(key=value, …), …]`.

use crate::Piece;
use crate::cut::spaces;
use crate::machine::Machine;
use crate::tools::python;

#[derive(Default)]
pub struct Pythonic {
    state: State,
    has_called: bool,
}

#[derive(Default, Clone, Copy)]
enum State {
    #[default]
    Begin,
    Text,
    Calls,
    After,
}

impl Machine for Pythonic {
    fn take(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        match self.state {
            State::Begin => {
                let blank = spaces(rest);
                let text = &rest[blank..];
                // `[name(`: a bracket, a name, a parenthesis.
                let name = text.strip_prefix('[').map(|text| &text[spaces(text)..]);
                let end = name.and_then(|name| name.find(|c: char| !is_of_name(c)));
                self.state = match (name, end) {
                    (None, _) if text.is_empty() && !last => return 0,
                    (Some(_), None) if !last => return 0,
                    (Some(name), Some(end)) if end > 0 && name[end..].starts_with('(') => State::Calls,
                    _ => State::Text,
                };
                match self.state {
                    State::Calls => blank + 1,
                    _ => self.take(rest, last, out),
                }
            }
            State::Text => {
                out.push(Piece::Content(rest.to_owned()));
                rest.len()
            }
            State::Calls => match rest.as_bytes()[0] {
                b']' => {
                    self.state = State::After;
                    1
                }
                b',' | b' ' | b'\n' | b'\r' | b'\t' => 1,
                _ => self.call(rest, out),
            },
            State::After => rest.len(),
        }
    }

    fn end(&mut self, rest: &str, out: &mut Vec<Piece>) {
        if matches!(self.state, State::Begin) {
            out.push(Piece::Content(rest.to_owned()));
        }
        if matches!(self.state, State::Calls) && !self.has_called {
            out.push(Piece::Content(format!("[{rest}")));
        }
    }
}

impl Pythonic {
    fn call(&mut self, rest: &str, out: &mut Vec<Piece>) -> usize {
        let Some(end) = python::end_of_call(rest) else { return 0 };
        match python::call(&rest[..end]) {
            Some((name, arguments)) => {
                self.has_called = true;
                out.push(Piece::Call { name });
                out.push(Piece::Arguments(arguments));
                end
            }
            None if self.has_called => {
                self.state = State::After;
                end
            }
            None => {
                out.push(Piece::Content("[".to_owned()));
                self.state = State::Text;
                self.take(rest, false, out)
            }
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}
