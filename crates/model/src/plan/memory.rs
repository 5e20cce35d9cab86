//! How much memory a model takes, and how many blocks of KV cache that leaves: computed before anything is allocated.

use crate::load::config::{Head, ModelConfig};
use crate::load::error::LoadError;
use crate::load::quantization_option::QuantizationOption;
use crate::load::survey::Survey;
use crate::load::types::ModelTypes;
use crate::plan::available::Machine;
use crate::plan::limits::{limits, longest_sequence, prompt_seconds};
use crate::run::sampler::Sampler;
use crate::run::scratch::Scratch;
use vllm_apple_executor::ExecutorInfo;
use vllm_apple_ops::{Activations, Backend, DType, KvSpec, ModelSize, StepSize, WeightFormat};

/// How to load a model. `None` lets the loader choose.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Type of weights and activations; by default the checkpoint's.
    pub dtype: Option<DType>,
    /// How weights are quantised while they are loaded, or how they must be quantised in the checkpoint; by default the one not at all,
    /// the other in any way.
    pub quantization: Option<QuantizationOption>,
    /// What the activations are multiplied as by quantised weights, of which there must then be some; those that choose experts by exact ones.
    pub activation_dtype: Activations,
    /// Type of the KV cache; by default that of the activations.
    pub kv_cache_dtype: Option<DType>,
    /// Longest sequence in tokens; by default what the model supports, or as much of it as memory has room for.
    pub max_model_len: Option<usize>,
    /// Where `max_model_len` is left open, the longest sequence that is of use; by default what the model supports.
    pub longest_of_use: Option<usize>,
    /// Most requests in one step.
    pub max_num_seqs: usize,
    /// Most tokens in one step; by default 2048, or fewer on a device that would take long for them.
    pub max_num_batched_tokens: Option<usize>,
    /// Tokens in a block of the KV cache.
    pub block_size: usize,
    /// Bytes of the KV cache; see [`MemoryPlan::num_blocks`] for the default.
    pub kv_cache_memory: Option<u64>,
    /// Bytes that the model may take in all; by default what the machine can do without.
    pub available_memory: Option<u64>,
}

impl LoadOptions {
    /// The types of a checkpoint whose tensors are of type `stored`.
    pub fn types_for(&self, stored: DType) -> ModelTypes {
        let dtype = self.dtype.unwrap_or(stored);
        let weights = match self.quantization.and_then(QuantizationOption::at_load) {
            None => WeightFormat::Float(dtype),
            Some(quantization) => WeightFormat::Quantised(quantization.format(dtype)),
        };
        ModelTypes { weights, activations: dtype, kv_cache: self.kv_cache_dtype.unwrap_or(dtype) }
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            dtype: None,
            quantization: None,
            activation_dtype: Activations::default(),
            kv_cache_dtype: None,
            max_model_len: None,
            longest_of_use: None,
            max_num_seqs: 64,
            max_num_batched_tokens: None,
            block_size: 32,
            kv_cache_memory: None,
            available_memory: None,
        }
    }
}

/// What a block of the KV cache is: [`ExecutorInfo::block_size`] tokens in every layer that has a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvBlock {
    /// Layers with a cache of their own.
    pub num_layers: usize,
    /// Key heads, and as many value heads.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Type of keys and values.
    pub dtype: DType,
    /// Bytes of the block in all layers.
    pub bytes: u64,
}

/// What a model takes, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Packed weights.
    pub weights: u64,
    /// KV cache of all layers: 0 until the number of blocks is chosen.
    pub kv_cache: u64,
    /// Activations, logits, step inputs, RoPE tables, the sampler, and what the backend's ops need besides.
    pub scratch: u64,
    /// What it may take, as of before loading.
    pub available: u64,
    /// What a block of the KV cache takes.
    pub kv_block: KvBlock,
    /// Milliseconds that a prompt as long as a step takes at least, on a device whose limits are known.
    pub step_millis: Option<u64>,
    /// How long sequences would be, where memory has no room for that: those of [`ExecutorInfo::max_model_len`] are shorter.
    pub shortened_from: Option<usize>,
    /// The limits that follow: without blocks until their number is chosen.
    pub info: ExecutorInfo,
    /// Where it is to run.
    pub(crate) machine: Machine,
}

/// Lengths that memory decides about are multiples of this: they do not change with every page that another program takes.
const STEP: usize = 1024;
/// Of what weights and scratch leave, the part that the cache does not take for the sake of a long sequence: requests have texts and answers.
const OF_REQUESTS: u128 = 8;
/// What more memory than there is should at least have room for beside weights and scratch.
const SMALL_CACHE: u128 = 1 << 30;

impl MemoryPlan {
    /// Checks the options and counts what the model takes beside its KV cache. Where nobody says how long sequences are, memory may.
    ///
    /// # Errors
    /// An option out of range, or too little memory, with the numbers and the settings to change.
    pub(crate) fn new(
        c: &ModelConfig,
        survey: &Survey,
        types: ModelTypes,
        options: &LoadOptions,
        backend: &impl Backend,
    ) -> Result<Self, LoadError> {
        survey.check(backend)?;
        let machine = match options.available_memory {
            Some(bytes) => Machine::with(bytes),
            None => Machine::here(backend.memory_limit())?,
        };
        let of = |length| Self::of(c, survey, types, options, backend, machine, length);
        let plan = of(longest_sequence(c, options)?)?;
        let plan = match options.max_model_len {
            Some(_) => plan,
            None => plan.shortened(options.kv_cache_memory, of)?,
        };
        if plan.alone() >= u128::from(plan.available) {
            let remedy = "use a smaller model, `quantization` int4 or int8, `dtype` bfloat16, or a smaller `max_num_batched_tokens` or `max_num_seqs`";
            let more = machine.remedy(plan.alone() + SMALL_CACHE).map_or(String::new(), |more| format!(", or {more}"));
            return Err(plan.error("weights and scratch alone do not fit", &format!("{remedy}{more}")));
        }
        Ok(plan)
    }

    /// The plan with sequences of up to `max_model_len` tokens, whether they fit or not.
    fn of(
        c: &ModelConfig,
        survey: &Survey,
        types: ModelTypes,
        options: &LoadOptions,
        backend: &impl Backend,
        machine: Machine,
        max_model_len: usize,
    ) -> Result<Self, LoadError> {
        let info = limits(c, types, options, backend, max_model_len)?;
        let weights = survey.bytes(backend);
        let rope = 2 * 4 * (c.ropes.len() * info.max_model_len) as u128 * (c.head_dim as u128 / 2);
        let largest = largest_step(c.size(survey.neediest(types.weights)), &info);
        backend.check_step(&largest)?;
        let of_ops = u128::from(backend.scratch_bytes(&largest));
        let of_sampler = if c.head == Head::Logits { Sampler::bytes(&info) } else { 0 };
        let scratch = Scratch::bytes(c, &info, types.activations, survey.permutes()) + rope + of_ops + of_sampler;
        Ok(Self {
            weights: weights as u64,
            kv_cache: 0,
            scratch: scratch as u64,
            available: machine.most(),
            kv_block: KvBlock {
                num_layers: c.num_kv_caches(),
                num_kv_heads: c.num_key_value_heads,
                head_dim: c.head_dim,
                dtype: types.kv_cache,
                bytes: block_bytes(c, types.kv_cache, info.block_size) as u64,
            },
            step_millis: backend
                .measured()
                .map(|limits| (prompt_seconds(c, types, info.max_prompt_tokens(), &limits) * 1000.0) as u64),
            shortened_from: None,
            info,
            machine,
        })
    }

    /// The plan with the longest sequences that a KV cache, of `memory` bytes or without a wish, has room for: as it is, or of as many times
    /// [`STEP`] tokens. One that has no room for any is as it is, too, and refused for that.
    fn shortened(self, memory: Option<u64>, of: impl Fn(usize) -> Result<Self, LoadError>) -> Result<Self, LoadError> {
        let longest = self.info.max_model_len;
        if self.has_room(memory) {
            return Ok(self);
        }
        let shorter: Vec<usize> = (1..longest.div_ceil(STEP)).map(|steps| steps * STEP).collect();
        let fit = shorter.partition_point(|&length| of(length).is_ok_and(|plan| plan.has_room(memory)));
        match shorter[..fit].last() {
            Some(&length) => Ok(Self { shortened_from: Some(longest), ..of(length)? }),
            None => Ok(self),
        }
    }

    /// Whether a KV cache of `memory` bytes, or one without a wish, has room for a sequence.
    fn has_room(&self, memory: Option<u64>) -> bool {
        let left = self.left();
        self.bytes_of_a_sequence() <= memory.map_or(left - left / OF_REQUESTS, u128::from)
    }

    /// Blocks of a KV cache of `memory` bytes. Without a wish, it holds `max_num_seqs` sequences of `max_model_len` tokens, but takes at
    /// most half of the memory that weights and scratch leave, on macOS, where it is wired and may be others', a quarter; and in any case one
    /// sequence, if there is room.
    ///
    /// # Errors
    /// As [`Self::with_blocks`]: in any case one sequence of `max_model_len` must fit.
    pub fn num_blocks(&self, memory: Option<u64>) -> Result<usize, LoadError> {
        let sequence = self.bytes_of_a_sequence();
        let wanted = sequence * self.info.max_num_seqs as u128;
        let budget = kv_budget(&self.machine, memory, [sequence, wanted], self.left());
        // Slots are numbered with u32.
        let most = u128::from(u32::MAX) / self.info.block_size as u128;
        let num_blocks = (budget / u128::from(self.kv_block.bytes)).min(most) as usize;
        self.check_blocks(num_blocks, budget)?;
        Ok(num_blocks)
    }

    /// The plan with so many blocks of KV cache.
    ///
    /// # Errors
    /// They do not fit beside the rest, or one sequence of `max_model_len` does not fit into them.
    pub fn with_blocks(mut self, num_blocks: usize) -> Result<Self, LoadError> {
        let bytes = num_blocks as u128 * u128::from(self.kv_block.bytes);
        if num_blocks as u128 * self.info.block_size as u128 > u128::from(u32::MAX) {
            let most = u32::MAX as usize / self.info.block_size;
            let (expected, got) = (format!("at most {most}"), num_blocks.to_string());
            return Err(LoadError::Option { option: "the number of blocks", expected, got });
        }
        self.check_blocks(num_blocks, bytes)?;
        self.info.num_blocks = num_blocks;
        self.kv_cache = bytes as u64;
        Ok(self)
    }

    /// Whether blocks, of a cache that takes `budget` bytes, are enough and not too many.
    fn check_blocks(&self, num_blocks: usize, budget: u128) -> Result<(), LoadError> {
        let max_model_len = self.info.max_model_len;
        if num_blocks < self.blocks_of_a_sequence() {
            // A cache without a wish takes what is left, if it must.
            let more = match budget < self.left() {
                true => Some("raise `kv_cache_memory`".to_owned()),
                false => self.machine.remedy(self.alone() + self.bytes_of_a_sequence()),
            };
            let fits = num_blocks * self.info.block_size;
            let shorter = (fits > 0).then(|| format!("set `max_model_len` to at most {fits}"));
            let remedies: Vec<String> = [shorter, more].into_iter().flatten().collect();
            let remedy = if remedies.is_empty() { "use a smaller model".to_owned() } else { remedies.join(", or ") };
            let cache = size(budget);
            let problem =
                format!("the KV cache of {cache} cannot hold one sequence of `max_model_len` {max_model_len}");
            return Err(self.error(&problem, &remedy));
        }
        if num_blocks as u128 * u128::from(self.kv_block.bytes) > self.left() {
            return Err(self.error(
                &format!("`kv_cache_memory` {} does not fit beside weights and scratch", size(budget)),
                &format!("set it to at most {} bytes", self.left()),
            ));
        }
        Ok(())
    }

    fn blocks_of_a_sequence(&self) -> usize {
        self.info.max_model_len.div_ceil(self.info.block_size)
    }

    fn bytes_of_a_sequence(&self) -> u128 {
        self.blocks_of_a_sequence() as u128 * u128::from(self.kv_block.bytes)
    }

    /// Bytes of weights and scratch.
    fn alone(&self) -> u128 {
        u128::from(self.weights) + u128::from(self.scratch)
    }

    /// Bytes that these leave.
    fn left(&self) -> u128 {
        u128::from(self.available).saturating_sub(self.alone())
    }

    fn error(&self, problem: &str, remedy: &str) -> LoadError {
        LoadError::Memory(format!(
            "{problem} (weights {}, scratch {}, one sequence {}, available {}); {remedy}",
            size(self.weights.into()),
            size(self.scratch.into()),
            size(self.bytes_of_a_sequence()),
            size(self.available.into()),
        ))
    }

    /// Writes the plan to the log, with what a user might not expect of it.
    pub fn log(&self) {
        let tokens = self.info.num_blocks * self.info.block_size;
        tracing::info!(
            "memory: weights {}, KV cache {} ({} blocks, {tokens} tokens), scratch {}, of {} available",
            size(self.weights.into()),
            size(self.kv_cache.into()),
            self.info.num_blocks,
            size(self.scratch.into()),
            size(self.available.into()),
        );
        let (tokens, requests) = (self.info.max_num_batched_tokens, self.info.max_num_seqs);
        match self.step_millis {
            Some(millis) => tracing::info!(
                "steps: up to {tokens} tokens (`max_num_batched_tokens`), {} of prompts in about {millis} ms, and {requests} requests",
                self.info.max_prompt_tokens()
            ),
            None => tracing::info!("steps: up to {tokens} tokens and {requests} requests"),
        }
        for warning in [self.shortening(), self.taking()].into_iter().flatten() {
            tracing::warn!("{warning}");
        }
    }

    /// That sequences are shorter than the model's, in words.
    fn shortening(&self) -> Option<String> {
        let longest = self.shortened_from?;
        let of_longest = longest.div_ceil(self.info.block_size) as u128 * u128::from(self.kv_block.bytes);
        let needed = self.alone() + of_longest * OF_REQUESTS / (OF_REQUESTS - 1);
        let more = self.machine.remedy(needed).map_or(String::new(), |more| format!(", or {more}"));
        Some(format!(
            "sequences may have {} tokens, not {longest}, as one of those takes {} of KV cache and weights and scratch leave {}; for longer ones set \
             `max_model_len` or a larger `kv_cache_memory`, use a smaller model or `quantization` int4{more}",
            self.info.max_model_len,
            size(of_longest),
            size(self.left()),
        ))
    }

    /// That macOS takes memory from others for the model, in words.
    fn taking(&self) -> Option<String> {
        let (taken, free) = (self.weights + self.scratch + self.kv_cache, self.machine.free);
        self.machine.pageable.filter(|_| taken > free).map(|_| {
            format!(
                "the model takes {} where {} are free: macOS takes the rest from other programs, which may be slow then; end some, or set a \
                 smaller `kv_cache_memory` or `max_model_len`",
                size(taken.into()),
                size(free.into()),
            )
        })
    }
}

/// Bytes for the KV cache, of which the user may have chosen the number, if so many are `left` by weights and scratch, and a sequence and
/// `max_num_seqs` of them take so much.
pub(crate) fn kv_budget(machine: &Machine, memory: Option<u64>, [sequence, all]: [u128; 2], left: u128) -> u128 {
    memory.map_or_else(|| all.min(machine.of_cache(left).max(sequence.min(left))), u128::from)
}

/// The sizes of one layer's cache.
pub(crate) fn kv_spec(c: &ModelConfig, dtype: DType, info: &ExecutorInfo) -> KvSpec {
    KvSpec {
        dtype,
        num_blocks: info.num_blocks,
        block_size: info.block_size,
        num_kv_heads: c.num_key_value_heads,
        head_dim: c.head_dim,
    }
}

/// The largest step within the limits.
pub(crate) fn largest_step(model: ModelSize, info: &ExecutorInfo) -> StepSize {
    StepSize {
        num_tokens: info.max_num_batched_tokens,
        num_requests: info.max_num_seqs,
        max_query_len: info.max_num_batched_tokens.min(info.max_model_len),
        max_seq_len: info.max_model_len,
        num_logit_rows: info.max_logit_rows,
        model,
    }
}

fn block_bytes(c: &ModelConfig, dtype: DType, block_size: usize) -> u128 {
    let row = 2 * c.num_key_value_heads * c.head_dim * dtype.size();
    c.num_kv_caches() as u128 * block_size as u128 * row as u128
}

/// A size for people, in the unit that leaves the most digits before the point.
pub(crate) fn size(bytes: u128) -> String {
    let (scale, unit) = match bytes {
        0x4000_0000.. => (1u64 << 30, "GiB"),
        0x10_0000.. => (1 << 20, "MiB"),
        _ => (1 << 10, "KiB"),
    };
    format!("{:.2} {unit}", bytes as f64 / scale as f64)
}

#[cfg(test)]
mod tests;
