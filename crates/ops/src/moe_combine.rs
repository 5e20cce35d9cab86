//! The weighted sum of a token's experts.

use crate::error::ensure_tensor;
use crate::*;

/// `out[t, :] = sum_j weights[t, j] * x[t * top_k + j, :]`, in f32, `j` ascending.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x | f32 | `[>= rows * top_k, hidden_size]` |
/// | weights | f32 | `[>= rows, top_k]` |
/// | out | f32 | `[>= rows, hidden_size]` |
pub struct MoeCombine<'a, B: Backend> {
    /// Tokens.
    pub rows: usize,
    /// Output of each pair of token and expert.
    pub x: &'a Tensor<B::Memory>,
    /// Weights of the token's experts.
    pub weights: &'a Tensor<B::Memory>,
    /// Sums.
    pub out: &'a mut Tensor<B::Memory>,
}

impl<B: Backend> MoeCombine<'_, B> {
    /// Checks the arguments and computes the op.
    pub fn run(self, backend: &mut B) -> Result<()> {
        const OP: &str = "moe_combine";
        let hidden = self.out.cols();
        ensure_tensor(OP, "weights", self.weights, DType::F32, self.rows, self.weights.cols())?;
        ensure_tensor(OP, "x", self.x, DType::F32, self.rows * self.weights.cols(), hidden)?;
        ensure_tensor(OP, "out", self.out, DType::F32, self.rows, hidden)?;
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
