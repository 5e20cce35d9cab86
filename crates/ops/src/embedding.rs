//! Embedding: rows of the token table as the f32 residual stream.

use crate::error::{ensure, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "embedding";

/// `out[t, :] = table[ids[t], :] * scale`, in f32: one product, and exact with a scale of 1. Elements of a quantised table are
/// those of [`Quantised::value`].
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | ids | u32 | `[1, >= rows]`, each below `table.rows()`: the caller's promise |
/// | table | any format | `[1, vocab_size, hidden_size]` |
/// | out | f32 | `[>= rows, hidden_size]` |
pub struct Embedding<'a, M, W> {
    /// Tokens.
    pub rows: usize,
    /// Token ids.
    pub ids: &'a Tensor<M>,
    /// Token table, which may also be the output head.
    pub table: &'a Weight<W>,
    /// Factor of every element: 1 for most models, the root of `hidden_size` for Gemma.
    pub scale: f32,
    /// Residual stream.
    pub out: &'a mut Tensor<M>,
}

impl<M, W> Embedding<'_, M, W> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let ids_fit = self.ids.dtype() == DType::U32 && self.ids.cols() >= self.rows;
        ensure(ids_fit, NAME, "ids", format_args!("uint32 [1, at least {}]", self.rows), self.ids)?;
        ensure(self.table.groups() == 1, NAME, "table", "one matrix", self.table)?;
        ensure_tensor(NAME, "out", self.out, DType::F32, self.rows, self.table.cols())?;
        Ok(())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M, Packed = W>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.embedding(self)
    }
}

/// Plain loops: `table` is `[vocab_size, hidden_size]`.
pub fn reference(ids: &[u32], table: &[f32], hidden_size: usize, scale: f32) -> Vec<f32> {
    ids.iter().flat_map(|&id| &table[id as usize * hidden_size..][..hidden_size]).map(|v| v * scale).collect()
}
