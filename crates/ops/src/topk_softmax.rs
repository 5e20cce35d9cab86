//! Routing of a mixture of experts: the most likely experts of each token.

use crate::error::{ensure, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "topk_softmax";

/// `p = softmax(logits[t, :])` in f32; `ids[t, :]` are the `top_k` experts of largest `p`, largest first, ties to the smaller id;
/// `weights[t, j] = p[ids[t, j]]`, divided by their sum if `renormalize`.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | logits | f32 | `[>= rows, num_experts]` |
/// | ids | u32 | `[>= rows, top_k]` |
/// | weights | f32 | `[>= rows, top_k]` |
pub struct TopkSoftmax<'a, M> {
    /// Tokens.
    pub rows: usize,
    /// The router's output.
    pub logits: &'a Tensor<M>,
    /// Whether the weights of a token add up to 1 (`norm_topk_prob`; always in Mixtral).
    pub renormalize: bool,
    /// Chosen experts.
    pub ids: &'a mut Tensor<M>,
    /// Their weights.
    pub weights: &'a mut Tensor<M>,
}

impl<M> TopkSoftmax<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let (experts, top_k) = (self.logits.cols(), self.ids.cols());
        ensure(top_k > 0 && top_k <= experts, NAME, "ids", format_args!("1 to {experts} columns"), &*self.ids)?;
        ensure_tensor(NAME, "logits", self.logits, DType::F32, self.rows, experts)?;
        ensure_tensor(NAME, "ids", self.ids, DType::U32, self.rows, top_k)?;
        ensure_tensor(NAME, "weights", self.weights, DType::F32, self.rows, top_k)?;
        Ok(())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.topk_softmax(self)
    }
}

/// Plain loops over one token: its experts and their weights.
pub fn reference(logits: &[f32], top_k: usize, renormalize: bool) -> (Vec<u32>, Vec<f32>) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exp: Vec<f64> = logits.iter().map(|&l| f64::from(l - max).exp()).collect();
    let total: f64 = exp.iter().sum();
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    ids.truncate(top_k);
    let chosen: f64 = ids.iter().map(|&i| exp[i as usize]).sum();
    let divisor = if renormalize { chosen } else { total };
    let weights = ids.iter().map(|&i| (exp[i as usize] / divisor) as f32).collect();
    (ids, weights)
}
