//! A linear layer: activations times a weight matrix.

use crate::error::{ensure, ensure_tensor};
use crate::*;

/// `out[t, n] = sum_k x[t, k] * weight[n, k] + bias[n]`, accumulated in f32.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x | the weight's | `[>= rows, K]` |
/// | weight | float | `[1, N, K]` |
/// | bias | f32 | `[1, N]` |
/// | out | f32 | `[>= rows, N]` |
///
/// The order of additions over `k` is the same for every output and every number of rows.
pub struct Matmul<'a, B: Backend> {
    /// Tokens.
    pub rows: usize,
    /// Activations.
    pub x: &'a Tensor<B::Memory>,
    /// Weight matrix.
    pub weight: &'a Weight<B::Packed>,
    /// Added last.
    pub bias: Option<&'a Tensor<B::Memory>>,
    /// Products.
    pub out: &'a mut Tensor<B::Memory>,
}

impl<B: Backend> Matmul<'_, B> {
    /// Checks the arguments and computes the op.
    pub fn run(self, backend: &mut B) -> Result<()> {
        const OP: &str = "matmul";
        ensure(self.weight.groups() == 1, OP, "weight", "one matrix", self.weight)?;
        ensure_tensor(OP, "x", self.x, self.weight.dtype(), self.rows, self.weight.cols())?;
        if let Some(bias) = self.bias {
            ensure_tensor(OP, "bias", bias, DType::F32, 1, self.weight.rows())?;
        }
        ensure_tensor(OP, "out", self.out, DType::F32, self.rows, self.weight.rows())?;
        backend.matmul(self)
    }
}

/// Plain loops: `x` is `[rows, k]`, `weight` is `[n, k]`, `bias` is `[n]` or empty.
pub fn reference(x: &[f32], weight: &[f32], bias: &[f32], k: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for row in x.chunks_exact(k) {
        for (n, column) in weight.chunks_exact(k).enumerate() {
            let dot: f64 = row.iter().zip(column).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            out.push((dot + f64::from(bias.get(n).copied().unwrap_or(0.0))) as f32);
        }
    }
    out
}
