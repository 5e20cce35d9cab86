//! One request: what the caller asks, what the engine knows of it, and what comes out. It knows no other requests.

use std::sync::Arc;

use vllm_apple_executor::{Pooling, Sample, SamplingParams};

use crate::grammar::Grammar;
use crate::pooled::Pooled;
use crate::prefix_index::BlockHash;
use crate::prompt::Prompt;

/// Names a request within its engine; later requests have larger ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What a caller asks of the engine.
#[derive(Debug, Clone)]
pub struct EngineRequest {
    /// The prompt; at least one token.
    pub prompt: Prompt,
    /// How to pick tokens and when to end.
    pub params: SamplingParams,
    /// The model's end-of-sequence tokens.
    pub eos_token_ids: Arc<[u32]>,
    /// What its output must be like.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// How the prompt's hidden states become its one answer; `None`: tokens are generated.
    pub pooling: Option<Pooling>,
}

impl EngineRequest {
    /// A request to a model that has no end-of-sequence token.
    pub fn new(prompt: impl Into<Prompt>, params: SamplingParams) -> Self {
        Self { prompt: prompt.into(), params, eos_token_ids: Arc::from([]), grammar: None, pooling: None }
    }

    /// A request for the vector of a prompt.
    pub fn pooled(prompt: impl Into<Prompt>, pooling: Pooling) -> Self {
        Self { pooling: Some(pooling), ..Self::new(prompt, SamplingParams::default()) }
    }
}

/// What one step brought to one request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestOutput {
    /// The request.
    pub id: RequestId,
    /// The next output token. The token that stops a request is part of its output; `None` after an abort or an error.
    pub sample: Option<Sample>,
    /// The prompt's tokens from the second on with their log-probabilities: once, together with the first output token,
    /// if the request asked for them.
    pub prompt_logprobs: Option<Vec<Sample>>,
    /// The prompt's vector, with the one output of a request for it.
    pub pooled: Option<Vec<f32>>,
    /// Prompt tokens that were found in the prefix cache when the request was first scheduled.
    pub num_cached_tokens: usize,
    /// Why the request ended; `None` while it goes on.
    pub finish: Option<FinishReason>,
}

impl RequestOutput {
    /// The last output of a request that ends without a token.
    pub(crate) fn ended(id: RequestId, num_cached_tokens: usize, finish: FinishReason) -> Self {
        Self { id, sample: None, prompt_logprobs: None, pooled: None, num_cached_tokens, finish: Some(finish) }
    }
}

/// Why a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// This token is an end-of-sequence token or one of `stop_token_ids`.
    Stop {
        /// The last output token.
        token: u32,
    },
    /// `max_tokens` or the model's length is reached.
    Length,
    /// The prompt's vector is there.
    Pooled,
    /// The engine was told to drop it.
    Abort,
    /// What the request asks for cannot be done, as only its step could tell; the reason names its parameters.
    Invalid(String),
    /// Others hold the memory that it takes to go on: the same request may come again.
    OutOfMemory(String),
    /// The step, the engine or the model failed, with the reason.
    Error(String),
}

/// Tokens of a request that the coming step computes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Tokens after `num_computed_tokens`.
    pub num_tokens: usize,
    /// The last of them whose logits, or hidden states, are wanted.
    pub num_logits: usize,
}

/// A request inside the engine. Lengths are stored, phases derived:
/// `cached blocks * block_size <= num_computed_tokens <= token_ids.len()`.
#[derive(Debug)]
pub(crate) struct Request {
    pub id: RequestId,
    /// The order in which requests came to the scheduler: their ids are given out before.
    pub turn: u64,
    pub params: SamplingParams,
    /// Key of the random stream.
    pub seed: u64,
    pub eos_token_ids: Arc<[u32]>,
    pub grammar: Option<Arc<dyn Grammar>>,
    /// The vector in the making, of a request for one.
    pub pooled: Option<Pooled>,
    pub prompt: Prompt,
    /// Prompt, then output so far, and during a step the drafts. Empty until the request begins: one that waits holds nothing of its own.
    pub token_ids: Vec<u32>,
    /// The last of these that nobody has picked yet.
    pub num_drafts: usize,
    /// The most that it may have next.
    pub most_drafts: usize,
    /// The request ends at this length, prompt included.
    pub max_num_tokens: usize,
    /// Tokens whose keys and values are in the cache.
    pub num_computed_tokens: usize,
    /// Append-only while the request runs.
    pub block_table: Vec<u32>,
    /// Chained hashes of the full blocks of `token_ids`: of the prompt from the start, of the output as blocks fill.
    /// Empty when prefix caching is off, and until the request begins. Kept over preemption.
    pub block_hashes: Vec<BlockHash>,
    /// Leading blocks of `block_table` that were found in the prefix cache or offered to it.
    pub num_cached_blocks: usize,
    /// Tokens found in the prefix cache when first scheduled.
    pub num_cached_tokens: Option<usize>,
    /// Prompt tokens scored so far, in order from the second; handed over with the first output token.
    pub prompt_logprobs: Vec<Sample>,
    /// Prompt tokens scored so far. Survives handing over.
    pub num_scored_tokens: usize,
    /// What the coming step computes of a running request.
    pub chunk: Chunk,
}

impl Request {
    /// Takes the prompt in, and makes room for all that the request can come to hold, so that its steps do not allocate for it. Changes
    /// nothing of a request that has begun before.
    pub fn begin(&mut self, block_size: usize, prefix_caching: bool, embedding_size: Option<usize>) {
        if !self.token_ids.is_empty() {
            return;
        }
        let num_blocks = self.max_num_tokens.div_ceil(block_size);
        self.token_ids.reserve_exact(self.max_num_tokens);
        self.token_ids.extend_from_slice(&self.prompt);
        self.block_table.reserve_exact(num_blocks);
        if prefix_caching {
            self.block_hashes.reserve_exact(num_blocks);
            self.block_hashes.extend_from_slice(&self.prompt.block_hashes(block_size));
        }
        if self.is_scoring() {
            self.prompt_logprobs.reserve_exact(self.prompt.len() - 1);
        }
        if let (Some(pooled), Some(size)) = (&mut self.pooled, embedding_size) {
            pooled.begin(size);
        }
    }

    /// Without drafts.
    pub fn num_tokens(&self) -> usize {
        self.token_ids.len() - self.num_drafts
    }

    pub fn prompt_token_ids(&self) -> &[u32] {
        &self.token_ids[..self.prompt.len()]
    }

    pub fn output_token_ids(&self) -> &[u32] {
        &self.token_ids[self.prompt.len()..self.num_tokens()]
    }

    /// Whether prompt tokens are still to be scored.
    fn is_scoring(&self) -> bool {
        self.params.prompt_logprobs.is_some() && self.num_scored_tokens + 1 < self.prompt.len()
    }

    /// Whether rows of prompt tokens are needed that are not the last one, so that a cache hit would skip them: logits, to score them, or hidden
    /// states.
    pub fn needs_prompt_rows(&self) -> bool {
        match &self.pooled {
            None => self.is_scoring(),
            Some(pooled) => pooled.wants_leading_rows(self.prompt.len()),
        }
    }

    /// Leading prompt tokens whose rows were taken in.
    fn num_taken_rows(&self) -> usize {
        self.pooled.as_ref().map_or(self.num_scored_tokens, Pooled::num_rows)
    }

    /// Whether the coming step picks a token for it, and does not end in the middle of its prompt.
    pub fn picks_token(&self) -> bool {
        self.num_computed_tokens + self.chunk.num_tokens >= self.num_tokens()
    }

    /// Whether drafts can follow the coming step's token.
    pub fn takes_drafts(&self) -> bool {
        self.chunk == Chunk { num_tokens: 1, num_logits: 1 }
            && self.picks_token()
            && self.grammar.is_none()
            && self.pooled.is_none()
    }

    /// Takes its drafts from it, and puts them into `drafts`, emptied first.
    pub fn take_drafts(&mut self, drafts: &mut Vec<u32>) {
        drafts.clear();
        drafts.extend(self.token_ids.drain(self.num_tokens()..));
        self.num_drafts = 0;
    }

    /// Whether there is more to compute behind the chunk of the coming step.
    pub fn goes_on(&self) -> bool {
        self.num_computed_tokens + self.chunk.num_tokens < self.num_tokens()
    }

    /// The next tokens to compute within a budget of tokens and of rows of logits, both at least 1.
    /// While rows of the prompt are needed, each token of the chunk whose row was not taken in takes one.
    pub fn next_chunk(&self, max_tokens: usize, max_rows: usize) -> Chunk {
        let start = self.num_computed_tokens;
        let num_tokens = (self.num_tokens() - start).min(max_tokens);
        if self.needs_prompt_rows() {
            let first_row = start.max(self.num_taken_rows());
            let num_tokens = num_tokens.min(first_row - start + max_rows);
            return Chunk { num_tokens, num_logits: (start + num_tokens).saturating_sub(first_row) };
        }
        Chunk { num_tokens, num_logits: usize::from(start + num_tokens == self.num_tokens()) }
    }

    /// vLLM's `check_stop`, after a token was appended: stop tokens count from `min_tokens` on, lengths always.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        let token = *self.token_ids.last()?;
        if self.output_token_ids().len() >= self.params.min_tokens as usize {
            // A grammar allows an end token where the output may end, and under `ignore_eos` only where it must.
            let ends = !self.params.ignore_eos || self.grammar.is_some();
            let is_eos = ends && self.eos_token_ids.contains(&token);
            if is_eos || self.params.stop_token_ids.contains(&token) {
                return Some(FinishReason::Stop { token });
            }
        }
        (self.num_tokens() >= self.max_num_tokens).then_some(FinishReason::Length)
    }
}
