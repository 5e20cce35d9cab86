//! Brings the columns of activations into the order in which a weight has its own: that of groups of columns which were not quantised one
//! after the other (GPTQ's act-order).

use crate::error::{ensure_floats, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "permute_columns";

/// `out[t, c] = x[t, order[0, c]]`, or with experts `out[t * top_k + j, c] = x[t, order[ids[t, j], c]]`. A copy: exact.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x | float | `[>= rows, cols]` |
/// | order | u32 | `[>= 1, cols]`, each below `cols`: the caller's promise |
/// | ids | u32 | `[>= rows, top_k]`, each a row of `order`: the caller's promise |
/// | out | `x`'s | `[>= rows, cols]`, or `[>= rows * top_k, cols]` |
pub struct PermuteColumns<'a, M> {
    /// Tokens.
    pub rows: usize,
    /// Activations.
    pub x: &'a Tensor<M>,
    /// Of each column of `out`, the column of `x`.
    pub order: &'a Tensor<M>,
    /// Experts of each token, each of which has an order of its own.
    pub ids: Option<&'a Tensor<M>>,
    /// Where to.
    pub out: &'a mut Tensor<M>,
}

impl<M> PermuteColumns<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let cols = self.x.cols();
        ensure_floats(NAME, "x", self.x, self.rows, cols)?;
        ensure_tensor(NAME, "order", self.order, DType::U32, 1, cols)?;
        if let Some(ids) = self.ids {
            ensure_tensor(NAME, "ids", ids, DType::U32, self.rows, ids.cols())?;
        }
        ensure_tensor(NAME, "out", self.out, self.x.dtype(), self.rows * self.top_k(), cols)
    }

    /// Rows of `out` for one of `x`.
    pub fn top_k(&self) -> usize {
        self.ids.map_or(1, Tensor::cols)
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.permute_columns(self)
    }
}

/// Plain loops: `x` is `[_, cols]`, `order` is `[_, cols]`, and of `ids` each row of `x` has as many.
pub fn reference(x: &[f32], order: &[u32], cols: usize, ids: &[u32]) -> Vec<f32> {
    let rows = x.len() / cols;
    let top_k = ids.len() / rows.max(1);
    let row = |(pair, &id): (usize, &u32)| {
        let from = &x[pair / top_k * cols..][..cols];
        order[id as usize * cols..][..cols].iter().map(|&column| from[column as usize])
    };
    ids.iter().enumerate().flat_map(row).collect()
}
