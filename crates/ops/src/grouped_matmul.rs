//! Linear layers of a mixture of experts: every pair of token and chosen expert is one row.

use crate::error::{ensure, ensure_columns, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "grouped_matmul";

/// Pair `p = t * top_k + j` of token `t` uses expert `e = ids[t, j]`: `out[p, first + n] = sum_k x[r, k] * weight[e, n, k] +
/// bias[e, n]` with `r = p / pairs_per_row`, in the order of [`Matmul`]. Other columns of `out` stay as they are.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x | the input of the weight's format | `[>= tokens * top_k / pairs_per_row, K]` |
/// | ids | u32 | `[>= tokens, top_k]`, each below `weight.groups()` |
/// | weight | any format | `[num_experts, N, K]` |
/// | bias | f32 | `[num_experts, N]` |
/// | out | f32 | `[>= tokens * top_k, >= first + N]` |
pub struct GroupedMatmul<'a, M, W> {
    /// Tokens.
    pub tokens: usize,
    /// `top_k` where the rows of `x` are tokens, 1 where they are pairs.
    pub pairs_per_row: usize,
    /// Activations.
    pub x: &'a Tensor<M>,
    /// Chosen experts.
    pub ids: &'a Tensor<M>,
    /// The experts' matrices.
    pub weight: &'a Weight<W>,
    /// Added last.
    pub bias: Option<&'a Tensor<M>>,
    /// Products, a row per pair.
    pub out: &'a mut Tensor<M>,
    /// Column of `out` where they begin.
    pub first: usize,
}

impl<M, W> GroupedMatmul<'_, M, W> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let top_k = self.ids.cols();
        let per_row_fits = self.pairs_per_row == 1 || self.pairs_per_row == top_k;
        ensure(per_row_fits, NAME, "pairs_per_row", format_args!("1 or {top_k}"), self.pairs_per_row)?;
        ensure_tensor(NAME, "ids", self.ids, DType::U32, self.tokens, top_k)?;
        let pairs = self.tokens * top_k;
        let x_rows = pairs / self.pairs_per_row;
        ensure_tensor(NAME, "x", self.x, self.weight.format().input(), x_rows, self.weight.cols())?;
        if let Some(bias) = self.bias {
            ensure_tensor(NAME, "bias", bias, DType::F32, self.weight.groups(), self.weight.rows())?;
        }
        ensure_columns(NAME, self.out, self.first, self.weight.rows())?;
        ensure_tensor(NAME, "out", self.out, DType::F32, pairs, self.out.cols())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M, Packed = W>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.grouped_matmul(self)
    }
}

/// Plain loops: `ids` is `[tokens * top_k]`, `weight` is `[num_experts, n, k]`, `bias` is `[num_experts, n]` or empty.
pub fn reference(
    x: &[f32],
    ids: &[u32],
    pairs_per_row: usize,
    weight: &[f32],
    bias: &[f32],
    [n, k]: [usize; 2],
) -> Vec<f32> {
    let mut out = Vec::new();
    for (pair, &expert) in ids.iter().enumerate() {
        let row = &x[pair / pairs_per_row * k..][..k];
        let e = expert as usize;
        let bias = if bias.is_empty() { bias } else { &bias[e * n..][..n] };
        out.extend(matmul::reference(row, &weight[e * n * k..][..n * k], bias, k));
    }
    out
}
