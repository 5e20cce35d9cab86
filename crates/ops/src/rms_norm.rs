//! RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) of the residual stream.

use crate::error::{ensure_floats, ensure_tensor};
use crate::*;

/// `out[t, i] = x[t, i] / sqrt(mean_i(x[t, i]^2) + eps) * weight[i]`, rounded once to `out`'s type.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x | f32 | `[>= rows, hidden_size]` |
/// | weight | f32 | `[1, hidden_size]` |
/// | out | float | `[>= rows, hidden_size]` |
///
/// The sum of squares is in f32 in an order fixed by `hidden_size` alone.
pub struct RmsNorm<'a, B: Backend> {
    /// Tokens.
    pub rows: usize,
    /// Residual stream.
    pub x: &'a Tensor<B::Memory>,
    /// Scale.
    pub weight: &'a Tensor<B::Memory>,
    /// Added to the mean square.
    pub eps: f32,
    /// Normalised rows.
    pub out: &'a mut Tensor<B::Memory>,
}

impl<B: Backend> RmsNorm<'_, B> {
    /// Checks the arguments and computes the op.
    pub fn run(self, backend: &mut B) -> Result<()> {
        const OP: &str = "rms_norm";
        let hidden = self.weight.cols();
        ensure_tensor(OP, "x", self.x, DType::F32, self.rows, hidden)?;
        ensure_tensor(OP, "weight", self.weight, DType::F32, 1, hidden)?;
        ensure_floats(OP, "out", self.out, self.rows, hidden)?;
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
