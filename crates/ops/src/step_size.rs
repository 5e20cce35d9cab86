//! How large a step is: what backends size their scratch by. It knows no tokens.

use crate::WeightFormat;

/// Sizes of a step. Of the largest step, each is the largest that it can be; they need not all occur at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSize {
    /// New tokens, `T`.
    pub num_tokens: usize,
    /// Requests, `R`.
    pub num_requests: usize,
    /// Most new tokens of one request.
    pub max_query_len: usize,
    /// Longest sequence, its new tokens included.
    pub max_seq_len: usize,
    /// Rows of logits.
    pub num_logit_rows: usize,
    /// The model, the same in every step.
    pub model: ModelSize,
}

/// Sizes of a model's layers. Where layers differ, each is that of the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelSize {
    /// What weights are.
    pub weights: WeightFormat,
    /// Rows of logits have this length.
    pub vocab_size: usize,
    /// Length of the residual stream.
    pub hidden_size: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key heads, and as many value heads.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Width of the widest MLP or shared expert; 0 without.
    pub intermediate_size: usize,
    /// Experts of a mixture; 0 without.
    pub num_experts: usize,
    /// Experts that each token uses; 0 without.
    pub top_k: usize,
    /// Width of an expert; 0 without.
    pub expert_intermediate_size: usize,
}

impl StepSize {
    /// Pairs of a token and an expert that it uses.
    pub fn num_pairs(&self) -> usize {
        self.num_tokens * self.model.top_k
    }
}
