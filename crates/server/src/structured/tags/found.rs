//! Where free text meets a string that begins something: as xgrammar finds them. Knows strings, no formats.

use std::collections::HashSet;

use super::text::any_of;
use crate::structured::MAX_SOURCE;

/// Most comparisons of strings with others.
const MAX_WORK: usize = 16 << 20;

/// Most bytes of all beginnings that hide a string: a grammar has them all.
const MAX_HIDDEN: usize = MAX_SOURCE;

/// Strings that are looked for in free text, letter by letter and all at once, as by the automaton of Aho and Corasick: where the text so far ends
/// with the beginning of several, the longest is followed. One that stands inside of such a beginning is not found.
pub struct Strings<'s> {
    strings: &'s [String],
    /// For each, beginnings of others that end with it.
    hidden_by: Vec<HashSet<&'s str>>,
}

impl<'s> Strings<'s> {
    /// These strings, among others that do not stand in the text.
    ///
    /// # Errors
    /// They are too many.
    pub fn new(strings: &'s [String], others: &'s [String]) -> Result<Self, String> {
        let bytes: usize = strings.iter().chain(others).map(String::len).sum();
        if bytes * strings.len() > MAX_WORK {
            return Err(format!(
                "has {} strings that begin something, of {bytes} bytes, which are too many",
                strings.len()
            ));
        }
        let mut bytes = 0;
        let hidden_by = |string: &'s String| {
            let all = strings.iter().chain(others).filter(|other| other.len() > string.len());
            let beginnings = |other: &'s String| {
                let places = (1..=other.len() - string.len())
                    .filter(move |&at| other.as_bytes()[at..].starts_with(string.as_bytes()));
                places.map(move |at| &other[..at + string.len()])
            };
            let counted = |beginning: &'s str| {
                bytes += beginning.len();
                match bytes <= MAX_HIDDEN {
                    true => Ok(beginning),
                    false => Err(format!("has {string:?} too often in longer strings that it looks for or excludes")),
                }
            };
            all.flat_map(beginnings).map(counted).collect()
        };
        Ok(Self { strings, hidden_by: strings.iter().map(hidden_by).collect::<Result<_, _>>()? })
    }

    /// What ends where the string with this number is found.
    pub fn ends_with(&self, at: usize) -> String {
        let found = format!("ALL {}", any_of(&self.strings[at..=at]));
        match self.hidden_by[at].is_empty() {
            true => found,
            false => {
                let mut hidden: Vec<_> = self.hidden_by[at].iter().map(|text| (*text).to_owned()).collect();
                hidden.sort();
                format!("({found}) & ~(ALL {})", any_of(&hidden))
            }
        }
    }

    /// What ends where any of them is found.
    pub fn ends(&self) -> String {
        let (plain, hidden): (Vec<_>, Vec<_>) = (0..self.strings.len()).partition(|&at| self.hidden_by[at].is_empty());
        let mut ways: Vec<String> = hidden.into_iter().map(|at| format!("({})", self.ends_with(at))).collect();
        if !plain.is_empty() {
            let plain: Vec<_> = plain.into_iter().map(|at| self.strings[at].clone()).collect();
            ways.push(format!("ALL {}", any_of(&plain)));
        }
        format!("({})", ways.join(" | "))
    }

    /// The longest that another one begins with.
    pub fn beginning_of(&self, at: usize) -> Option<usize> {
        let string = &self.strings[at];
        let begins =
            |other: &usize| self.strings[*other].len() < string.len() && string.starts_with(&self.strings[*other]);
        (0..self.strings.len()).filter(begins).max_by_key(|&other| self.strings[other].len())
    }

    /// Whether it can be found without its beginning.
    pub fn is_found_alone(&self, at: usize) -> bool {
        self.beginning_of(at).is_none_or(|beginning| !self.hidden_by[beginning].is_empty())
    }
}
