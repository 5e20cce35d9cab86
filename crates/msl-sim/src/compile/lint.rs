//! What is said of a source: an error or a warning, at a place. It knows no rule.

use std::fmt;

/// How bad a [`Lint`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Apple's compiler accepts it; it is likely a mistake, or it makes the kernel harder to move.
    Warning,
    /// Apple's compiler rejects it, or it cannot run on a GPU.
    Error,
}

/// A finding about a `.metal` file before any of its kernels runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lint {
    /// The file's name, as given in [`Source::name`](super::Source::name) or found in an include directory.
    pub file: String,
    /// From 1; 0 if unknown.
    pub line: u32,
    /// From 1; 0 if unknown.
    pub column: u32,
    /// Error or warning.
    pub severity: Severity,
    /// What is wrong, and what to write instead.
    pub message: String,
}

impl fmt::Display for Lint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lint { file, line, column, message, .. } = self;
        let severity = if self.severity == Severity::Error { "error" } else { "warning" };
        match (line, column) {
            (0, _) => write!(f, "{file}: {severity}: {message}"),
            (_, 0) => write!(f, "{file}:{line}: {severity}: {message}"),
            _ => write!(f, "{file}:{line}:{column}: {severity}: {message}"),
        }
    }
}
