//! A request's budget of thinking: the token that must come next once it is spent. It knows no text.

use pyo3::prelude::*;

/// A dictionary with these keys. No list is empty.
#[derive(Debug, Clone, FromPyObject)]
#[pyo3(from_item_all)]
pub struct Thinking {
    /// Tokens that may follow `start`.
    budget: u32,
    start: Vec<u32>,
    /// With which the model ends its thinking itself.
    end: Vec<u32>,
    /// What follows a spent budget: perhaps a sentence before `end`.
    forced_end: Vec<u32>,
}

impl Thinking {
    /// What must follow `tokens`, prompt and output, if anything. As in vLLM's second model runner; its first one lets more tokens pass where
    /// a prompt begins the thinking with a `start` of several, and knows no `end` but `forced_end`.
    pub fn forced(&self, tokens: &[u32]) -> Option<u32> {
        self.spent(tokens).filter(|&spent| spent >= self.budget as usize)?;
        // As much of the end as is there already.
        let said = (0..self.forced_end.len()).rev().find(|&n| tokens.ends_with(&self.forced_end[..n]));
        said.map(|said| self.forced_end[said])
    }

    /// Tokens since thinking began, or `None` if it has ended or not begun.
    fn spent(&self, tokens: &[u32]) -> Option<usize> {
        let ends = |at: usize| [&self.end, &self.forced_end].iter().any(|end| tokens[at..].starts_with(end));
        let last = (0..tokens.len()).rev().find(|&at| ends(at) || tokens[at..].starts_with(&self.start))?;
        (!ends(last)).then(|| tokens.len() - last - self.start.len())
    }
}
