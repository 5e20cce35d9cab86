//! Moving about in a file's tokens: matching brackets, argument lists, attributes. It knows C++'s brackets and commas, and
//! leaves to others what a construct means.

use super::token::{Kind, Token, Tokens};
use std::collections::BTreeMap;
use std::ops::Range;

/// `[[name(argument), …]]`, from the first bracket to one past the last.
pub(super) struct Attributes {
    pub range: Range<usize>,
    pub list: Vec<Attribute>,
}

#[derive(Clone, Debug)]
pub(super) struct Attribute {
    pub name: String,
    /// The text between the parentheses.
    pub argument: Option<String>,
}

/// A file's tokens less its directives. Positions beyond the end read as an empty token.
pub(super) struct Syntax {
    pub tokens: Tokens,
    code: Vec<usize>,
    /// By the position of the first bracket.
    pub attributes: BTreeMap<usize, Attributes>,
}

impl Syntax {
    pub fn new(tokens: Tokens) -> Syntax {
        let code = (0..tokens.all.len()).filter(|&i| tokens.all[i].kind != Kind::Directive).collect();
        let mut syntax = Syntax { tokens, code, attributes: BTreeMap::new() };
        let mut at = 0;
        while at < syntax.len() {
            if let Some(attributes) = syntax.read_attributes(at) {
                let end = attributes.range.end;
                syntax.attributes.insert(at, attributes);
                at = end;
            } else {
                at += 1;
            }
        }
        syntax
    }

    pub fn len(&self) -> usize {
        self.code.len()
    }

    pub fn token(&self, at: usize) -> &Token {
        &self.tokens.all[self.code[at]]
    }

    pub fn token_mut(&mut self, at: usize) -> &mut Token {
        &mut self.tokens.all[self.code[at]]
    }

    /// The position of the token with an index.
    pub fn position(&self, index: usize) -> Option<usize> {
        self.code.binary_search(&index).ok()
    }

    /// The text at a position, empty outside the file.
    pub fn text(&self, at: usize) -> &str {
        self.code.get(at).map_or("", |&i| &self.tokens.all[i].text)
    }

    /// The text before a position.
    pub fn previous(&self, at: usize) -> &str {
        at.checked_sub(1).map_or("", |p| self.text(p))
    }

    pub fn is_identifier(&self, at: usize) -> bool {
        at < self.len() && self.token(at).kind == Kind::Identifier
    }

    /// The position of the bracket that the one at `close` closes, or 0.
    pub fn opening(&self, close: usize) -> usize {
        let mut depth = 0;
        for at in (0..=close).rev() {
            match self.text(at) {
                ")" | "]" | "}" => depth += 1,
                "(" | "[" | "{" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at;
            }
        }
        0
    }

    /// The position of the bracket that closes the one at `open`, or the end of the file.
    pub fn closing(&self, open: usize) -> usize {
        let mut depth = 0usize;
        for at in open..self.len() {
            match self.text(at) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return at;
                    }
                }
                _ => {}
            }
        }
        self.len()
    }

    /// One past the `>` that closes the `<` at `open`; none if that is a comparison.
    pub fn past_angle(&self, open: usize) -> Option<usize> {
        let (mut depth, mut at) = (0usize, open);
        while at < self.len() {
            match self.text(at) {
                "<" => depth += 1,
                ">" => {
                    depth -= 1;
                    if depth == 0 {
                        return Some(at + 1);
                    }
                }
                "(" | "[" => at = self.closing(at),
                ";" | "{" | "}" | ")" | "]" | "&&" | "||" | "" => return None,
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// One past the heads `template <…>` at `at`, if any.
    pub fn past_template(&self, mut at: usize) -> usize {
        while self.text(at) == "template" && self.text(at + 1) == "<" {
            match self.past_angle(at + 1) {
                Some(end) => at = end,
                None => break,
            }
        }
        at
    }

    /// Skips attributes.
    pub fn past_attributes(&self, mut at: usize) -> usize {
        while let Some(attributes) = self.attributes.get(&at) {
            at = attributes.range.end;
        }
        at
    }

    /// The parts of a range between its commas.
    pub fn arguments(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let (mut parts, mut start, mut at) = (Vec::new(), range.start, range.start);
        while at < range.end {
            match self.text(at) {
                "(" | "[" | "{" => at = self.closing(at),
                "<" => at = self.past_angle(at).filter(|&end| end <= range.end).map_or(at, |end| end - 1),
                "," => {
                    parts.push(start..at);
                    start = at + 1;
                }
                _ => {}
            }
            at += 1;
        }
        if start < range.end {
            parts.push(start..range.end);
        }
        parts
    }

    /// The words of a range without its attributes.
    pub fn words(&self, range: Range<usize>) -> Vec<usize> {
        let (mut words, mut at) = (Vec::new(), range.start);
        while at < range.end {
            if let Some(attributes) = self.attributes.get(&at) {
                at = attributes.range.end;
                continue;
            }
            if !self.text(at).is_empty() {
                words.push(at);
            }
            at += 1;
        }
        words
    }

    /// The attributes in a range, in order.
    pub fn attributes_in(&self, range: Range<usize>) -> Vec<Attribute> {
        self.attributes.range(range).flat_map(|(_, a)| a.list.clone()).collect()
    }

    /// A range as text on one line, without attributes, with what was written before and after its tokens.
    pub fn spelled(&self, range: Range<usize>) -> String {
        let words: Vec<String> = self
            .words(range)
            .into_iter()
            .map(|at| {
                let Token { before, text, after, .. } = self.token(at);
                format!("{before}{text}{after}")
            })
            .collect();
        words.join(" ")
    }

    /// Removes the text of a range, as far as the file goes.
    pub fn blank(&mut self, range: Range<usize>) {
        for at in range.start..range.end.min(self.len()) {
            let token = self.token_mut(at);
            token.text.clear();
            token.before.clear();
            token.after.clear();
        }
    }

    fn read_attributes(&self, at: usize) -> Option<Attributes> {
        if self.text(at) != "[" || self.text(at + 1) != "[" {
            return None;
        }
        let inner_end = self.closing(at + 1);
        if self.text(inner_end + 1) != "]" {
            return None;
        }
        let list = self.arguments(at + 2..inner_end).into_iter().map(|part| {
            // [[scope::name(…)]] keeps its last word.
            let name = (part.start..part.end).take_while(|&i| self.text(i) != "(").last().unwrap_or(part.start);
            let argument = (self.text(name + 1) == "(").then(|| self.spelled(name + 2..part.end - 1));
            Attribute { name: self.text(name).to_owned(), argument }
        });
        Some(Attributes { range: at..inner_end + 2, list: list.collect() })
    }
}
