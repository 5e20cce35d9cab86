//! Picks the rows whose logits are wanted.

use crate::error::{ensure, ensure_floats, ensure_tensor};
use crate::*;

/// `out[i, :] = x[indices[i], :]`. A copy: exact.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x | float | `[_, cols]` |
/// | indices | u32 | `[1, >= rows]`, each below `x.rows()`: the caller's promise |
/// | out | `x`'s | `[>= rows, cols]` |
pub struct GatherRows<'a, B: Backend> {
    /// Rows to pick.
    pub rows: usize,
    /// Where from.
    pub x: &'a Tensor<B::Memory>,
    /// Which.
    pub indices: &'a Tensor<B::Memory>,
    /// Where to.
    pub out: &'a mut Tensor<B::Memory>,
}

impl<B: Backend> GatherRows<'_, B> {
    /// Checks the arguments and computes the op.
    pub fn run(self, backend: &mut B) -> Result<()> {
        const OP: &str = "gather_rows";
        let fits = self.indices.dtype() == DType::U32 && self.indices.cols() >= self.rows;
        ensure(fits, OP, "indices", format_args!("uint32 [1, at least {}]", self.rows), self.indices)?;
        ensure_floats(OP, "x", self.x, 0, self.x.cols())?;
        ensure_tensor(OP, "out", self.out, self.x.dtype(), self.rows, self.x.cols())?;
        backend.gather_rows(self)
    }
}

/// Plain loops: `x` is `[_, cols]`.
pub fn reference(x: &[f32], indices: &[u32], cols: usize) -> Vec<f32> {
    indices.iter().flat_map(|&i| x[i as usize * cols..][..cols].to_vec()).collect()
}
