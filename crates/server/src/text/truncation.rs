//! Shortens a prompt to a number of tokens. Knows a tokenizer, no request.

use serde_json::Value;

use super::{TextError, Tokenizer};

/// Which tokens go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first ones.
    Left,
    /// The last ones.
    Right,
}

/// How long a prompt may be, and what becomes of the rest, as vLLM's `truncate_prompt_tokens` and `truncation_side` say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncation {
    /// Most tokens, special ones included.
    pub max_tokens: usize,
    /// `None`: the tokenizer's own side, and of a text the special tokens around it stay.
    pub side: Option<Side>,
}

impl Truncation {
    /// Shortened tokens.
    pub fn of_tokens(self, tokenizer: &Tokenizer, ids: Vec<u32>) -> Vec<u32> {
        cut(&ids, self.max_tokens, self.side.unwrap_or(own_side(tokenizer))).to_vec()
    }

    /// The tokens of a text, shortened.
    pub fn encode(self, tokenizer: &Tokenizer, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        let side = self.side.unwrap_or(own_side(tokenizer));
        let text = tokenizer.part_of_bounded_length(text, side);
        let whole = tokenizer.encode(text, add_special_tokens)?;
        if whole.len() <= self.max_tokens {
            return Ok(whole);
        }
        if self.side.is_some() || !add_special_tokens {
            return Ok(cut(&whole, self.max_tokens, side).to_vec());
        }
        let plain = tokenizer.encode(text, false)?;
        let before = whole.windows(plain.len().max(1)).position(|tokens| tokens == plain);
        // A tokenizer that puts nothing around a text, but changes it.
        let Some(before) = before else { return Ok(cut(&whole, self.max_tokens, side).to_vec()) };
        let after = &whole[before + plain.len()..];
        let Some(room) = self.max_tokens.checked_sub(before + after.len()) else {
            let special = before + after.len();
            let reason = format!("{special} special tokens are put around a text, which may have {}", self.max_tokens);
            return Err(TextError::Tokenize(reason));
        };
        Ok([&whole[..before], cut(&plain, room, side), after].concat())
    }
}

fn cut(ids: &[u32], max_tokens: usize, side: Side) -> &[u32] {
    let rest = ids.len().saturating_sub(max_tokens);
    match side {
        Side::Left => &ids[rest..],
        Side::Right => &ids[..ids.len() - rest],
    }
}

/// What tokenizer_config.json says; without a word the right, as in transformers.
fn own_side(tokenizer: &Tokenizer) -> Side {
    match tokenizer.special_tokens().config().get("truncation_side").and_then(Value::as_str) {
        Some("left") => Side::Left,
        _ => Side::Right,
    }
}
