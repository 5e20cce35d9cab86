//! How much memory a model takes, and how many blocks of KV cache that leaves: computed before anything is allocated.

use crate::load::config::{Head, ModelConfig};
use crate::load::error::LoadError;
use crate::load::quantization_option::QuantizationOption;
use crate::load::survey::Survey;
use crate::load::types::ModelTypes;
use crate::plan::cost::StepCost;
use crate::run::sampler::Sampler;
use crate::run::scratch::Scratch;
use vllm_apple_executor::ExecutorInfo;
use vllm_apple_ops::{Activations, Backend, DType, KvSpec, Limits, ModelSize, StepSize, WeightFormat};

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
    /// Longest sequence in tokens; by default what the model supports.
    pub max_model_len: Option<usize>,
    /// Most requests in one step.
    pub max_num_seqs: usize,
    /// Most tokens in one step; by default 2048, or fewer on a device that would take long for them.
    pub max_num_batched_tokens: Option<usize>,
    /// Tokens in a block of the KV cache.
    pub block_size: usize,
    /// Bytes of the KV cache; see [`MemoryPlan::num_blocks`] for the default.
    pub kv_cache_memory: Option<u64>,
    /// Bytes that the model may take in all; by default what is free.
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

/// Bytes for the KV cache, of which the user may have chosen the number, if so many are `left` by weights and scratch, and
/// `max_num_seqs` sequences take `wanted`.
pub(crate) fn kv_budget(memory: Option<u64>, wanted: u128, left: u128) -> u128 {
    memory.map_or(wanted.min(left / 2), u128::from)
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            dtype: None,
            quantization: None,
            activation_dtype: Activations::default(),
            kv_cache_dtype: None,
            max_model_len: None,
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
    /// Free memory before loading.
    pub available: u64,
    /// What a block of the KV cache takes.
    pub kv_block: KvBlock,
    /// Milliseconds that a prompt as long as a step takes at least, on a device whose limits are known.
    pub step_millis: Option<u64>,
    /// The limits that follow: without blocks until their number is chosen.
    pub info: ExecutorInfo,
}

/// Logits beyond those of `max_num_seqs` rows, for scoring prompts, take at most this many bytes.
const SCORING_LOGITS: usize = 64 << 20;

impl MemoryPlan {
    /// Checks the options and counts what the model takes beside its KV cache.
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
        let available = options.available_memory.map_or_else(|| available_memory(backend), Ok)?;
        let info = check_options(c, types, options, backend)?;
        let weights = survey.bytes(backend);
        let rope = 2 * 4 * (c.ropes.len() * info.max_model_len) as u128 * (c.head_dim as u128 / 2);
        let largest = largest_step(c.size(survey.neediest(types.weights)), &info);
        backend.check_step(&largest)?;
        let of_ops = u128::from(backend.scratch_bytes(&largest));
        let of_sampler = if c.head == Head::Logits { Sampler::bytes(&info) } else { 0 };
        let scratch = Scratch::bytes(c, &info, types.activations, survey.permutes()) + rope + of_ops + of_sampler;
        let plan = Self {
            weights: weights as u64,
            kv_cache: 0,
            scratch: scratch as u64,
            available,
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
            info,
        };
        if weights + scratch >= u128::from(available) {
            return Err(plan.error(
                "weights and scratch alone do not fit",
                "use a smaller model, `quantization` int4 or int8, `dtype` bfloat16, or a smaller `max_num_batched_tokens` or `max_num_seqs`",
            ));
        }
        Ok(plan)
    }

    /// Blocks of a KV cache of `memory` bytes. Without a wish, it holds `max_num_seqs` sequences of `max_model_len` tokens, but takes at
    /// most half of the memory that weights and scratch leave.
    ///
    /// # Errors
    /// As [`Self::with_blocks`]: in any case one sequence of `max_model_len` must fit.
    pub fn num_blocks(&self, memory: Option<u64>) -> Result<usize, LoadError> {
        let block = u128::from(self.kv_block.bytes);
        let sequence_blocks = self.blocks_of_a_sequence() as u128;
        let budget = kv_budget(memory, sequence_blocks * self.info.max_num_seqs as u128 * block, self.left());
        // Slots are numbered with u32.
        let num_blocks = (budget / block).min(u128::from(u32::MAX) / self.info.block_size as u128) as usize;
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
            let remedy = match num_blocks * self.info.block_size {
                0 => "raise `kv_cache_memory`".to_owned(),
                fits => format!("set `max_model_len` to at most {fits}, or raise `kv_cache_memory`"),
            };
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

    /// Bytes that weights and scratch leave.
    fn left(&self) -> u128 {
        u128::from(self.available).saturating_sub(u128::from(self.weights) + u128::from(self.scratch))
    }

    fn error(&self, problem: &str, remedy: &str) -> LoadError {
        let sequence = self.blocks_of_a_sequence() as u128 * u128::from(self.kv_block.bytes);
        LoadError::Memory(format!(
            "{problem} (weights {}, scratch {}, one sequence {}, available {}); {remedy}",
            size(self.weights.into()),
            size(self.scratch.into()),
            size(sequence),
            size(self.available.into()),
        ))
    }

    /// Writes the plan to the log.
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
    }
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

/// Memory that a model may take on this backend: what the process may still take, or what the device recommends where that
/// is less.
pub(crate) fn available_memory(backend: &impl Backend) -> Result<u64, LoadError> {
    let free = free_memory()?;
    Ok(backend.memory_limit().map_or(free, |limit| free.min(limit)))
}

/// Memory that this process may still take: the system's, or what its control group leaves where that is less. Cached files
/// count as free in both.
fn free_memory() -> Result<u64, LoadError> {
    let unknown = |e: sysinfo::Error| LoadError::Memory(format!("the free memory cannot be read: {e}"));
    let mut system = sysinfo::System::new().map_err(unknown)?;
    system.refresh_memory();
    // macOS counts pages that others use as available as long as they are not wired.
    let others = cfg!(target_os = "macos").then(|| system.total_memory().saturating_sub(system.used_memory()));
    let free = others.unwrap_or_else(|| system.available_memory());
    if free == 0 {
        return Err(LoadError::Memory("the system says that no memory is free".to_owned()));
    }
    let group = system.cgroup_limits().map(|limits| limits.total_memory.saturating_sub(limits.rss));
    Ok(group.map_or(free, |group| free.min(group)))
}

/// Tokens of a step without a wish: more do not make prompts faster.
pub(crate) const MAX_TOKENS: usize = 2048;
/// With fewer, prompts wait for weights.
const MIN_TOKENS: usize = 64;
/// Longest that a step may take by estimate: requests that decode wait for the prompts of others so long.
const STEP_SECONDS: f64 = 0.5;
/// The share of a device's peak that a prompt is expected to reach.
const OF_PEAK_FLOPS: f64 = 0.5;

/// Seconds for a prompt of so many tokens, by estimate.
fn prompt_seconds(c: &ModelConfig, types: ModelTypes, tokens: usize, limits: &Limits) -> f64 {
    StepCost::new(c, types, tokens, 1, tokens * tokens / 2, tokens).flops / (OF_PEAK_FLOPS * limits.peak_flops)
}

/// Positions with which attention costs a token as much as all else.
fn costly_context(c: &ModelConfig, types: ModelTypes) -> usize {
    let [all_else, a_position] =
        [(1, 0), (0, 1)].map(|(tokens, context)| StepCost::new(c, types, tokens, 0, context, 0).flops);
    (all_else / a_position) as usize
}

/// Tokens of a step that a device takes half a second for, a power of two.
fn smooth_tokens(c: &ModelConfig, types: ModelTypes, limits: &Limits) -> usize {
    let sizes = std::iter::successors(Some(MAX_TOKENS), |tokens| (*tokens > MIN_TOKENS).then_some(tokens / 2));
    let smooth = |tokens: &usize| prompt_seconds(c, types, *tokens, limits) <= STEP_SECONDS;
    sizes.into_iter().find(smooth).unwrap_or(MIN_TOKENS)
}

fn check_options(
    c: &ModelConfig,
    types: ModelTypes,
    options: &LoadOptions,
    backend: &impl Backend,
) -> Result<ExecutorInfo, LoadError> {
    let refuse =
        |option, expected: String, got: usize| Err(LoadError::Option { option, expected, got: got.to_string() });
    let longest = c.derived_max_model_len();
    let max_model_len = options.max_model_len.unwrap_or(longest);
    if max_model_len == 0 || max_model_len > longest {
        let expected = format!("from 1 to {longest}, which is what the model supports");
        return refuse("`max_model_len`", expected, max_model_len);
    }
    // Larger values only overflow products; no machine serves them.
    const MAX: usize = 1 << 20;
    let (seqs, block) = (options.max_num_seqs, options.block_size);
    let (tokens, costly_context) = match (options.max_num_batched_tokens, backend.measured()) {
        (Some(tokens), _) => (tokens, None),
        (None, None) => (MAX_TOKENS.max(seqs), None),
        // Beside a token of each request that decodes.
        (None, Some(limits)) => (smooth_tokens(c, types, &limits) + seqs, Some(costly_context(c, types))),
    };
    if seqs == 0 || seqs > MAX {
        return refuse("`max_num_seqs`", format!("from 1 to {MAX}"), seqs);
    }
    if tokens < seqs || tokens > MAX {
        return refuse("`max_num_batched_tokens`", format!("from `max_num_seqs` ({seqs}) to {MAX}"), tokens);
    }
    if block == 0 || block > 1024 {
        return refuse("`block_size`", "from 1 to 1024".to_owned(), block);
    }
    let (embedding_size, max_logit_rows) = match c.head {
        Head::Logits => (None, seqs.max(tokens.min(SCORING_LOGITS / (4 * c.vocab_size)))),
        // A row takes little, and a mean needs those of all tokens.
        Head::Hidden => (Some(c.hidden_size), tokens),
    };
    Ok(ExecutorInfo {
        vocab_size: c.vocab_size,
        max_model_len,
        max_num_batched_tokens: tokens,
        costly_context,
        embedding_size,
        max_num_seqs: seqs,
        max_logit_rows,
        block_size: block,
        num_blocks: 0,
    })
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
mod tests {
    use super::*;
    use crate::Checkpoint;
    use vllm_apple_metal::gpu::software::SoftwareGpu;
    use vllm_apple_metal::{MetalBackend, MetalOptions};

    #[test]
    fn the_default_step_takes_about_half_a_second_on_any_chip() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/bench/qwen2-0.5b");
        let checkpoint = Checkpoint::describe(directory.as_ref()).unwrap();
        let plan = |tflops: Option<f64>, max_num_seqs: usize| {
            let mut backend = MetalBackend::new(SoftwareGpu::fast().unwrap(), MetalOptions::default()).unwrap();
            if let Some(tflops) = tflops {
                backend.set_limits(Limits { read_bandwidth: 1e11, peak_flops: tflops * 1e12 });
            }
            let options = LoadOptions { max_num_seqs, available_memory: Some(1 << 40), ..LoadOptions::default() };
            let plan = MemoryPlan::new(
                checkpoint.config(),
                &Survey::default(),
                ModelTypes::all(DType::BF16),
                &options,
                &backend,
            )
            .unwrap();
            (plan.info.max_num_batched_tokens, plan.step_millis)
        };
        // A prompt of 2048 tokens is 1.646 TFLOP, one of 1024 is 0.778, of 512 0.378, at half of the device's.
        for (tflops, tokens) in [(30.0, 2048), (6.6, 2048), (6.5, 1024), (3.2, 1024), (2.6, 512), (0.2, 64), (0.01, 64)]
        {
            assert_eq!(plan(Some(tflops), 64).0, tokens + 64, "{tflops} TFLOPS");
        }
        assert_eq!(plan(Some(2.6), 64).1, Some(290));
        assert_eq!(plan(Some(0.2), 256).0, 64 + 256, "each request may have a token");
        assert_eq!(plan(None, 64), (MAX_TOKENS, None), "nothing is known of the device");
    }
}
