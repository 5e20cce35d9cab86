//! RMSNorm of every query and key head (Qwen3), before RoPE.

use crate::error::{ensure, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "qk_norm";

/// For each query head `x = qkv[t, h]`: `x[i] = x[i] / sqrt(mean_i(x[i]^2) + eps) * q_weight[i]`; key heads with `k_weight`.
/// Value heads stay as they are. In f32, in place, in an order fixed by `head_dim` alone.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | qkv | f32 | `[>= rows, (num_heads + 2 * num_kv_heads) * head_dim]` |
/// | q_weight, k_weight | f32 | `[1, head_dim]` |
pub struct QkNorm<'a, M> {
    /// Tokens.
    pub rows: usize,
    /// Query heads, then key heads, then value heads of each token.
    pub qkv: &'a mut Tensor<M>,
    /// Query heads.
    pub num_heads: usize,
    /// Key heads, and as many value heads.
    pub num_kv_heads: usize,
    /// Scale of the query heads.
    pub q_weight: &'a Tensor<M>,
    /// Scale of the key heads.
    pub k_weight: &'a Tensor<M>,
    /// Added to the mean square.
    pub eps: f32,
}

impl<M> QkNorm<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let head_dim = self.q_weight.cols();
        ensure(head_dim > 0, NAME, "q_weight", "not empty", self.q_weight)?;
        ensure_tensor(NAME, "q_weight", self.q_weight, DType::F32, 1, head_dim)?;
        ensure_tensor(NAME, "k_weight", self.k_weight, DType::F32, 1, head_dim)?;
        let cols = (self.num_heads + 2 * self.num_kv_heads) * head_dim;
        ensure_tensor(NAME, "qkv", self.qkv, DType::F32, self.rows, cols)?;
        Ok(())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.qk_norm(self)
    }
}

/// Plain loops; returns the new `qkv`.
pub fn reference(
    qkv: &[f32],
    num_heads: usize,
    num_kv_heads: usize,
    q_weight: &[f32],
    k_weight: &[f32],
    eps: f32,
) -> Vec<f32> {
    let d = q_weight.len();
    let heads = num_heads + 2 * num_kv_heads;
    let mut out = Vec::with_capacity(qkv.len());
    for (i, head) in qkv.chunks_exact(d).enumerate() {
        match i % heads {
            h if h < num_heads => out.extend(rms_norm::reference(head, q_weight, eps)),
            h if h < num_heads + num_kv_heads => out.extend(rms_norm::reference(head, k_weight, eps)),
            _ => out.extend_from_slice(head),
        }
    }
    out
}
