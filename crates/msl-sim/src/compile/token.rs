//! Tokens of preprocessed Metal source, each with the file, line and column where a reader finds it.
//! It knows how C++ is spelled, and nothing of what Metal means.

use std::collections::HashMap;
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Identifier,
    Number,
    /// A string or character literal.
    Literal,
    Punctuation,
    /// A whole line that starts with `#`.
    Directive,
}

/// One token. The front end edits a file by blanking `text` and by writing before and after it.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub kind: Kind,
    pub text: String,
    /// Index into [`Tokens::files`].
    pub file: usize,
    pub line: u32,
    /// From 1; 0 where only the line is known, as inside the expansion of a macro.
    pub column: u32,
    /// Whether white space stood before it.
    pub spaced: bool,
    pub before: String,
    pub after: String,
}

/// A preprocessed file.
pub(super) struct Tokens {
    pub files: Vec<Rc<str>>,
    pub all: Vec<Token>,
}

impl Tokens {
    /// Reads the output of `clang -E`: `# line "file"` says where the lines that follow come from.
    pub fn read(preprocessed: &str) -> Tokens {
        let mut files: Vec<Rc<str>> = Vec::new();
        let mut indices: HashMap<String, usize> = HashMap::new();
        let mut all = Vec::with_capacity(preprocessed.len() / 4);
        let (mut file, mut line) = (0, 1);
        for text in preprocessed.lines() {
            if let Some((number, name)) = line_marker(text) {
                file = *indices.entry(name.to_owned()).or_insert_with(|| {
                    files.push(name.into());
                    files.len() - 1
                });
                line = number;
                continue;
            }
            if text.trim_start().starts_with('#') {
                all.push(Token::new(Kind::Directive, text.trim(), file, line));
            } else {
                for (word, kind, _, spaced) in words(text) {
                    all.push(Token { spaced, ..Token::new(kind, word, file, line) });
                }
            }
            line += 1;
        }
        if files.is_empty() {
            files.push("".into());
        }
        Tokens { files, all }
    }

    /// Finds the columns of the tokens in the lines of the file that they come from: the preprocessor moves what follows a macro.
    pub fn find_columns(&mut self, file: usize, lines: &HashMap<u32, &str>) {
        // The words of the line at hand with their columns, and the first that no token has taken.
        let (mut line, mut columns, mut next) = (0, Vec::new(), 0);
        for token in self.all.iter_mut().filter(|t| t.file == file && t.kind != Kind::Directive) {
            if token.line != line {
                line = token.line;
                let text = lines.get(&line).copied().unwrap_or("");
                (columns, next) = (words(text).map(|(word, _, column, _)| (word, column)).collect::<Vec<_>>(), 0);
            }
            if let Some(found) = columns[next..].iter().position(|(word, _)| *word == token.text) {
                token.column = columns[next + found].1;
                next += found + 1;
            }
        }
    }
}

impl Token {
    fn new(kind: Kind, text: &str, file: usize, line: u32) -> Token {
        let (before, after) = (String::new(), String::new());
        Token { kind, text: text.to_owned(), file, line, column: 0, spaced: true, before, after }
    }
}

/// `# 12 "name.metal" 2` and `#line 12 "name.metal"`.
pub(super) fn line_marker(text: &str) -> Option<(u32, &str)> {
    let rest = text.strip_prefix("# ").or_else(|| text.strip_prefix("#line "))?;
    let (number, rest) = rest.split_once(' ')?;
    let name = rest.strip_prefix('"')?;
    Some((number.parse().ok()?, &name[..name.rfind('"')?]))
}

/// The words of a line: text, kind, column from 1, whether white space stands before it.
fn words(line: &str) -> impl Iterator<Item = (&str, Kind, u32, bool)> {
    let bytes = line.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at;
        while at < bytes.len() && bytes[at].is_ascii_whitespace() {
            at += 1;
        }
        let spaced = at > start || at == 0;
        let begin = at;
        let kind = match *bytes.get(at)? {
            b'"' | b'\'' => {
                at = end_of_literal(bytes, at);
                Kind::Literal
            }
            c if c.is_ascii_digit() || (c == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)) => {
                at = end_of_number(bytes, at);
                Kind::Number
            }
            c if is_identifier(c) => {
                while at < bytes.len() && is_identifier(bytes[at]) {
                    at += 1;
                }
                Kind::Identifier
            }
            _ => {
                at += punctuation(&line[at..]);
                Kind::Punctuation
            }
        };
        Some((&line[begin..at], kind, begin as u32 + 1, spaced))
    })
}

/// Bytes above ASCII are letters: clang says what it thinks of them.
fn is_identifier(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_' || c >= 0x80
}

fn end_of_literal(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != bytes[start] {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn end_of_number(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    let hexadecimal = bytes[start..].starts_with(b"0x") || bytes[start..].starts_with(b"0X");
    while at < bytes.len() {
        let exponent = if hexadecimal { b"pP" } else { b"eE" };
        let sign = matches!(bytes[at], b'+' | b'-') && at > start && exponent.contains(&bytes[at - 1]);
        if !(bytes[at].is_ascii_alphanumeric() || bytes[at] == b'.' || bytes[at] == b'\'' || sign) {
            break;
        }
        at += 1;
    }
    at
}

/// Length of the operator at the start. `>>` is two tokens: it also closes two template argument lists.
fn punctuation(text: &str) -> usize {
    const LONG: [&str; 21] = [
        "<<=", "->*", "...", "::", "->", "<<", "<=", ">=", "==", "!=", "&&", "||", "++", "--", "+=", "-=", "*=", "/=",
        "%=", "&=", "|=",
    ];
    match LONG.iter().find(|operator| text.starts_with(**operator)) {
        Some(operator) => operator.len(),
        None if text.starts_with("^=") => 2,
        None => text.chars().next().map_or(1, char::len_utf8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_the_original_behind_a_macro() {
        let mut tokens = Tokens::read("# 1 \"a.metal\"\n\nfloat x = (1 + 2) * y;\n");
        tokens.find_columns(0, &HashMap::from([(1, "#define TWO (1 + 2)"), (2, "float x = TWO * y;")]));
        let column = |text: &str| tokens.all.iter().find(|t| t.text == text).unwrap().column;
        assert_eq!((column("x"), column("y"), column("2")), (7, 17, 0));
    }

    #[test]
    fn shifts_and_template_ends_keep_their_text() {
        let text: Vec<_> = words("a>>=b<c<1>>(1e-3f,.5)").map(|w| w.0).collect();
        assert_eq!(text, ["a", ">", ">=", "b", "<", "c", "<", "1", ">", ">", "(", "1e-3f", ",", ".5", ")"]);
    }
}
