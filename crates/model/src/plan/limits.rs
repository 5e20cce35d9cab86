//! The limits of a model's steps and sequences: from the options, the model's sizes and what a device was measured to do. It counts no memory.

use crate::load::config::{Head, ModelConfig};
use crate::load::error::LoadError;
use crate::load::types::ModelTypes;
use crate::plan::cost::StepCost;
use crate::plan::memory::LoadOptions;
use vllm_apple_executor::ExecutorInfo;
use vllm_apple_ops::{Backend, Limits};

/// Tokens of a step without a wish: more do not make prompts faster.
pub(crate) const MAX_TOKENS: usize = 2048;
/// With fewer, prompts wait for weights.
const MIN_TOKENS: usize = 64;
/// Longest that a step may take by estimate: requests that decode wait for the prompts of others so long.
const STEP_SECONDS: f64 = 0.5;
/// The share of a device's peak that a prompt is expected to reach.
const OF_PEAK_FLOPS: f64 = 0.5;
/// Logits beyond those of `max_num_seqs` rows, for scoring prompts, take at most this many bytes.
const SCORING_LOGITS: usize = 64 << 20;

/// Seconds for a prompt of so many tokens, by estimate.
pub(crate) fn prompt_seconds(c: &ModelConfig, types: ModelTypes, tokens: usize, limits: &Limits) -> f64 {
    StepCost::of_requests(c, types, 1, 0, tokens).flops / (OF_PEAK_FLOPS * limits.peak_flops)
}

/// Positions with which attention costs a token as much as all else, if a position costs what it does on average: behind a window it costs nothing.
fn costly_context(c: &ModelConfig, types: ModelTypes, max_model_len: usize) -> usize {
    // Larger numbers only lose precision.
    const MAX: f64 = (1 << 30) as f64;
    let head = StepCost::new(c, types, 0, 1, 0, 0).flops;
    let others = max_model_len - 1;
    let [first, last] = [0, others].map(|computed| StepCost::of_requests(c, types, 1, computed, 1).flops - head);
    (first * others as f64 / (last - first)).min(MAX) as usize
}

/// Tokens of a step that a device takes half a second for, a power of two.
fn smooth_tokens(c: &ModelConfig, types: ModelTypes, limits: &Limits) -> usize {
    let sizes = std::iter::successors(Some(MAX_TOKENS), |tokens| (*tokens > MIN_TOKENS).then_some(tokens / 2));
    let smooth = |tokens: &usize| prompt_seconds(c, types, *tokens, limits) <= STEP_SECONDS;
    sizes.into_iter().find(smooth).unwrap_or(MIN_TOKENS)
}

/// The longest sequence that the options ask for, or what the model supports of what is of use.
///
/// # Errors
/// The model does not support it.
pub(crate) fn longest_sequence(c: &ModelConfig, options: &LoadOptions) -> Result<usize, LoadError> {
    let supported = c.derived_max_model_len();
    let of_use = options.longest_of_use.unwrap_or(supported).clamp(1, supported);
    let asked = options.max_model_len.unwrap_or(of_use);
    if asked == 0 || asked > supported {
        let expected = format!("from 1 to {supported}, which is what the model supports");
        return Err(LoadError::Option { option: "`max_model_len`", expected, got: asked.to_string() });
    }
    Ok(asked)
}

/// The limits with sequences of up to `max_model_len` tokens, still without blocks.
///
/// # Errors
/// An option out of range.
pub(crate) fn limits(
    c: &ModelConfig,
    types: ModelTypes,
    options: &LoadOptions,
    backend: &impl Backend,
    max_model_len: usize,
) -> Result<ExecutorInfo, LoadError> {
    let refuse =
        |option, expected: String, got: usize| Err(LoadError::Option { option, expected, got: got.to_string() });
    // Larger values only overflow products; no machine serves them.
    const MAX: usize = 1 << 20;
    let (seqs, block) = (options.max_num_seqs, options.block_size);
    let (tokens, costly_context) = match (options.max_num_batched_tokens, backend.measured()) {
        (Some(tokens), _) => (tokens, None),
        (None, None) => (MAX_TOKENS.max(seqs), None),
        // Beside a token of each request that decodes.
        (None, Some(limits)) => {
            (smooth_tokens(c, types, &limits) + seqs, Some(costly_context(c, types, max_model_len)))
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checkpoint;
    use crate::load::survey::Survey;
    use crate::plan::memory::MemoryPlan;
    use vllm_apple_metal::gpu::software::SoftwareGpu;
    use vllm_apple_metal::{MetalBackend, MetalOptions};
    use vllm_apple_ops::DType;

    #[test]
    fn what_is_behind_a_window_costs_nothing() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/gemma3");
        let checkpoint = Checkpoint::describe(directory.as_ref()).unwrap();
        let types = ModelTypes::all(DType::BF16);
        let of = |config: &ModelConfig, len: usize| costly_context(config, types, len) as f64;
        let windowed = checkpoint.config().clone();
        let mut full = windowed.clone();
        full.layers.iter_mut().for_each(|layer| layer.window = None);
        let (num_full, num_layers) =
            (windowed.layers.iter().filter(|layer| layer.window.is_none()).count(), full.layers.len());
        assert!(num_full > 0 && num_full < num_layers);
        let share = of(&full, 100_000) / of(&windowed, 100_000);
        assert!((share - num_full as f64 / num_layers as f64).abs() < 0.01, "{share}");
        // Without one, any length says the same; and a single token has nothing before it that could cost.
        assert!((of(&full, 1000) / of(&full, 100_000) - 1.0).abs() < 0.01);
        assert_eq!(of(&windowed, 1), f64::from(1 << 30));
    }

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
            let types = ModelTypes::all(DType::BF16);
            let plan = MemoryPlan::new(checkpoint.config(), &Survey::default(), types, &options, &backend).unwrap();
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
