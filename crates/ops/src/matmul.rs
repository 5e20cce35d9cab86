//! A linear layer: activations times a weight matrix.

use crate::error::{ensure, ensure_columns, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "matmul";

/// `out[t, first + n] = sum_k x[t, k] * weight[n, k] + bias[n]`, accumulated in f32. Other columns of `out` stay as they are.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x | the input of the weight's format | `[>= rows, K]` |
/// | weight | any format | `[1, N, K]` |
/// | bias | f32 | `[1, N]` |
/// | out | f32 | `[>= rows, >= first + N]` |
///
/// The order of additions over `k` is the same for every output and every number of rows. A quantised weight's elements are those of
/// [`Quantised`].
pub struct Matmul<'a, M, W> {
    /// Tokens.
    pub rows: usize,
    /// Activations.
    pub x: &'a Tensor<M>,
    /// Weight matrix.
    pub weight: &'a Weight<W>,
    /// Added last.
    pub bias: Option<&'a Tensor<M>>,
    /// Products.
    pub out: &'a mut Tensor<M>,
    /// Column of `out` where they begin.
    pub first: usize,
}

impl<M, W> Matmul<'_, M, W> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        ensure(self.weight.groups() == 1, NAME, "weight", "one matrix", self.weight)?;
        ensure_tensor(NAME, "x", self.x, self.weight.format().input(), self.rows, self.weight.cols())?;
        if let Some(bias) = self.bias {
            ensure_tensor(NAME, "bias", bias, DType::F32, 1, self.weight.rows())?;
        }
        ensure_columns(NAME, self.out, self.first, self.weight.rows())?;
        ensure_tensor(NAME, "out", self.out, DType::F32, self.rows, self.out.cols())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M, Packed = W>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
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
