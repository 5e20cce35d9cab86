//! Routing of a mixture of experts: the most likely experts of each token.

use crate::error::{ensure, ensure_tensor};
use crate::*;

/// `p = softmax(logits[t, :])` in f32; `ids[t, :]` are the `top_k` experts of largest `p`, largest first, ties to the smaller id;
/// `weights[t, j] = p[ids[t, j]]`, divided by their sum if `renormalize`.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | logits | f32 | `[>= rows, num_experts]` |
/// | ids | u32 | `[>= rows, top_k]` |
/// | weights | f32 | `[>= rows, top_k]` |
pub struct TopkSoftmax<'a, B: Backend> {
    /// Tokens.
    pub rows: usize,
    /// The router's output.
    pub logits: &'a Tensor<B::Memory>,
    /// Whether the weights of a token add up to 1 (`norm_topk_prob`; always in Mixtral).
    pub renormalize: bool,
    /// Chosen experts.
    pub ids: &'a mut Tensor<B::Memory>,
    /// Their weights.
    pub weights: &'a mut Tensor<B::Memory>,
}

impl<B: Backend> TopkSoftmax<'_, B> {
    /// Checks the arguments and computes the op.
    pub fn run(self, backend: &mut B) -> Result<()> {
        const OP: &str = "topk_softmax";
        let (experts, top_k) = (self.logits.cols(), self.ids.cols());
        ensure(top_k > 0 && top_k <= experts, OP, "ids", format_args!("1 to {experts} columns"), &*self.ids)?;
        ensure_tensor(OP, "logits", self.logits, DType::F32, self.rows, experts)?;
        ensure_tensor(OP, "ids", self.ids, DType::U32, self.rows, top_k)?;
        ensure_tensor(OP, "weights", self.weights, DType::F32, self.rows, top_k)?;
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
