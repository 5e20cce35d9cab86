//! How the hidden states of a prompt's tokens become one vector. It knows no request.

/// Which of a prompt's hidden states its vector is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// That of the last token.
    Last,
    /// That of the first token.
    First,
    /// The mean of all: added up in f32 in the order of the tokens, then divided by their number.
    Mean,
}

impl Pooling {
    /// Leading tokens of a prompt of `prompt_len` whose hidden states are needed besides that of the last one.
    pub fn leading_rows(self, prompt_len: usize) -> usize {
        match self {
            Self::Last => 0,
            Self::First => prompt_len.min(1),
            Self::Mean => prompt_len,
        }
    }
}
