//! A call written as a JSON object: `{"name": …, "arguments": {…}}`, or with `parameters`. Read as it comes.

use serde_json::Value;

use crate::Piece;
use crate::cut::spaces;

/// Where a JSON value ends.
#[derive(Debug, Default)]
pub struct ValueEnd {
    depth: usize,
    in_string: bool,
    escaped: bool,
    is_scalar: bool,
    has_begun: bool,
}

impl ValueEnd {
    /// Whether nothing of the value has come.
    pub fn is_fresh(&self) -> bool {
        !self.has_begun
    }

    /// Bytes of `text` that belong to the value, and whether it ends with them.
    pub fn scan(&mut self, text: &str) -> (usize, bool) {
        for (at, byte) in text.bytes().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.depth == 0 {
                            return (at + 1, true);
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' if !self.is_scalar => self.in_string = true,
                b'{' | b'[' if !self.is_scalar => self.depth += 1,
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return (at + 1, true);
                    }
                }
                b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t' if self.depth == 0 => return (at, true),
                _ if self.depth == 0 => self.is_scalar = true,
                _ => {}
            }
            self.has_begun = true;
        }
        (text.len(), false)
    }
}

/// What became of a text.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes were taken; 0: more must come.
    Took(usize),
    /// With so many more bytes the object has ended.
    Done(usize),
    /// It is no call.
    Bad,
}

/// An object on its way.
#[derive(Debug, Default)]
pub struct JsonCall {
    state: State,
    name: Option<String>,
    /// Arguments that came before the name.
    early: String,
    /// The text as it came, until it is certain that it is a call.
    pub raw: String,
    /// Whether an object without arguments is no call.
    needs_arguments: bool,
    has_begun: bool,
    has_arguments: bool,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Open,
    Key,
    Colon(String),
    Name,
    Arguments(ValueEnd),
    Other(ValueEnd),
}

impl JsonCall {
    /// One that may have no arguments, or must have them.
    pub fn new(needs_arguments: bool) -> Self {
        Self { needs_arguments, ..Self::default() }
    }

    /// Whether nothing of the object has come.
    pub fn is_fresh(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Whether a piece has gone out.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    pub fn take(&mut self, rest: &str, out: &mut Vec<Piece>) -> Step {
        let step = self.step(rest, out);
        if let (Step::Took(bytes) | Step::Done(bytes), false) = (&step, self.has_begun) {
            self.raw.push_str(&rest[..*bytes]);
        }
        step
    }

    fn step(&mut self, rest: &str, out: &mut Vec<Piece>) -> Step {
        let blank = spaces(rest);
        if blank > 0 && !matches!(&self.state, State::Arguments(end) | State::Other(end) if end.has_begun) {
            return Step::Took(blank);
        }
        let Some(&first) = rest.as_bytes().first() else { return Step::Took(0) };
        match &mut self.state {
            State::Open if first == b'{' => {
                self.state = State::Key;
                Step::Took(1)
            }
            State::Key if first == b',' => Step::Took(1),
            State::Key if first == b'}' => self.close(out),
            State::Key | State::Name if first == b'"' => self.text(rest, out),
            State::Colon(key) if first == b':' => {
                self.state = match key.as_str() {
                    "name" if self.name.is_none() => State::Name,
                    "arguments" | "parameters" if !self.has_arguments => {
                        self.has_arguments = true;
                        self.begin(out);
                        State::Arguments(ValueEnd::default())
                    }
                    _ => State::Other(ValueEnd::default()),
                };
                Step::Took(1)
            }
            State::Arguments(end) | State::Other(end) => {
                let (bytes, has_ended) = end.scan(rest);
                if matches!(self.state, State::Arguments(_)) {
                    match self.has_begun {
                        true => out.push(Piece::Arguments(rest[..bytes].to_owned())),
                        false => self.early.push_str(&rest[..bytes]),
                    }
                }
                match (has_ended, bytes) {
                    // Nothing stands where a value should.
                    (true, 0) if !self.scalar_has_begun() => return Step::Bad,
                    (true, _) => self.state = State::Key,
                    (false, _) => {}
                }
                match bytes {
                    // A number that has ended: what follows it is read as what it is.
                    0 => self.step(rest, out),
                    bytes => Step::Took(bytes),
                }
            }
            _ => Step::Bad,
        }
    }

    fn scalar_has_begun(&self) -> bool {
        matches!(&self.state, State::Arguments(end) | State::Other(end) if end.has_begun)
    }

    /// A key or the name: as a whole.
    fn text(&mut self, rest: &str, out: &mut Vec<Piece>) -> Step {
        let (bytes, has_ended) = ValueEnd::default().scan(rest);
        if !has_ended {
            return Step::Took(0);
        }
        let Ok(Value::String(text)) = serde_json::from_str(&rest[..bytes]) else { return Step::Bad };
        if matches!(self.state, State::Key) {
            self.state = State::Colon(text);
            return Step::Took(bytes);
        }
        self.name = Some(text);
        self.state = State::Key;
        if self.has_arguments {
            self.begin(out);
        }
        Step::Took(bytes)
    }

    /// The name and the beginning of the arguments have come.
    fn begin(&mut self, out: &mut Vec<Piece>) {
        let Some(name) = &self.name else { return };
        self.has_begun = true;
        self.raw = String::new();
        out.push(Piece::Call { name: name.clone() });
        out.push(Piece::Arguments(std::mem::take(&mut self.early)));
    }

    fn close(&mut self, out: &mut Vec<Piece>) -> Step {
        if self.name.is_none() || self.needs_arguments && !self.has_arguments {
            return Step::Bad;
        }
        if !self.has_arguments {
            self.early = "{}".to_owned();
            self.begin(out);
        }
        Step::Done(1)
    }
}
