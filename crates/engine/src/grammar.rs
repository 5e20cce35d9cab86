//! What may restrict the tokens of a request. The layer above knows texts and makes it; the engine only asks what may come next.

use std::fmt::Debug;

/// Why a grammar cannot go on, by whose fault it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The grammar's own: the same request would end so again.
    #[error("{0}")]
    Form(String),
    /// Others hold the memory that it takes to follow it: it may be there in a while.
    #[error("{0}")]
    OutOfMemory(String),
    /// What follows it failed.
    #[error("{0}")]
    Internal(String),
}

/// A set of outputs. All answers to a request share it.
pub trait Grammar: Debug + Send + Sync {
    /// How far an answer without a token has come.
    fn start(&self) -> Box<dyn Matcher>;
}

/// How far one answer has come: a function of its tokens alone.
pub trait Matcher: Send {
    /// Takes in the next token.
    ///
    /// # Errors
    /// Why the grammar cannot go on: the request ends.
    fn accept(&mut self, token: u32) -> Result<(), GrammarError>;

    /// Sets bit `t % 32` of word `t / 32` for each token `t` that may come next. All bits are clear before. The model's end tokens may come
    /// where the output may end.
    ///
    /// # Errors
    /// As [`Matcher::accept`].
    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), GrammarError>;
}
