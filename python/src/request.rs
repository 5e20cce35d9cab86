//! One request: its tokens, its blocks, and which tokens it may pick. It knows no other requests.

use std::ops::Range;
use std::sync::Arc;

use vllm_apple_executor::{Batch, RowTask, Sample, SamplingParams, SamplingRow, TokenLogprobs, allows};

use crate::logprobs::Table;
use crate::params::Params;
use crate::thinking::Thinking;

/// Words of a mask with a bit per token.
fn mask_words(vocab_size: usize) -> usize {
    vocab_size.div_ceil(32)
}

/// A bias that forbids a token.
fn ban(token: u32) -> (u32, f32) {
    (token, f32::NEG_INFINITY)
}

/// Parameters with which nothing but `token` is picked, and log-probabilities count all tokens: vLLM has those before it forces one, so that
/// a mask would not do.
fn force(token: u32) -> SamplingParams {
    SamplingParams { temperature: 0.0, logit_bias: [(token, 1e9)].into(), ..SamplingParams::default() }
}

pub struct Request {
    /// Prompt, then output so far: vLLM does not send back what was sampled here.
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    pub blocks: Vec<u32>,
    pub num_computed: usize,
    /// `num_computed` after the step that is scheduled.
    pub end: usize,
    pub params: SamplingParams,
    /// Of prompt tokens, from the second on. Kept to the request's end: vLLM may drop a step's outcome and ask again.
    pub scores: Vec<Sample>,
    /// What it ends with after an error.
    pub end_token: u32,
    /// It has had an error, and only waits for its end.
    pub failed: bool,
    /// What it has computed is gone.
    pub lost: bool,
    seed: u64,
    /// `allowed_token_ids` of a request without log-probabilities, a bit per token: the executor's mask would count in them.
    allowed: Option<Vec<u32>>,
    bad_words: Vec<Vec<u32>>,
    thinking: Option<Thinking>,
    /// In place of `params`, and of what is allowed, if its thinking has to end.
    forced: Option<SamplingParams>,
    /// The biases of `params`, but for those of bad words.
    biases: Arc<[(u32, f32)]>,
}

impl Request {
    pub fn new(prompt: Vec<u32>, num_computed: usize, blocks: Vec<u32>, params: &Params, vocab_size: usize) -> Self {
        let mut allowed = params.allowed_token_ids.as_ref().map(|tokens| {
            let mut mask = vec![0; mask_words(vocab_size)];
            for &token in tokens.iter().filter(|&&token| (token as usize) < vocab_size) {
                mask[token as usize / 32] |= 1 << (token % 32);
            }
            mask
        });
        let mut sampling = params.sampling_params();
        if sampling.logprobs.is_some()
            && let Some(allowed) = allowed.take()
        {
            // vLLM takes log-probabilities before it: it bans, as biases can.
            let banned = (0..vocab_size as u32).filter(|&token| !allows(&allowed, token)).map(ban);
            sampling.logit_bias = sampling.logit_bias.iter().copied().chain(banned).collect();
        }
        Self {
            prompt_len: prompt.len(),
            tokens: prompt,
            blocks,
            num_computed,
            end: num_computed,
            biases: Arc::clone(&sampling.logit_bias),
            params: sampling,
            seed: params.seed,
            scores: Vec::new(),
            end_token: params.eos_token_id.unwrap_or(0),
            failed: false,
            lost: false,
            allowed,
            bad_words: params.bad_words.clone(),
            thinking: params.thinking.clone(),
            forced: None,
        }
    }

    fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt_len]
    }

    fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_len..]
    }

    /// The next `num_tokens` are to be computed.
    pub fn schedule(&mut self, num_tokens: usize, block_size: usize) -> Result<(), String> {
        self.end = self.num_computed + num_tokens;
        self.ban_bad_words();
        let thinking = self.thinking.as_ref().filter(|_| self.is_complete());
        self.forced = thinking.and_then(|thinking| thinking.forced(&self.tokens)).map(force);
        let (end, known, held) = (self.end, self.tokens.len(), self.blocks.len());
        match num_tokens > 0 && end <= known && end <= held * block_size {
            true => Ok(()),
            false => Err(format!("up to token {end}, with {known} known, in {held} blocks")),
        }
    }

    /// Bans the tokens that would complete a bad word.
    fn ban_bad_words(&mut self) {
        if self.bad_words.is_empty() {
            return;
        }
        let words = self.bad_words.iter().filter_map(|word| word.split_last());
        let banned = words.filter(|(_, before)| self.output().ends_with(before)).map(|(&last, _)| ban(last));
        self.params.logit_bias = self.biases.iter().copied().chain(banned).collect();
    }

    /// Whether every known token will be computed, so that the next can be picked.
    pub fn is_complete(&self) -> bool {
        self.end == self.tokens.len()
    }

    /// The positions within `positions` whose next token is a prompt token that is still to be scored: the last of them, if any.
    pub fn to_score(&self, positions: Range<usize>) -> Range<usize> {
        let end = match self.params.prompt_logprobs {
            Some(_) if !self.failed => positions.end.min(self.prompt_len - 1),
            _ => 0,
        };
        let start = positions.start.max(self.scores.len());
        start..end.max(start)
    }

    /// Whether the chunk's last token scores the next one of the prompt.
    pub fn scores_last(&self) -> bool {
        !self.to_score(self.end - 1..self.end).is_empty()
    }

    /// Whether logits of the chunk's last token are wanted.
    pub fn has_row(&self) -> bool {
        self.scores_last() || self.is_complete() && !self.failed
    }

    /// What is asked of the logits of the chunk's last token.
    pub fn row<'a>(&'a self, logit_row: usize, allowed_tokens: Option<&'a [u32]>) -> Option<SamplingRow<'a>> {
        let (task, num_logprobs) = match self.tokens.get(self.end) {
            _ if !self.has_row() => return None,
            Some(&token_id) => (RowTask::Score { token_id }, self.params.prompt_logprobs),
            None => {
                let task = RowTask::Sample {
                    params: self.forced.as_ref().unwrap_or(&self.params),
                    seed: self.seed,
                    prompt_token_ids: self.prompt(),
                    output_token_ids: self.output(),
                    eos_token_ids: &[],
                    allowed_tokens,
                };
                (task, self.params.logprobs)
            }
        };
        Some(SamplingRow { logit_row, task, num_logprobs: num_logprobs.map(|n| n as usize) })
    }

    /// What it ends with after an error. vLLM looks for the token's log-probability where the request asked for some.
    pub fn end_sample(&self) -> Sample {
        let unknown = TokenLogprobs { logprob: f32::NEG_INFINITY, rank: 0, top: Vec::new() };
        Sample { token_id: self.end_token, logprobs: self.params.logprobs.map(|_| unknown) }
    }

    /// Appends some of its tokens to a batch.
    pub fn push(&self, positions: Range<usize>, block_size: usize, num_logits: usize, batch: &mut Batch) {
        let blocks = &self.blocks[..positions.end.div_ceil(block_size)];
        batch.push_request(&self.tokens[positions.clone()], positions.start, blocks, block_size, num_logits);
    }

    /// The prompt's scores, if they are wanted now: vLLM takes them together with the first token only.
    pub fn prompt_table(&self) -> Option<Table> {
        let num_alternatives = self.params.prompt_logprobs.filter(|_| self.output().is_empty())?;
        let mut table = Table::new(num_alternatives as usize);
        self.scores.iter().for_each(|score| table.push(Some(score)));
        Some(table)
    }

    /// The tokens that the grammar allows now, a bit each, and `allowed_token_ids` where they are no bans. `None` is all.
    pub fn mask(&self, grammar: Option<&[u32]>, vocab_size: usize) -> Option<Vec<u32>> {
        if self.forced.is_some() {
            return None;
        }
        let mut mask = self.allowed.clone();
        if let Some(grammar) = grammar {
            let mask = mask.get_or_insert_with(|| vec![u32::MAX; mask_words(vocab_size)]);
            // What the grammar does not know it does not allow.
            let grammar = grammar.iter().copied().chain(std::iter::repeat(0));
            mask.iter_mut().zip(grammar).for_each(|(word, allowed)| *word &= allowed);
        }
        mask
    }
}
