//! RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) of the residual stream.

use crate::error::{ensure_floats, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "rms_norm";

/// `out[t, i] = x[t, i] / sqrt(mean_i(x[t, i]^2) + eps) * weight[i]`, rounded once to `out`'s type.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x | f32 | `[>= rows, hidden_size]` |
/// | weight | f32 | `[1, hidden_size]` |
/// | out | float | `[>= rows, hidden_size]` |
///
/// The sum of squares is in f32 in an order fixed by `hidden_size` alone.
pub struct RmsNorm<'a, M> {
    /// Tokens.
    pub rows: usize,
    /// Residual stream.
    pub x: &'a Tensor<M>,
    /// Scale.
    pub weight: &'a Tensor<M>,
    /// Added to the mean square.
    pub eps: f32,
    /// Normalised rows.
    pub out: &'a mut Tensor<M>,
}

impl<M> RmsNorm<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let hidden = self.weight.cols();
        ensure_tensor(NAME, "x", self.x, DType::F32, self.rows, hidden)?;
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
        backend.rms_norm(self)
    }
}

/// Plain loops, before the rounding to `out`'s type. `x` is `[rows, weight.len()]`.
pub fn reference(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let sum: f64 = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let scale = 1.0 / (sum / row.len() as f64 + f64::from(eps)).sqrt();
        out.extend(row.iter().zip(weight).map(|(&v, &w)| (f64::from(v) * scale * f64::from(w)) as f32));
    }
    out
}
