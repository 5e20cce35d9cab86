//! Brings the columns of activations into the order in which a weight has its own: that of groups of columns which were not quantised one
//! after the other (GPTQ's act-order).

use crate::error::{ensure, ensure_floats, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "permute_columns";

/// `out[t, j] = x[t, order[j]]`. A copy: exact.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x | float | `[>= rows, cols]` |
/// | order | u32 | `[>= 1, cols]`, each below `cols`: the caller's promise |
/// | out | `x`'s | `[>= rows, cols]` |
pub struct PermuteColumns<'a, M> {
    /// Tokens.
    pub rows: usize,
    /// Activations.
    pub x: &'a Tensor<M>,
    /// Of each column of `out`, the column of `x`.
    pub order: &'a Tensor<M>,
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
        let fits = self.order.dtype() == DType::U32 && self.order.rows() > 0 && self.order.cols() == cols;
        ensure(fits, NAME, "order", format_args!("uint32 [1, {cols}]"), self.order)?;
        ensure_tensor(NAME, "out", self.out, self.x.dtype(), self.rows, cols)
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

/// Plain loops: `x` is `[_, order.len()]`.
pub fn reference(x: &[f32], order: &[u32]) -> Vec<f32> {
    x.chunks_exact(order.len()).flat_map(|row| order.iter().map(|&column| row[column as usize])).collect()
}
