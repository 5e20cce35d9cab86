//! What may enter the engine: limits, policy, and the check of every request before it is queued. It holds no requests.

use std::sync::atomic::{AtomicU64, Ordering};

use vllm_apple_executor::{ExecutorInfo, InvalidParam, Pooling};

use crate::pooled::Pooled;
use crate::request::{Chunk, EngineRequest, Request, RequestId};
use crate::speculation::Speculation;

/// Policy of the engine; its limits are the executor's ([`ExecutorInfo`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Reuse the KV cache of equal prompt prefixes.
    pub enable_prefix_caching: bool,
    /// Requests beyond the executor's `max_num_seqs` that may be in the engine; one more is [`SubmitError::QueueFull`].
    pub max_waiting: usize,
    /// Key from which requests without a seed get theirs.
    pub seed: u64,
    /// How tokens are guessed before they are picked. Whether they are changes no output.
    pub speculation: Option<Speculation>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self { enable_prefix_caching: true, max_waiting: 1024, seed: 0, speculation: None }
    }
}

/// Limits of the executor with which no engine can run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Nothing fits in such an engine.
    #[error("{0} is 0, expected at least 1: raise it")]
    Zero(&'static str),
    /// Every running request must get a token and a row of logits in every step.
    #[error("{limit} is {got}, expected at least max_num_seqs ({max_num_seqs}): raise it or lower max_num_seqs")]
    BelowMaxNumSeqs {
        /// The limit that is too small.
        limit: &'static str,
        /// Its value.
        got: usize,
        /// What it must reach.
        max_num_seqs: usize,
    },
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// A sampling parameter is out of its range.
    #[error(transparent)]
    InvalidParam(#[from] InvalidParam),
    /// The model answers with tokens, or it answers with vectors.
    #[error("{0}")]
    WrongTask(&'static str),
    /// There is nothing to continue.
    #[error("the prompt has no tokens, expected at least one: send a prompt")]
    EmptyPrompt,
    /// A prompt token that the model does not know.
    #[error(
        "prompt token {index} is {token}, expected a token id below the vocabulary size {vocab_size}: \
         tokenize with this model's tokenizer"
    )]
    TokenOutOfVocab {
        /// Position in the prompt.
        index: usize,
        /// The token id.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// The prompt leaves no room for the least output.
    #[error("{}", too_long(*prompt_tokens, *min_output_tokens, *max_model_len))]
    TooLong {
        /// Length of the prompt.
        prompt_tokens: usize,
        /// The least output: 1 or `min_tokens`; 0 where no tokens are generated.
        min_output_tokens: usize,
        /// The model's length.
        max_model_len: usize,
    },
    /// Even alone, the request could not reach its length.
    #[error(
        "the request may grow to {max_num_tokens} tokens, which needs {needed} KV cache blocks of {block_size} tokens, \
         but there are {num_blocks}: lower max_tokens, shorten the prompt or give the KV cache more memory"
    )]
    NeverFits {
        /// Length at which the request ends, prompt included.
        max_num_tokens: usize,
        /// Blocks for that.
        needed: usize,
        /// Tokens in a block.
        block_size: usize,
        /// Blocks there are.
        num_blocks: usize,
    },
    /// As many requests are in the engine as may be.
    #[error(
        "the engine holds {max_num_seqs} running and {max_waiting} waiting requests at most and is full: retry later"
    )]
    QueueFull {
        /// Most requests in a step.
        max_num_seqs: usize,
        /// Most requests beyond these.
        max_waiting: usize,
    },
    /// The engine finishes what it has and takes no more.
    #[error("the engine is shutting down and takes no new requests: send it elsewhere")]
    ShuttingDown,
    /// The engine ended abnormally.
    #[error("the engine is dead and must be restarted: {0}")]
    EngineDead(String),
}

/// It begins as OpenAI's and vLLM's: clients look for these words, and shorten the conversation.
fn too_long(prompt_tokens: usize, min_output_tokens: usize, max_model_len: usize) -> String {
    let length = format!("This model's maximum context length is {max_model_len} tokens (`max_model_len`).");
    match min_output_tokens {
        0 => format!("{length} However, the prompt has {prompt_tokens} tokens: shorten it"),
        1 => format!("{length} However, the prompt has {prompt_tokens} tokens, and at least 1 must follow: shorten it"),
        _ => format!(
            "{length} However, the prompt has {prompt_tokens} tokens, and at least {min_output_tokens} must follow: shorten it or lower \
             min_tokens"
        ),
    }
}

/// Turns what a caller asks into a [`Request`], or says why not. Shared by the engine and its handles, so that checking
/// and hashing a long prompt run on the caller's thread.
#[derive(Debug)]
pub(crate) struct Admission {
    pub info: ExecutorInfo,
    pub config: EngineConfig,
    next_id: AtomicU64,
}

impl Admission {
    pub fn new(info: ExecutorInfo, config: EngineConfig) -> Result<Self, ConfigError> {
        for (name, value) in [
            ("vocab_size", info.vocab_size),
            ("max_model_len", info.max_model_len),
            ("max_num_seqs", info.max_num_seqs),
            ("block_size", info.block_size),
            ("num_blocks", info.num_blocks),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero(name));
            }
        }
        let max_num_seqs = info.max_num_seqs;
        for (limit, got) in
            [("max_num_batched_tokens", info.max_num_batched_tokens), ("max_logit_rows", info.max_logit_rows)]
        {
            if got < max_num_seqs {
                return Err(ConfigError::BelowMaxNumSeqs { limit, got, max_num_seqs });
            }
        }
        Ok(Self { info, config, next_id: AtomicU64::new(0) })
    }

    /// Most requests in the engine, running and waiting.
    pub fn capacity(&self) -> usize {
        self.info.max_num_seqs.saturating_add(self.config.max_waiting)
    }

    pub fn queue_full(&self) -> SubmitError {
        SubmitError::QueueFull { max_num_seqs: self.info.max_num_seqs, max_waiting: self.config.max_waiting }
    }

    /// Checks a request against every limit and gives it an id and a seed.
    pub fn prepare(&self, request: EngineRequest) -> Result<Request, SubmitError> {
        let EngineRequest { prompt, params, eos_token_ids, grammar, pooling } = request;
        self.check_task(pooling)?;
        params.validate(self.info.vocab_size)?;
        self.check_tokens(&prompt)?;
        let max_num_tokens = match pooling {
            None => self.check_length(prompt.len(), params.min_tokens, params.max_tokens)?,
            Some(_) => self.check_prompt_alone(prompt.len())?,
        };
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        Ok(Request {
            id,
            turn: 0,
            seed: params.seed.unwrap_or_else(|| derive_seed(self.config.seed, id)),
            eos_token_ids,
            grammar,
            pooled: pooling.map(Pooled::new),
            prompt,
            token_ids: Vec::new(),
            num_drafts: 0,
            most_drafts: self.config.speculation.map_or(0, |speculation| speculation.num_speculative_tokens),
            max_num_tokens,
            num_computed_tokens: 0,
            block_table: Vec::new(),
            block_hashes: Vec::new(),
            num_cached_blocks: 0,
            num_cached_tokens: None,
            prompt_logprobs: Vec::new(),
            num_scored_tokens: 0,
            chunk: Chunk::default(),
            params,
        })
    }

    /// Names the blocks of a prompt that will be looked up: here, on the caller's thread. The names are kept with the prompt.
    pub fn hash(&self, request: &Request) {
        if self.config.enable_prefix_caching {
            request.prompt.block_hashes(self.info.block_size);
        }
    }

    fn check_task(&self, pooling: Option<Pooling>) -> Result<(), SubmitError> {
        match (pooling, self.info.embedding_size) {
            (None, Some(_)) => Err(SubmitError::WrongTask("the model makes embeddings, it generates no text")),
            (Some(_), None) => Err(SubmitError::WrongTask("the model generates text, it makes no embeddings")),
            (None, None) | (Some(_), Some(_)) => Ok(()),
        }
    }

    fn check_tokens(&self, prompt: &[u32]) -> Result<(), SubmitError> {
        let vocab_size = self.info.vocab_size;
        if prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        match prompt.iter().position(|&token| token as usize >= vocab_size) {
            Some(index) => Err(SubmitError::TokenOutOfVocab { index, token: prompt[index], vocab_size }),
            None => Ok(()),
        }
    }

    /// The length at which the request ends, if it can be reached.
    fn check_length(&self, prompt: usize, min_tokens: u32, max_tokens: Option<u32>) -> Result<usize, SubmitError> {
        let max_model_len = self.info.max_model_len;
        let min_output_tokens = min_tokens.max(1) as usize;
        if prompt.saturating_add(min_output_tokens) > max_model_len {
            return Err(SubmitError::TooLong { prompt_tokens: prompt, min_output_tokens, max_model_len });
        }
        let max_output = max_tokens.map_or(usize::MAX, |n| n as usize);
        let max_num_tokens = prompt.saturating_add(max_output).min(max_model_len);
        // The last token is picked but never computed, so it needs no slot.
        self.check_blocks(max_num_tokens, max_num_tokens - 1)
    }

    /// The same of a prompt after which no token is picked.
    fn check_prompt_alone(&self, prompt: usize) -> Result<usize, SubmitError> {
        let max_model_len = self.info.max_model_len;
        if prompt > max_model_len {
            return Err(SubmitError::TooLong { prompt_tokens: prompt, min_output_tokens: 0, max_model_len });
        }
        self.check_blocks(prompt, prompt)
    }

    /// Whether there are blocks for the tokens that a request computes.
    fn check_blocks(&self, max_num_tokens: usize, num_computed: usize) -> Result<usize, SubmitError> {
        let ExecutorInfo { block_size, num_blocks, .. } = self.info;
        let needed = num_computed.div_ceil(block_size);
        match needed > num_blocks {
            true => Err(SubmitError::NeverFits { max_num_tokens, needed, block_size, num_blocks }),
            false => Ok(max_num_tokens),
        }
    }
}

/// The key of a request without a seed: splitmix64's output function over the engine's seed and the running number.
fn derive_seed(engine_seed: u64, id: RequestId) -> u64 {
    let mut z = engine_seed.wrapping_add((id.0 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use vllm_apple_executor::SamplingParams;

    use super::*;

    fn admission() -> Admission {
        let info = ExecutorInfo {
            vocab_size: 100,
            max_model_len: 40,
            max_num_batched_tokens: 16,
            costly_context: None,
            embedding_size: None,
            max_num_seqs: 4,
            max_logit_rows: 4,
            block_size: 4,
            num_blocks: 8,
        };
        Admission::new(info, EngineConfig::default()).unwrap()
    }

    fn prepare(prompt_len: usize, change: fn(&mut SamplingParams)) -> Result<Request, SubmitError> {
        let mut params = SamplingParams::default();
        change(&mut params);
        admission().prepare(EngineRequest::new(vec![1; prompt_len], params))
    }

    #[test]
    fn each_refusal_names_its_numbers() {
        assert_eq!(prepare(0, |_| ()).unwrap_err(), SubmitError::EmptyPrompt);
        assert_eq!(
            prepare(40, |p| p.max_tokens = Some(1)).unwrap_err(),
            SubmitError::TooLong { prompt_tokens: 40, min_output_tokens: 1, max_model_len: 40 }
        );
        assert_eq!(
            prepare(30, |p| p.min_tokens = 11).unwrap_err(),
            SubmitError::TooLong { prompt_tokens: 30, min_output_tokens: 11, max_model_len: 40 }
        );
        // 33 tokens compute 32: they just fill the 8 blocks. 34 tokens need a ninth.
        assert_eq!(prepare(30, |p| p.max_tokens = Some(3)).unwrap().max_num_tokens, 33);
        let refused = prepare(30, |p| p.max_tokens = Some(4)).unwrap_err();
        assert_eq!(refused, SubmitError::NeverFits { max_num_tokens: 34, needed: 9, block_size: 4, num_blocks: 8 });
        for number in ["34", "9", "4", "8"] {
            assert!(refused.to_string().contains(number), "{refused}");
        }
        let bad_token = EngineRequest::new(vec![1, 100], SamplingParams::default());
        assert_eq!(
            admission().prepare(bad_token).unwrap_err(),
            SubmitError::TokenOutOfVocab { index: 1, token: 100, vocab_size: 100 }
        );
        assert!(matches!(prepare(1, |p| p.top_p = 2.0).unwrap_err(), SubmitError::InvalidParam(_)));
    }

    #[test]
    fn a_request_without_a_seed_gets_its_own_reproducible_one() {
        let seeds = |admission: &Admission| -> Vec<u64> {
            let request = EngineRequest::new(vec![1], SamplingParams { max_tokens: Some(1), ..Default::default() });
            (0..3).map(|_| admission.prepare(request.clone()).unwrap().seed).collect()
        };
        let first = seeds(&admission());
        assert_eq!(first, seeds(&admission()));
        assert!(first[0] != first[1] && first[1] != first[2]);
        let mut other = admission();
        other.config.seed = 1;
        assert!(seeds(&other).iter().all(|seed| !first.contains(seed)));
    }

    /// The numbers that splitmix64's authors publish for these seeds: a server that is updated keeps its requests' streams.
    #[test]
    fn derived_seeds_are_those_of_splitmix64() {
        let derived = |seed| [0, 1, 2].map(|id| derive_seed(seed, RequestId(id)));
        assert_eq!(derived(0), [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
        let of_1234567 = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(derived(1_234_567), of_1234567);
    }

    #[test]
    fn limits_that_starve_a_running_request_are_refused() {
        let mut info = admission().info;
        info.max_num_batched_tokens = 3;
        assert_eq!(
            Admission::new(info, EngineConfig::default()).unwrap_err(),
            ConfigError::BelowMaxNumSeqs { limit: "max_num_batched_tokens", got: 3, max_num_seqs: 4 }
        );
    }
}
