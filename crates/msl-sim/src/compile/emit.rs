//! Writes edited tokens back as text in which every token stands at the line and column of the original, so that clang's
//! diagnostics, `__builtin_COLUMN` and the line table need no translation. It knows nothing of Metal.

use super::token::{Kind, Token, Tokens};
use std::collections::HashMap;
use std::fmt::Write;

/// Where the next character will be, in the file that the reader knows.
struct Writer<'a> {
    tokens: &'a Tokens,
    out: String,
    file: usize,
    line: u32,
    column: u32,
    places: HashMap<Place, usize>,
}

/// Where clang sees a token: its file as an index, line and column.
pub(super) type Place = (usize, u32, u32);

/// The text of all tokens, and which token has come to stand where, by its index.
pub(super) fn emit(tokens: &Tokens) -> (String, HashMap<Place, usize>) {
    let out = String::with_capacity(tokens.all.len() * 6);
    let mut writer = Writer { tokens, out, file: usize::MAX, line: 0, column: 1, places: HashMap::new() };
    for (index, token) in tokens.all.iter().enumerate() {
        writer.token(index, token);
    }
    writer.out.push('\n');
    (writer.out, writer.places)
}

impl Writer<'_> {
    fn token(&mut self, index: usize, token: &Token) {
        if token.kind == Kind::Directive {
            self.go_to(token);
            if self.column != 1 {
                self.mark(token.file, token.line);
            }
            self.push(&token.text);
            // What follows on the same line must not join the directive.
            self.line = 0;
            return;
        }
        if token.text.is_empty() && token.before.is_empty() && token.after.is_empty() {
            return;
        }
        self.go_to(token);
        self.separate(token);
        self.push(&token.before);
        if token.column != 0 && !token.text.is_empty() {
            if self.column > token.column {
                self.mark(token.file, token.line);
            }
            while self.column < token.column {
                self.push(" ");
            }
        }
        self.places.insert((token.file, self.line, self.column), index);
        self.push(&token.text);
        self.push(&token.after);
    }

    /// A space where there was one, or where two words would become one.
    fn separate(&mut self, token: &Token) {
        let last = self.out.as_bytes().last().copied().unwrap_or(b' ');
        let first = token.before.bytes().chain(token.text.bytes()).next().unwrap_or(b' ');
        let was_spaced = (token.spaced && token.column == 0) || token.before.starts_with(':');
        if !last.is_ascii_whitespace() && (was_spaced || (word(last) && word(first))) {
            self.push(" ");
        }
    }

    fn go_to(&mut self, token: &Token) {
        let ahead = token.line.wrapping_sub(self.line);
        if token.file != self.file || self.line == 0 || ahead > 8 {
            self.mark(token.file, token.line);
        } else if ahead > 0 {
            for _ in 0..ahead {
                self.out.push('\n');
            }
            (self.line, self.column) = (token.line, 1);
        }
    }

    fn mark(&mut self, file: usize, line: u32) {
        if !self.out.is_empty() {
            self.out.push('\n');
        }
        let name = &self.tokens.files[file];
        writeln!(self.out, "# {line} \"{name}\"").expect("writing to a string");
        (self.file, self.line, self.column) = (file, line, 1);
    }

    fn push(&mut self, text: &str) {
        self.out.push_str(text);
        self.column += text.len() as u32;
    }
}

fn word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_insertion_does_not_move_what_follows() {
        let source = "int a = 1; b(2);\n\nint c;\n";
        let mut tokens = Tokens::read(&format!("# 1 \"a.metal\"\n{source}"));
        tokens.find_columns(0, &HashMap::from([(1, "int a = 1; b(2);"), (3, "int c;")]));
        tokens.all[3].after = "000000000".to_owned();
        let (out, _) = emit(&tokens);
        assert_eq!(out.trim(), "# 1 \"a.metal\"\nint a = 1000000000\n# 1 \"a.metal\"\n         ; b(2);\n\nint c;");
    }
}
