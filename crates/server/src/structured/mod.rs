//! Answers that are held to a form: JSON of a schema, a regular expression, a grammar. Knows llguidance and tokens, no requests.

mod calls;
mod calls_of_text;
mod channels;
mod compile;
mod ebnf;
mod either;
mod follow;
mod mask;
mod numbers;
mod reasoned;
mod regex;
mod reworded;
mod size;
mod tags;
pub mod tree;
mod vocabulary;

pub use channels::{Channels, LastMessage, Open};
pub use compile::{CompileError, Structures};
pub use either::Either;
pub use follow::{Form, Memory};
pub use reasoned::Reasoned;
pub use tags::Refusal;

use serde_json::{Map, Value, json};

/// Most bytes that describe a form. What reads one may take time by the square of it: 0.6 s for 128 KiB of properties on one core, 12 s for 512.
pub const MAX_SOURCE: usize = 128 << 10;

/// Brackets that may be open at once in what describes a form: who reads it takes stack for each.
const MAX_DEPTH: usize = 128;

/// Whitespace between the parts of JSON, where a request does not say: a space, or the indentation of a new line. Without a bound a small
/// model may write spaces until its tokens are used up.
const WHITESPACE: &str = r"[ ]|\r?\n[ \t]{0,40}";

/// The form of an answer, not compiled yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Structure {
    kind: Kind,
    source: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Schema,
    Regex,
    Lark,
}

impl Structure {
    /// JSON that a schema describes; `whitespace` is a regular expression of what may stand between its parts.
    pub fn schema(schema: Value, whitespace: Option<&str>) -> Self {
        Self { kind: Kind::Schema, source: with_whitespace(schema, whitespace).to_string() }
    }

    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::schema(json!({"type": "object"}), None)
    }

    /// A text that a regular expression matches as a whole.
    pub fn regex(regex: impl Into<String>) -> Self {
        Self { kind: Kind::Regex, source: regex.into() }
    }

    /// A text of a grammar, in EBNF or in llguidance's variant of Lark.
    ///
    /// # Errors
    /// What is wrong with its EBNF.
    pub fn grammar(grammar: &str) -> Result<Self, String> {
        if grammar.len() <= MAX_SOURCE && ebnf::is_ebnf(grammar) {
            return Ok(Self::lark(ebnf::Grammar::read(grammar)?.lark()));
        }
        Ok(Self::lark(grammar))
    }

    /// A text of a grammar in llguidance's variant of Lark.
    fn lark(grammar: impl Into<String>) -> Self {
        Self { kind: Kind::Lark, source: grammar.into() }
    }

    /// One of several texts.
    pub fn choice(choices: &[String]) -> Self {
        let choices: Vec<_> = choices.iter().map(|choice| literal(choice)).collect();
        Self::lark(format!("start: {}", choices.join(" | ")))
    }

    /// What vLLM's structural tags say, in either of their forms; `path` is where they stand.
    ///
    /// # Errors
    /// What of them is not known, or cannot be held to.
    pub fn structural_tag(path: &str, mut fields: Map<String, Value>) -> Result<Self, Refusal> {
        fields.retain(|_, value| !value.is_null());
        if let Some(kind) = fields.remove("type").filter(|kind| kind != "structural_tag") {
            let reason = format!("must be \"structural_tag\", or be left out, got {kind}");
            return Err(Refusal { path: format!("{path}.type"), reason });
        }
        let Some(format) = fields.remove("format") else {
            if !fields.contains_key("structures") {
                let reason = "is required, or `structures` with their `triggers`".to_owned();
                return Err(Refusal { path: format!("{path}.format"), reason });
            }
            let format = tags::structures(path, fields)?;
            return Self::of_tags(path, &format);
        };
        if let Some(beside) = fields.keys().next() {
            let reason = "cannot stand beside `format`: send one of them".to_owned();
            return Err(Refusal { path: format!("{path}.{beside}"), reason });
        }
        let path = format!("{path}.format");
        let format = tags::format(&path, format)?;
        Self::of_tags(&path, &format)
    }

    fn of_tags(path: &str, format: &tags::Format) -> Result<Self, Refusal> {
        let lark = tags::lark(format).map_err(|reason| Refusal { path: path.to_owned(), reason })?;
        Ok(Self::lark(lark))
    }

    /// Whether it is JSON and nothing else.
    pub fn is_json(&self) -> bool {
        self.kind == Kind::Schema
    }

    /// Bytes of its description.
    pub fn bytes(&self) -> usize {
        self.source.len()
    }

    /// Refuses what could not be read within bounds.
    fn check(&self) -> Result<(), String> {
        if self.source.len() > MAX_SOURCE {
            return Err(format!("it has {} bytes, at most {MAX_SOURCE} are taken", self.source.len()));
        }
        regex::check(&self.source)?;
        let (mut depth, mut deepest) = (0usize, 0);
        for byte in self.source.bytes() {
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            deepest = deepest.max(depth);
        }
        match deepest {
            0..=MAX_DEPTH => Ok(()),
            _ => Err(format!("{deepest} brackets are open at once, at most {MAX_DEPTH} may be")),
        }
    }
}

/// A text as Lark's grammars write it: as JSON, but that llguidance takes no DEL there.
fn literal(text: &str) -> String {
    json!(text).to_string().replace('\u{7f}', "\\u007f")
}

/// The schema in llguidance's words and with its options, unless it brings its own.
fn with_whitespace(mut schema: Value, whitespace: Option<&str>) -> Value {
    const OPTIONS: &str = "x-guidance";
    reworded::reword(&mut schema);
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if let Value::Object(fields) = &mut schema
        && (whitespace.is_some() || !fields.contains_key(OPTIONS))
    {
        fields.insert(OPTIONS.to_owned(), json!({"whitespace_pattern": whitespace.unwrap_or(WHITESPACE)}));
    }
    schema
}
