//! Rotary position embedding (Su et al. 2021, arXiv:2104.09864, in the half-split order of GPT-NeoX and Hugging Face), and the
//! write of keys and values to the paged cache.

use crate::error::{ensure, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "rope_kv_write";

/// With `c = cos[p, i]`, `s = sin[p, i]` at the token's position `p`, for `i < head_dim / 2`, each query and key head `x` becomes
/// `x[i] * c - x[i + head_dim / 2] * s` and `x[i + head_dim / 2] * c + x[i] * s`. Queries are rotated in place; rotated keys and
/// the values are rounded once and written to the cache at the token's slot. What is left in the key and value part of `qkv` is
/// not defined.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | qkv | f32 | `[>= rows, (num_heads + 2 * num_kv_heads) * head_dim]` |
/// | positions | u32 | `[1, >= rows]`, each below the table's rows: the caller's promise |
/// | slot_mapping | u32 | `[1, >= rows]`, each a different slot of the cache: the caller's promise |
pub struct RopeKvWrite<'a, M> {
    /// Tokens.
    pub rows: usize,
    /// Query heads, then key heads, then value heads of each token.
    pub qkv: &'a mut Tensor<M>,
    /// Query heads.
    pub num_heads: usize,
    /// Absolute positions.
    pub positions: &'a Tensor<M>,
    /// Slots of the cache.
    pub slot_mapping: &'a Tensor<M>,
    /// Cosines and sines.
    pub table: &'a RopeTable<M>,
    /// The layer's cache.
    pub cache: &'a mut KvCache<M>,
}

/// Cosines and sines by absolute position, computed in f64 and stored in f32.
#[derive(Debug)]
pub struct RopeTable<M> {
    /// f32 `[max_model_len, head_dim / 2]`.
    pub cos: Tensor<M>,
    /// f32 `[max_model_len, head_dim / 2]`.
    pub sin: Tensor<M>,
}

impl<M> RopeKvWrite<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let KvSpec { num_kv_heads, head_dim, .. } = self.cache.spec;
        let cols = (self.num_heads + 2 * num_kv_heads) * head_dim;
        ensure_tensor(NAME, "qkv", self.qkv, DType::F32, self.rows, cols)?;
        for (what, t) in [("positions", self.positions), ("slot_mapping", self.slot_mapping)] {
            let fits = t.dtype() == DType::U32 && t.cols() >= self.rows;
            ensure(fits, NAME, what, format_args!("uint32 [1, at least {}]", self.rows), t)?;
        }
        ensure_tensor(NAME, "cos", &self.table.cos, DType::F32, 1, head_dim / 2)?;
        ensure_tensor(NAME, "sin", &self.table.sin, DType::F32, self.table.cos.rows(), head_dim / 2)?;
        Ok(())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.rope_kv_write(self)
    }
}

/// Plain loops over one head: the rotation at one position.
pub fn reference(head: &[f32], cos: &[f32], sin: &[f32]) -> Vec<f32> {
    let half = head.len() / 2;
    let mut out = vec![0.0; head.len()];
    for i in 0..half {
        out[i] = head[i] * cos[i] - head[i + half] * sin[i];
        out[i + half] = head[i + half] * cos[i] + head[i] * sin[i];
    }
    out
}
