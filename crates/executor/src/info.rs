//! The limits of an executor. It knows what fits, not what is in it.

/// What an executor can hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorInfo {
    /// Size of the vocabulary: token ids are below it.
    pub vocab_size: usize,
    /// Longest sequence, prompt and output together, in tokens.
    pub max_model_len: usize,
    /// Most tokens in one step.
    pub max_num_batched_tokens: usize,
    /// Positions before a prompt's token with which attention costs as much as all else that is computed for it. Where it is known,
    /// a step has at most [`Self::max_prompt_tokens`] of prompts, and fewer the further these are into their prompts: as many as take as long.
    pub costly_context: Option<usize>,
    /// Elements of the hidden states that it answers with instead of logits; `None`: it answers with logits.
    pub embedding_size: Option<usize>,
    /// Most requests in one step.
    pub max_num_seqs: usize,
    /// Most rows of logits, or of hidden states, in one step, at least `max_num_seqs`. Every prompt token that is scored takes a row,
    /// so this bounds the memory for logits, and the chunks of requests with `prompt_logprobs`.
    pub max_logit_rows: usize,
    /// Tokens in a block of the KV cache.
    pub block_size: usize,
    /// Blocks in the KV cache.
    pub num_blocks: usize,
}

impl ExecutorInfo {
    /// Most tokens of prompts in one step, at their prompts' start, if nothing decodes beside them.
    pub fn max_prompt_tokens(&self) -> usize {
        match self.costly_context {
            None => self.max_num_batched_tokens,
            Some(_) => self.max_num_batched_tokens.saturating_sub(self.max_num_seqs).max(1),
        }
    }
}
