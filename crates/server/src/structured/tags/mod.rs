//! Forms inside free text, as vLLM's structural tags say them: by xgrammar's `format`, or by `structures` and `triggers`. Knows what a request
//! says, not how an answer is held to it.

mod dispatch;
mod found;
mod parse;
mod text;
mod write;

pub use parse::{Refusal, format, structures};
pub use write::lark;

use serde_json::Value;

use super::ebnf::Grammar;

/// A part of an answer. Names are xgrammar's.
#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    /// This text.
    ConstString(String),
    /// JSON of a schema.
    JsonSchema(Value),
    /// A text of a grammar.
    Grammar(Grammar),
    /// A text that a regular expression matches as a whole.
    Regex {
        /// The expression.
        pattern: String,
        /// About how many states it takes to follow it.
        states: usize,
    },
    /// Text without certain strings, and of at most so many characters.
    AnyText {
        /// They do not stand in it.
        excludes: Vec<String>,
        /// `None`: any number.
        max_chars: Option<u64>,
    },
    /// One after the other.
    Sequence(Vec<Format>),
    /// One of them.
    Or(Vec<Format>),
    /// From `min` to `max` times.
    Repeat {
        /// What comes again.
        content: Box<Format>,
        /// The least.
        min: u32,
        /// The most; `None`: any number.
        max: Option<u32>,
    },
    /// A part in tags.
    Tag(Tag),
    /// Tags with a text between.
    Separated {
        /// Each is one of them.
        tags: Vec<Tag>,
        /// The text.
        separator: String,
        /// There may be none.
        is_optional: bool,
        /// There is one at most.
        is_alone: bool,
    },
    /// Free text in which certain strings begin a part.
    Dispatch(Dispatch),
}

/// `begin`, a part, and one of `ends`.
#[derive(Debug, Clone, PartialEq)]
pub struct Tag {
    /// What stands before it.
    pub begin: String,
    /// The part.
    pub content: Box<Format>,
    /// What may stand after it. None: whatever comes after what the tag stands in.
    pub ends: Vec<String>,
}

/// Free text, and after each trigger one of the tags that begin with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch {
    /// Each tag begins with one.
    pub triggers: Vec<String>,
    /// What follows them.
    pub tags: Vec<Tag>,
    /// What does not stand in the free text.
    pub excludes: Vec<String>,
    /// A tag comes first.
    pub at_least_one: bool,
    /// Nothing comes after the first tag.
    pub stop_after_first: bool,
}
