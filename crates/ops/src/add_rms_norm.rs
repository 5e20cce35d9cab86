//! A residual addition and the RMSNorm that follows it, in one pass over the residual stream.

use crate::error::{ensure_floats, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "add_rms_norm";

/// `residual[t, :] += delta[t, :]`, then [`RmsNorm`] of `residual`, in the same order as that op.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | residual, delta | f32 | `[>= rows, hidden_size]` |
/// | weight | f32 | `[1, hidden_size]` |
/// | out | float | `[>= rows, hidden_size]` |
pub struct AddRmsNorm<'a, M> {
    /// Tokens.
    pub rows: usize,
    /// Residual stream, updated in place.
    pub residual: &'a mut Tensor<M>,
    /// What a block adds to it.
    pub delta: &'a Tensor<M>,
    /// Scale.
    pub weight: &'a Tensor<M>,
    /// Added to the mean square.
    pub eps: f32,
    /// Normalised rows.
    pub out: &'a mut Tensor<M>,
}

impl<M> AddRmsNorm<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let hidden = self.weight.cols();
        ensure_tensor(NAME, "residual", self.residual, DType::F32, self.rows, hidden)?;
        ensure_tensor(NAME, "delta", self.delta, DType::F32, self.rows, hidden)?;
        ensure_tensor(NAME, "weight", self.weight, DType::F32, 1, hidden)?;
        ensure_floats(NAME, "out", self.out, self.rows, hidden)?;
        Ok(())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.add_rms_norm(self)
    }
}

/// The composed reference: the new residual, and its norm before the rounding to `out`'s type.
pub fn reference(residual: &[f32], delta: &[f32], weight: &[f32], eps: f32) -> (Vec<f32>, Vec<f32>) {
    let residual: Vec<f32> = residual.iter().zip(delta).map(|(r, d)| r + d).collect();
    let out = rms_norm::reference(&residual, weight, eps);
    (residual, out)
}
