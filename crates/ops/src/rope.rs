//! Rotary position embedding of queries alone: for layers that read the KV cache of an earlier layer and write none.

use crate::error::{ensure, ensure_tensor};
use crate::*;

/// Each query head becomes what [`RopeKvWrite`] would make of it, with the same bits, in place.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | q | f32 | `[>= rows, num_heads * head_dim]`, `head_dim` twice the table's columns |
/// | positions | u32 | `[1, >= rows]`, each below the table's rows: the caller's promise |
pub struct Rope<'a, B: Backend> {
    /// Tokens.
    pub rows: usize,
    /// Query heads of each token.
    pub q: &'a mut Tensor<B::Memory>,
    /// Query heads.
    pub num_heads: usize,
    /// Absolute positions.
    pub positions: &'a Tensor<B::Memory>,
    /// Cosines and sines.
    pub table: &'a RopeTable<B::Memory>,
}

impl<B: Backend> Rope<'_, B> {
    /// Checks the arguments and computes the op.
    pub fn run(self, backend: &mut B) -> Result<()> {
        const OP: &str = "rope";
        let half = self.table.cos.cols();
        ensure_tensor(OP, "q", self.q, DType::F32, self.rows, self.num_heads * 2 * half)?;
        let fits = self.positions.dtype() == DType::U32 && self.positions.cols() >= self.rows;
        ensure(fits, OP, "positions", format_args!("uint32 [1, at least {}]", self.rows), self.positions)?;
        ensure_tensor(OP, "cos", &self.table.cos, DType::F32, 1, half)?;
        ensure_tensor(OP, "sin", &self.table.sin, DType::F32, self.table.cos.rows(), half)?;
        backend.rope(self)
    }
}

/// Plain loops over one head: the rotation at one position.
pub fn reference(head: &[f32], cos: &[f32], sin: &[f32]) -> Vec<f32> {
    rope_kv_write::reference(head, cos, sin)
}
