//! How a format reads: it takes from the beginning of what has come and not been taken.

use crate::Piece;

/// A format's state.
pub trait Machine: Send {
    /// Takes a part of the beginning of `rest` and says how many bytes it took; 0: more must come before anything can be said. What it takes
    /// may not depend on how much has come, only on what it begins with. `last`: no more will come.
    fn take(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize;

    /// The text has ended, and all of it was taken but `rest`.
    fn end(&mut self, rest: &str, out: &mut Vec<Piece>);
}

impl Machine for Box<dyn Machine> {
    fn take(&mut self, rest: &str, last: bool, out: &mut Vec<Piece>) -> usize {
        (**self).take(rest, last, out)
    }

    fn end(&mut self, rest: &str, out: &mut Vec<Piece>) {
        (**self).end(rest, out);
    }
}

/// A machine and what it has not taken.
pub struct Driver<M> {
    machine: M,
    rest: String,
}

impl<M: Machine> Driver<M> {
    pub fn new(machine: M) -> Self {
        Self { machine, rest: String::new() }
    }

    pub fn into_machine(self) -> M {
        self.machine
    }

    pub fn run(&mut self, text: &str, last: bool) -> Vec<Piece> {
        self.rest.push_str(text);
        let (mut out, mut at) = (Vec::new(), 0);
        loop {
            let rest = &self.rest[at..];
            let taken = if rest.is_empty() { 0 } else { self.machine.take(rest, last, &mut out) };
            if taken == 0 {
                break;
            }
            at += taken;
        }
        self.rest.drain(..at);
        if last {
            self.machine.end(&std::mem::take(&mut self.rest), &mut out);
        }
        out
    }
}
