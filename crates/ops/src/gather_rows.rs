//! Picks the rows whose logits are wanted.

use crate::error::{ensure, ensure_floats, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "gather_rows";

/// `out[i, :] = x[indices[i], :]`. A copy: exact.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x | float | `[_, cols]` |
/// | indices | u32 | `[1, >= rows]`, each below `x.rows()`: the caller's promise |
/// | out | `x`'s | `[>= rows, cols]` |
pub struct GatherRows<'a, M> {
    /// Rows to pick.
    pub rows: usize,
    /// Where from.
    pub x: &'a Tensor<M>,
    /// Which.
    pub indices: &'a Tensor<M>,
    /// Where to.
    pub out: &'a mut Tensor<M>,
}

impl<M> GatherRows<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let fits = self.indices.dtype() == DType::U32 && self.indices.cols() >= self.rows;
        ensure(fits, NAME, "indices", format_args!("uint32 [1, at least {}]", self.rows), self.indices)?;
        ensure_floats(NAME, "x", self.x, 0, self.x.cols())?;
        ensure_tensor(NAME, "out", self.out, self.x.dtype(), self.rows, self.x.cols())?;
        Ok(())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.gather_rows(self)
    }
}

/// Plain loops: `x` is `[_, cols]`.
pub fn reference(x: &[f32], indices: &[u32], cols: usize) -> Vec<f32> {
    indices.iter().flat_map(|&i| x[i as usize * cols..][..cols].to_vec()).collect()
}
