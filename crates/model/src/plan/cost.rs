//! What a step must cost at least, in bytes and operations, from sizes alone: what measured speed is compared with.

use crate::load::config::{Head, MlpConfig, ModelConfig};
use crate::load::types::ModelTypes;

/// The least that a step must move and compute.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepCost {
    /// Bytes of weights that are read once.
    pub weight_bytes: f64,
    /// Bytes of keys and values that attention reads, once per key head.
    pub kv_bytes: f64,
    /// Multiplications and additions of matmuls and attention.
    pub flops: f64,
}

impl StepCost {
    /// The cost of a step of `tokens` new tokens that see `context` positions in sum (over the tokens, for operations) and
    /// `cached` positions in sum (over the requests, for bytes), and whose `logit_rows` last ones get logits.
    ///
    /// Of a mixture's experts the expected number that `tokens` evenly spread tokens touch is read. Sums do not say what is behind a
    /// window: with a sliding window the cost of attention is an upper bound, see [`Self::of_requests`].
    pub fn new(
        c: &ModelConfig,
        types: ModelTypes,
        tokens: usize,
        logit_rows: usize,
        context: usize,
        cached: usize,
    ) -> Self {
        Self::with(c, types, tokens, logit_rows, |_| [context, cached])
    }

    /// The cost of a step of `requests` requests that each have `computed` tokens in the cache and `tokens` new ones, the last of which gets
    /// logits. Attention sees in each layer what its window shows.
    pub fn of_requests(c: &ModelConfig, types: ModelTypes, requests: usize, computed: usize, tokens: usize) -> Self {
        Self::with(c, types, requests * tokens, requests, |window| {
            seen(window, computed, tokens).map(|positions| requests * positions)
        })
    }

    /// `positions` says how many positions the tokens of a layer with such a window see in sum, and how many of them are read.
    fn with(
        c: &ModelConfig,
        types: ModelTypes,
        tokens: usize,
        logit_rows: usize,
        positions: impl Fn(Option<usize>) -> [usize; 2],
    ) -> Self {
        let tokens = tokens as f64;
        let (mut read, mut multiplied) = (0.0, 0.0);
        let (mut context, mut cached) = (0.0, 0.0);
        for layer in &c.layers {
            let [seen, kept] = positions(layer.window);
            context += seen as f64;
            cached += kept as f64;
            let attention = c.hidden_size * (c.projection_size(layer) + c.num_attention_heads * c.head_dim);
            let (layer_read, layer_multiplied) = mlp_elements(c, &layer.mlp, tokens);
            read += attention as f64 + layer_read;
            multiplied += tokens * (attention as f64 + layer_multiplied);
        }
        let head = (c.vocab_size * c.hidden_size) as f64;
        if logit_rows > 0 && c.head == Head::Logits {
            read += head;
            multiplied += logit_rows as f64 * head;
        }
        let kv_row = (2 * c.num_key_value_heads * c.head_dim) as f64;
        let query_row = (2 * c.num_attention_heads * c.head_dim) as f64;
        Self {
            weight_bytes: types.weights.bytes(1, read as usize) as f64,
            kv_bytes: cached * kv_row * types.kv_cache.size() as f64,
            flops: 2.0 * (multiplied + context * query_row),
        }
    }

    /// Weights and KV cache together.
    pub fn bytes(&self) -> f64 {
        self.weight_bytes + self.kv_bytes
    }
}

/// The positions that a request's `tokens` new tokens, behind `computed` others, see in sum through a window, and those that any of them sees.
fn seen(window: Option<usize>, computed: usize, tokens: usize) -> [usize; 2] {
    let all = computed + tokens;
    let window = window.unwrap_or(all);
    // Of the first `n` tokens, each of which sees those before it and itself.
    let of_first = |n: usize| {
        let growing = n.min(window);
        growing * (growing + 1) / 2 + (n - growing) * window
    };
    [of_first(all) - of_first(computed), all.min((window + tokens).saturating_sub(1))]
}

/// Elements of the feed-forward weights that `tokens` tokens read, and that each token multiplies with.
fn mlp_elements(c: &ModelConfig, mlp: &MlpConfig, tokens: f64) -> (f64, f64) {
    let gated = |width: usize| (3 * c.hidden_size * width) as f64;
    match mlp {
        MlpConfig::Dense { intermediate_size, .. } => (gated(*intermediate_size), gated(*intermediate_size)),
        MlpConfig::Moe(moe) => {
            let (experts, top_k) = (moe.num_experts as f64, moe.top_k as f64);
            let touched = experts * (1.0 - (1.0 - top_k / experts).powf(tokens));
            let router = (c.hidden_size * moe.num_experts) as f64;
            let shared = moe.shared_intermediate_size.map_or(0.0, |width| gated(width) + c.hidden_size as f64);
            let expert = gated(moe.intermediate_size);
            (router + shared + touched * expert, router + shared + top_k * expert)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checkpoint;
    use vllm_apple_ops::DType;

    #[test]
    fn a_decode_step_of_qwen2_0_5b_reads_its_weights_once() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/bench/qwen2-0.5b");
        let checkpoint = Checkpoint::describe(directory.as_ref()).unwrap();
        let cost = StepCost::new(checkpoint.config(), ModelTypes::all(DType::BF16), 8, 8, 800, 800);
        // All 494,032,768 parameters but norms and biases, which are not matrices.
        let norms_and_biases = 24 * (2 * 896 + 14 * 64 + 2 * 2 * 64) + 896;
        assert_eq!(cost.weight_bytes, 2.0 * f64::from(494_032_768 - norms_and_biases));
        // 24 layers of two heads' keys and values of 64 elements of 2 bytes.
        assert_eq!(cost.kv_bytes, 800.0 * 24.0 * 2.0 * 2.0 * 64.0 * 2.0);
        let attention = 800.0 * 24.0 * 2.0 * 14.0 * 64.0 * 2.0;
        assert_eq!(cost.flops, 8.0 * cost.weight_bytes + attention);
        assert_eq!(cost, StepCost::of_requests(checkpoint.config(), ModelTypes::all(DType::BF16), 8, 99, 1));
    }

    #[test]
    fn a_layer_with_a_window_sees_and_reads_no_more_than_that() {
        let one_by_one = |window: usize, computed: usize, tokens: usize| {
            let of = |position: usize| (position + 1).saturating_sub(window)..position + 1;
            let all: Vec<usize> = (computed..computed + tokens).flat_map(of).collect();
            [all.len(), all.iter().collect::<std::collections::BTreeSet<_>>().len()]
        };
        for (window, computed, tokens) in [(4, 0, 3), (4, 0, 9), (4, 2, 5), (4, 20, 1), (4, 20, 7), (1, 3, 2)] {
            let found = seen(Some(window), computed, tokens);
            assert_eq!(found, one_by_one(window, computed, tokens), "{window} {computed} {tokens}");
        }
        assert_eq!(seen(None, 9, 2), [10 + 11, 11]);

        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/bench/qwen2-0.5b");
        let mut config = Checkpoint::describe(directory.as_ref()).unwrap().config().clone();
        let cost = |config: &ModelConfig| StepCost::of_requests(config, ModelTypes::all(DType::BF16), 8, 99, 1);
        let whole = cost(&config);
        config.layers[0].window = Some(10);
        config.layers[1].window = Some(1000);
        let windowed = cost(&config);
        // One of 24 layers reads 10 of 100 positions.
        assert_eq!(windowed.kv_bytes / whole.kv_bytes, (23.0 * 100.0 + 10.0) / 2400.0);
        assert_eq!(windowed.weight_bytes, whole.weight_bytes);
        assert!(windowed.flops < whole.flops);
    }
}
