//! How much memory a model takes, and how many blocks of KV cache that leaves: computed before anything is allocated.

use crate::config::{LayerConfig, MlpConfig, ModelConfig};
use crate::error::LoadError;
use crate::sampler::Sampler;
use crate::scratch::Scratch;
use vllm_apple_executor::ExecutorInfo;
use vllm_apple_ops::{Backend, DType, KvSpec, StepSize};

/// How to load a model. `None` lets the loader choose.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Type of weights, activations and KV cache; by default the checkpoint's.
    pub dtype: Option<DType>,
    /// Longest sequence in tokens; by default what the model supports.
    pub max_model_len: Option<usize>,
    /// Most requests in one step.
    pub max_num_seqs: usize,
    /// Most tokens in one step.
    pub max_num_batched_tokens: usize,
    /// Tokens in a block of the KV cache.
    pub block_size: usize,
    /// Bytes of the KV cache; see [`MemoryPlan`] for the default.
    pub kv_cache_memory: Option<u64>,
}

impl LoadOptions {
    /// Type of weights, activations and KV cache of a checkpoint of type `stored`.
    pub fn dtype_for(&self, stored: DType) -> DType {
        self.dtype.unwrap_or(stored)
    }

    /// Bytes for the KV cache, if so many are `left` by weights and scratch, and `max_num_seqs` sequences take `wanted`.
    pub(crate) fn kv_budget(&self, wanted: u128, left: u128) -> u128 {
        self.kv_cache_memory.map_or(wanted.min(left / 2), u128::from)
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            dtype: None,
            max_model_len: None,
            max_num_seqs: 64,
            max_num_batched_tokens: 2048,
            block_size: 16,
            kv_cache_memory: None,
        }
    }
}

/// What a model takes, in bytes.
///
/// Without `kv_cache_memory`, the KV cache holds `max_num_seqs` sequences of `max_model_len` tokens, but takes at most half
/// of the memory that weights and scratch leave. In any case it must hold one sequence of `max_model_len`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Packed weights.
    pub weights: u64,
    /// KV cache of all layers.
    pub kv_cache: u64,
    /// Activations, logits, step inputs, RoPE tables, the sampler, and what the backend's ops need besides.
    pub scratch: u64,
    /// Free memory before loading.
    pub available: u64,
    /// The limits that follow.
    pub info: ExecutorInfo,
}

/// Logits beyond those of `max_num_seqs` rows, for scoring prompts, take at most this many bytes.
const SCORING_LOGITS: usize = 64 << 20;

impl MemoryPlan {
    /// Checks the options and divides the memory that is free.
    ///
    /// # Errors
    /// An option out of range, or too little memory, with the numbers and the flags to change.
    pub fn new(
        c: &ModelConfig,
        dtype: DType,
        options: &LoadOptions,
        backend: &impl Backend,
    ) -> Result<Self, LoadError> {
        let available = available_memory(backend)?;
        let mut info = check_options(c, options)?;
        let weights = weight_bytes(c, dtype);
        let rope = 2 * 4 * (info.max_model_len as u128) * (c.head_dim as u128 / 2);
        let largest = largest_step(c, dtype, &info);
        backend.check_step(&largest)?;
        let of_ops = u128::from(backend.scratch_bytes(&largest));
        let scratch = Scratch::bytes(c, &info, dtype) + rope + of_ops + Sampler::bytes(&info);
        let block = block_bytes(c, dtype, info.block_size);
        let sequence_blocks = info.max_model_len.div_ceil(info.block_size) as u128;
        let left = u128::from(available).saturating_sub(weights + scratch);
        let budget = options.kv_budget(sequence_blocks * info.max_num_seqs as u128 * block, left);
        // Slots are numbered with u32.
        let num_blocks = (budget / block).min(u128::from(u32::MAX) / info.block_size as u128);
        let numbers = Numbers { weights, scratch, available, sequence: sequence_blocks * block };
        if weights + scratch >= u128::from(available) {
            return Err(numbers.error(
                "weights and scratch alone do not fit",
                "use a smaller model, --dtype bfloat16, or a smaller --max-num-batched-tokens or --max-num-seqs",
            ));
        }
        if num_blocks < sequence_blocks {
            let fits = num_blocks * info.block_size as u128;
            let remedy = match fits {
                0 => "raise --kv-cache-memory".to_owned(),
                _ => format!("set --max-model-len to at most {fits}, or raise --kv-cache-memory"),
            };
            return Err(numbers.error(
                &format!(
                    "the KV cache of {} cannot hold one sequence of --max-model-len {}",
                    size(budget),
                    info.max_model_len
                ),
                &remedy,
            ));
        }
        if weights + scratch + num_blocks * block > u128::from(available) {
            return Err(numbers.error(
                &format!("--kv-cache-memory {} does not fit beside weights and scratch", size(budget)),
                &format!("set it to at most {left} bytes"),
            ));
        }
        info.num_blocks = num_blocks as usize;
        let kv_cache = (num_blocks * block) as u64;
        Ok(Self { weights: weights as u64, kv_cache, scratch: scratch as u64, available, info })
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
    }
}

/// The parts of an error about memory.
struct Numbers {
    weights: u128,
    scratch: u128,
    available: u64,
    sequence: u128,
}

impl Numbers {
    fn error(&self, problem: &str, remedy: &str) -> LoadError {
        LoadError::Memory(format!(
            "{problem} (weights {}, scratch {}, one sequence {}, available {}); {remedy}",
            size(self.weights),
            size(self.scratch),
            size(self.sequence),
            size(self.available.into()),
        ))
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
pub(crate) fn largest_step(c: &ModelConfig, dtype: DType, info: &ExecutorInfo) -> StepSize {
    StepSize {
        num_tokens: info.max_num_batched_tokens,
        num_requests: info.max_num_seqs,
        max_query_len: info.max_num_batched_tokens.min(info.max_model_len),
        max_seq_len: info.max_model_len,
        num_logit_rows: info.max_logit_rows,
        model: c.size(dtype),
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
    let free = system.available_memory();
    let group = system.cgroup_limits().map(|limits| limits.total_memory.saturating_sub(limits.rss));
    Ok(group.map_or(free, |group| free.min(group)))
}

fn check_options(c: &ModelConfig, options: &LoadOptions) -> Result<ExecutorInfo, LoadError> {
    let refuse =
        |option, expected: String, got: usize| Err(LoadError::Option { option, expected, got: got.to_string() });
    let longest = c.derived_max_model_len();
    let max_model_len = options.max_model_len.unwrap_or(longest);
    if max_model_len == 0 || max_model_len > longest {
        let expected = format!("from 1 to {longest}, which is what the model supports");
        return refuse("--max-model-len", expected, max_model_len);
    }
    // Larger values only overflow products; no machine serves them.
    const MAX: usize = 1 << 20;
    let (tokens, seqs, block) = (options.max_num_batched_tokens, options.max_num_seqs, options.block_size);
    if seqs == 0 || seqs > MAX {
        return refuse("--max-num-seqs", format!("from 1 to {MAX}"), seqs);
    }
    if tokens < seqs || tokens > MAX {
        return refuse("--max-num-batched-tokens", format!("from --max-num-seqs ({seqs}) to {MAX}"), tokens);
    }
    if block == 0 || block > 1024 {
        return refuse("--block-size", "from 1 to 1024".to_owned(), block);
    }
    Ok(ExecutorInfo {
        vocab_size: c.vocab_size,
        max_model_len,
        max_num_batched_tokens: tokens,
        max_num_seqs: seqs,
        max_logit_rows: seqs.max(tokens.min(SCORING_LOGITS / (4 * c.vocab_size))),
        block_size: block,
        num_blocks: 0,
    })
}

fn block_bytes(c: &ModelConfig, dtype: DType, block_size: usize) -> u128 {
    let row = 2 * c.num_key_value_heads * c.head_dim * dtype.size();
    c.num_kv_caches() as u128 * block_size as u128 * row as u128
}

fn weight_bytes(c: &ModelConfig, dtype: DType) -> u128 {
    let hidden = c.hidden_size as u128;
    let attention =
        |layer: &LayerConfig| (c.projection_size(layer) + c.num_attention_heads * c.head_dim) as u128 * hidden;
    let gated = |width: usize| 3 * hidden * width as u128;
    let mlp = |mlp: &MlpConfig| match mlp {
        MlpConfig::Dense { intermediate_size, .. } => gated(*intermediate_size),
        MlpConfig::Moe(moe) => {
            let experts = moe.num_experts as u128 * (gated(moe.intermediate_size) + hidden);
            experts + moe.shared_intermediate_size.map_or(0, |width| gated(width) + hidden)
        }
    };
    let tables = if c.tie_word_embeddings { 1 } else { 2 } * c.vocab_size as u128 * hidden;
    let layers: u128 = c.layers.iter().map(|layer| attention(layer) + mlp(&layer.mlp)).sum();
    (tables + layers) * dtype.size() as u128
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
