//! Embedding: rows of the token table as the f32 residual stream.

use crate::error::{ensure, ensure_tensor};
use crate::*;

/// `out[t, :] = table[ids[t], :]`, in f32. No arithmetic: exact.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | ids | u32 | `[1, >= rows]`, each below `table.rows()`: the caller's promise |
/// | table | float | `[1, vocab_size, hidden_size]` |
/// | out | f32 | `[>= rows, hidden_size]` |
pub struct Embedding<'a, B: Backend> {
    /// Tokens.
    pub rows: usize,
    /// Token ids.
    pub ids: &'a Tensor<B::Memory>,
    /// Token table, which may also be the output head.
    pub table: &'a Weight<B::Packed>,
    /// Residual stream.
    pub out: &'a mut Tensor<B::Memory>,
}

impl<B: Backend> Embedding<'_, B> {
    /// Checks the arguments and computes the op.
    pub fn run(self, backend: &mut B) -> Result<()> {
        const OP: &str = "embedding";
        let ids_fit = self.ids.dtype() == DType::U32 && self.ids.cols() >= self.rows;
        ensure(ids_fit, OP, "ids", format_args!("uint32 [1, at least {}]", self.rows), self.ids)?;
        ensure(self.table.groups() == 1, OP, "table", "one matrix", self.table)?;
        ensure_tensor(OP, "out", self.out, DType::F32, self.rows, self.table.cols())?;
        backend.embedding(self)
    }
}

/// Plain loops: `table` is `[vocab_size, hidden_size]`.
pub fn reference(ids: &[u32], table: &[f32], hidden_size: usize) -> Vec<f32> {
    ids.iter().flat_map(|&id| table[id as usize * hidden_size..][..hidden_size].to_vec()).collect()
}
