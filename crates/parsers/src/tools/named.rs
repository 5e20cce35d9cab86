//! A call whose tool the request has named: all text is its arguments.

use crate::Piece;
use crate::machine::Machine;

pub struct Named(Option<String>);

impl Named {
    pub fn new(name: String) -> Self {
        Self(Some(name))
    }
}

impl Machine for Named {
    fn take(&mut self, rest: &str, _last: bool, out: &mut Vec<Piece>) -> usize {
        out.extend(self.0.take().map(|name| Piece::Call { name }));
        out.push(Piece::Arguments(rest.to_owned()));
        rest.len()
    }

    fn end(&mut self, _rest: &str, _out: &mut Vec<Piece>) {}
}
