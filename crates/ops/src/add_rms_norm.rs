//! A residual addition and the RMSNorm that follows it, in one pass over the residual stream.

use crate::error::{ensure_floats, ensure_tensor};
use crate::*;

/// `residual[t, :] += delta[t, :]`, then [`RmsNorm`] of `residual`, in the same order as that op.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | residual, delta | f32 | `[>= rows, hidden_size]` |
/// | weight | f32 | `[1, hidden_size]` |
/// | out | float | `[>= rows, hidden_size]` |
pub struct AddRmsNorm<'a, B: Backend> {
    /// Tokens.
    pub rows: usize,
    /// Residual stream, updated in place.
    pub residual: &'a mut Tensor<B::Memory>,
    /// What a block adds to it.
    pub delta: &'a Tensor<B::Memory>,
    /// Scale.
    pub weight: &'a Tensor<B::Memory>,
    /// Added to the mean square.
    pub eps: f32,
    /// Normalised rows.
    pub out: &'a mut Tensor<B::Memory>,
}

impl<B: Backend> AddRmsNorm<'_, B> {
    /// Checks the arguments and computes the op.
    pub fn run(self, backend: &mut B) -> Result<()> {
        const OP: &str = "add_rms_norm";
        let hidden = self.weight.cols();
        ensure_tensor(OP, "residual", self.residual, DType::F32, self.rows, hidden)?;
        ensure_tensor(OP, "delta", self.delta, DType::F32, self.rows, hidden)?;
        ensure_tensor(OP, "weight", self.weight, DType::F32, 1, hidden)?;
        ensure_floats(OP, "out", self.out, self.rows, hidden)?;
        backend.add_rms_norm(self)
    }
}

/// The composed reference: the new residual, and its norm before the rounding to `out`'s type.
pub fn reference(residual: &[f32], delta: &[f32], weight: &[f32], eps: f32) -> (Vec<f32>, Vec<f32>) {
    let residual: Vec<f32> = residual.iter().zip(delta).map(|(r, d)| r + d).collect();
    let out = rms_norm::reference(&residual, weight, eps);
    (residual, out)
}
