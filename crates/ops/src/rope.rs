//! Rotary position embedding of queries alone: for layers that read the KV cache of an earlier layer and write none.

use crate::error::{ensure, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "rope";

/// Each query head becomes what [`RopeKvWrite`] would make of it, with the same bits, in place.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | q | f32 | `[>= rows, num_heads * head_dim]`, `head_dim` twice the table's columns |
/// | positions | u32 | `[1, >= rows]`, each below the table's rows: the caller's promise |
pub struct Rope<'a, M> {
    /// Tokens.
    pub rows: usize,
    /// Query heads of each token.
    pub q: &'a mut Tensor<M>,
    /// Query heads.
    pub num_heads: usize,
    /// Absolute positions.
    pub positions: &'a Tensor<M>,
    /// Cosines and sines.
    pub table: &'a RopeTable<M>,
}

impl<M> Rope<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let half = self.table.cos.cols();
        ensure_tensor(NAME, "q", self.q, DType::F32, self.rows, self.num_heads * 2 * half)?;
        let fits = self.positions.dtype() == DType::U32 && self.positions.cols() >= self.rows;
        ensure(fits, NAME, "positions", format_args!("uint32 [1, at least {}]", self.rows), self.positions)?;
        ensure_tensor(NAME, "cos", &self.table.cos, DType::F32, 1, half)?;
        ensure_tensor(NAME, "sin", &self.table.sin, DType::F32, self.table.cos.rows(), half)?;
        Ok(())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.rope(self)
    }
}

/// Plain loops over one head: the rotation at one position.
pub fn reference(head: &[f32], cos: &[f32], sin: &[f32]) -> Vec<f32> {
    rope_kv_write::reference(head, cos, sin)
}
