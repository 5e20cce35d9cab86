//! Picks or scores a token of each row of logits. It knows no requests.
//!
//! Every backend picks the same token. Weights are f32 that come from a stated sequence of operations ([`exp`]); from then on they are
//! integers ([`units`]), whose sums are the same in any order, and so are the draw and the share that `top_p` keeps. Nothing that
//! decides which token is picked is rounded otherwise on one device than on another.

mod arithmetic;
mod reference;
mod row;

pub use arithmetic::{FRACTION_BITS, draw_target, share, unit_parts, units, units_of_parts, weight};
pub use reference::{Reference, reference};
pub use row::{Adjustment, Picked, SampleRow};

use crate::error::{ensure, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "sample";

/// For each of `rows`, of the logits `l` of its `logit_row`:
///
/// 1. Where the row has a mask, tokens that it does not allow become negative infinity: these are the row's own logits.
/// 2. The row's adjustments change `l`, see [`Adjustment`]; tokens that it has `seen` are changed as by [`Adjustment::seen`].
/// 3. `max` is the largest logit; the first token that has it is the best. NaN counts as smallest. If `max` is not finite, the row has no
///    token, and nothing but `max` is defined.
/// 4. A row that scores takes the token to score. Else, with `scale` 0, it picks the best.
/// 5. Else each token weighs [`weight`]`(l, max, scale)`. Tokens are ordered by weight, largest first, ties to the smaller id. Kept are
///    those with `w >= min_p` and `w > 0`; of these the first `top_k`; of these the fewest whose [`units`] add up to [`share`] of the sum.
/// 6. Picked is the first kept token, in the order of ids, at which the running sum of units exceeds [`draw_target`] of their sum.
/// 7. The log-probability of the token, its rank and the `num_top` most likely tokens: of the row's own logits, those of step 1, as in vLLM.
///    A mask counts, adjustments and what was seen do not. Ranks are by logit, ties to the smaller id; 0 and -0 are equal; what is
///    negative infinity is not among the most likely. The log-softmax is of [`weight`]`(l, max, 1)` and may be rounded in f32.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | logits | f32 | `[_, vocab_size]`; a row that is adjusted is of one of `rows` alone; as before afterwards |
/// | params | u32 | `[>= rows, SampleRow::WORDS]`: [`SampleRow::words`] |
/// | adjustments | u32 | `[_, Adjustment::WORDS]`: [`Adjustment::words`], a row's one after the other, each token once; undefined afterwards |
/// | masks | u32 | `[_, vocab_size / 32]`, rounded up: bit `t % 32` of word `t / 32` allows token `t`, or says that it was seen |
/// | picked | u32 | `[>= rows, Picked::WORDS]`: [`Picked::of_words`] |
/// | top | u32 | `[>= rows, 2 * MAX_TOP]`: id and bits of the f32 log-probability, best first; id `u32::MAX` beyond the last |
pub struct Sample<'a, M> {
    /// Tokens to pick or to score.
    pub rows: usize,
    /// Where from.
    pub logits: &'a mut Tensor<M>,
    /// How.
    pub params: &'a Tensor<M>,
    /// Penalties and biases.
    pub adjustments: &'a mut Tensor<M>,
    /// Allowed tokens, and those that were seen.
    pub masks: &'a Tensor<M>,
    /// The tokens.
    pub picked: &'a mut Tensor<M>,
    /// The most likely tokens.
    pub top: &'a mut Tensor<M>,
}

/// Most alternatives of a row.
pub const MAX_TOP: usize = 20;

/// Rows of logits are shorter: the units of as many tokens fit 64 bits.
pub const MAX_VOCAB: usize = 1 << (64 - FRACTION_BITS);

/// Words of a mask.
pub const fn mask_words(vocab_size: usize) -> usize {
    vocab_size.div_ceil(32)
}

impl<M> Sample<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let vocab = self.logits.cols();
        ensure(vocab > 0, NAME, "logits", "not empty", &*self.logits)?;
        ensure(vocab < MAX_VOCAB, NAME, "logits", format_args!("rows of less than {MAX_VOCAB}"), &*self.logits)?;
        ensure_tensor(NAME, "logits", self.logits, DType::F32, 1, vocab)?;
        ensure_tensor(NAME, "params", self.params, DType::U32, self.rows, SampleRow::WORDS)?;
        ensure_tensor(NAME, "adjustments", self.adjustments, DType::U32, 0, Adjustment::WORDS)?;
        ensure_tensor(NAME, "masks", self.masks, DType::U32, 0, mask_words(vocab))?;
        ensure_tensor(NAME, "picked", self.picked, DType::U32, self.rows, Picked::WORDS)?;
        ensure_tensor(NAME, "top", self.top, DType::U32, self.rows, 2 * MAX_TOP)?;
        Ok(())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.sample(self)
    }
}
