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
    /// Of a mixture's experts the expected number that `tokens` evenly spread tokens touch is read. Windows are not
    /// counted: with a sliding window the cost of attention is an upper bound.
    pub fn new(
        c: &ModelConfig,
        types: ModelTypes,
        tokens: usize,
        logit_rows: usize,
        context: usize,
        cached: usize,
    ) -> Self {
        let tokens = tokens as f64;
        let (mut read, mut multiplied) = (0.0, 0.0);
        for layer in &c.layers {
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
        let kv_row = (2 * c.num_key_value_heads * c.head_dim * c.layers.len()) as f64;
        let query_row = (2 * c.num_attention_heads * c.head_dim * c.layers.len()) as f64;
        Self {
            weight_bytes: types.weights.bytes(1, read as usize) as f64,
            kv_bytes: cached as f64 * kv_row * types.kv_cache.size() as f64,
            flops: 2.0 * (multiplied + context as f64 * query_row),
        }
    }

    /// Weights and KV cache together.
    pub fn bytes(&self) -> f64 {
        self.weight_bytes + self.kv_bytes
    }
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
    }
}
