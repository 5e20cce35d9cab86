//! The weighted sum of a token's experts.

use crate::error::ensure_tensor;
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "moe_combine";

/// `out[t, :] = sum_j weights[t, j] * x[t * top_k + j, :]`, in f32, `j` ascending.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x | f32 | `[>= rows * top_k, hidden_size]` |
/// | weights | f32 | `[>= rows, top_k]` |
/// | out | f32 | `[>= rows, hidden_size]` |
pub struct MoeCombine<'a, M> {
    /// Tokens.
    pub rows: usize,
    /// Output of each pair of token and expert.
    pub x: &'a Tensor<M>,
    /// Weights of the token's experts.
    pub weights: &'a Tensor<M>,
    /// Sums.
    pub out: &'a mut Tensor<M>,
}

impl<M> MoeCombine<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let hidden = self.out.cols();
        ensure_tensor(NAME, "weights", self.weights, DType::F32, self.rows, self.weights.cols())?;
        ensure_tensor(NAME, "x", self.x, DType::F32, self.rows * self.weights.cols(), hidden)?;
        ensure_tensor(NAME, "out", self.out, DType::F32, self.rows, hidden)?;
        Ok(())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.moe_combine(self)
    }
}

/// Plain loops: `x` is `[rows * top_k, hidden_size]`, `weights` is `[rows, top_k]`.
pub fn reference(x: &[f32], weights: &[f32], top_k: usize, hidden_size: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for (pairs, weights) in x.chunks_exact(top_k * hidden_size).zip(weights.chunks_exact(top_k)) {
        for i in 0..hidden_size {
            let terms = weights.iter().enumerate().map(|(j, &w)| f64::from(w) * f64::from(pairs[j * hidden_size + i]));
            out.push(terms.sum::<f64>() as f32);
        }
    }
    out
}
