//! What a model writes, told apart: its reasoning, its answer and its calls of tools. Knows how models write these, no tokens and no protocol.
//!
//! Text comes in pieces, and pieces of meaning go out as soon as they are certain. However a text is cut, the pieces add up to the same: each
//! format reads a text from its beginning and decides only on what can no longer change.
//!
//! ```
//! use vllm_apple_parsers::{OutputParser, Piece, ToolFormat};
//!
//! let mut parser = OutputParser::new(None, Some(ToolFormat::Hermes), Default::default());
//! let mut pieces = parser.push("Let me see.<tool_");
//! pieces.extend(parser.push("call>{\"name\": \"now\", \"arguments\": {}}</tool_call>"));
//! pieces.extend(parser.finish());
//! let expected =
//!     [Piece::Content("Let me see.".into()), Piece::Call { name: "now".into() }, Piece::Arguments("{}".into())];
//! assert_eq!(pieces, expected);
//! ```

mod control;
mod cut;
mod formats;
mod json_call;
mod machine;
mod reasoning;
mod schemas;
mod tools;

pub use formats::{ReasoningFormat, ToolFormat};
pub use schemas::ToolSchemas;

use control::Escapes;
use machine::{Driver, Machine};
use reasoning::Think;

/// A piece of meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// What the model thinks.
    Reasoning(String),
    /// What it answers.
    Content(String),
    /// A call begins. All that follows of [`Piece::Arguments`], up to the next call, belongs to it.
    Call {
        /// The tool.
        name: String,
    },
    /// The next part of a call's arguments, which is JSON as the model wrote it where it writes JSON, but that control characters in its
    /// texts are escaped.
    Arguments(String),
}

/// Tells the pieces of one answer apart.
pub struct OutputParser {
    reasoning: Option<Driver<Think>>,
    tools: Option<Driver<Box<dyn Machine>>>,
    escapes: Escapes,
}

impl OutputParser {
    /// A parser of these formats. `None`: the model does not reason, or no tools are offered.
    pub fn new(reasoning: Option<(ReasoningFormat, bool)>, tools: Option<ToolFormat>, schemas: ToolSchemas) -> Self {
        let opening = tools.as_ref().and_then(ToolFormat::opening);
        let reasoning = reasoning.and_then(|(format, begun)| format.think(begun, opening));
        Self {
            reasoning: reasoning.map(Driver::new),
            tools: tools.map(|format| Driver::new(format.machine(schemas))),
            escapes: Escapes::default(),
        }
    }

    /// The same of an answer that is held to a form behind its thoughts: no call ends these.
    #[must_use]
    pub fn held(mut self) -> Self {
        self.reasoning = self.reasoning.map(|thoughts| Driver::new(thoughts.into_machine().without_opening()));
        self
    }

    /// Takes in the next text.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.run(text, false)
    }

    /// The text has ended.
    pub fn finish(&mut self) -> Vec<Piece> {
        self.run("", true)
    }

    fn run(&mut self, text: &str, last: bool) -> Vec<Piece> {
        let told = match &mut self.reasoning {
            Some(reasoning) => reasoning.run(text, last),
            None => vec![Piece::Content(text.to_owned())],
        };
        let mut out = Vec::new();
        for piece in told {
            match (piece, &mut self.tools) {
                (Piece::Content(text), Some(tools)) => out.extend(tools.run(&text, false)),
                (piece, _) => out.push(piece),
            }
        }
        if let (true, Some(tools)) = (last, &mut self.tools) {
            out.extend(tools.run("", true));
        }
        let mut out = joined(out);
        for piece in &mut out {
            match piece {
                Piece::Call { .. } => self.escapes = Escapes::default(),
                Piece::Arguments(text) => self.escapes.escape(text),
                Piece::Reasoning(_) | Piece::Content(_) => {}
            }
        }
        out
    }
}

impl std::fmt::Debug for OutputParser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OutputParser")
    }
}

/// Neighbours of one kind as one, and none that is empty.
pub fn joined(pieces: impl IntoIterator<Item = Piece>) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (out.last_mut(), piece) {
            (_, Piece::Reasoning(text) | Piece::Content(text) | Piece::Arguments(text)) if text.is_empty() => {}
            (Some(Piece::Reasoning(before)), Piece::Reasoning(text))
            | (Some(Piece::Content(before)), Piece::Content(text))
            | (Some(Piece::Arguments(before)), Piece::Arguments(text)) => before.push_str(&text),
            (_, piece) => out.push(piece),
        }
    }
    out
}
