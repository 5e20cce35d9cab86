//! Which ops a model needs, with which types. It knows no device.

use crate::load::checkpoint::Checkpoint;
use crate::load::config::{MlpConfig, ModelConfig};
use crate::load::error::LoadError;
use crate::load::survey::{Permutes, Survey};
use crate::load::types::ModelTypes;
use crate::plan::memory::LoadOptions;
use vllm_apple_ops::*;

impl Checkpoint {
    /// The kinds of ops that the model takes to compute with these options.
    ///
    /// # Errors
    /// A weight that is missing or not what it should be.
    pub fn kinds(&self, options: &LoadOptions) -> std::result::Result<Vec<Kind>, LoadError> {
        let types = options.types_for(self.dtype());
        Ok(kinds(self.config(), types, &self.survey(options)?))
    }
}

/// Of these weights.
fn kinds(c: &ModelConfig, types: ModelTypes, survey: &Survey) -> Vec<Kind> {
    let formats = survey.formats();
    let ModelTypes { weights, activations, kv_cache } = types;
    let weights = weights.input();
    let of_weights = |op| formats.iter().map(move |&format| Kind::of_weight(op, format));
    let attention = |dtype| Kind::of_heads(paged_attention::NAME, dtype, c.head_dim);
    let mut kinds = vec![
        Kind::new(rms_norm::NAME, activations),
        Kind::new(add_rms_norm::NAME, activations),
        Kind::new(rope_kv_write::NAME, kv_cache),
        attention(kv_cache),
        attention(activations),
        Kind::new(gated_activation::NAME, activations),
        Kind::new(gather_rows::NAME, activations),
        Kind::new(sample::NAME, DType::F32),
    ];
    kinds.extend([embedding::NAME, matmul::NAME].into_iter().flat_map(of_weights));
    let is_dense = |mlp: &MlpConfig| match mlp {
        MlpConfig::Dense { .. } => true,
        MlpConfig::Moe(moe) => moe.shared_intermediate_size.is_some(),
    };
    // At once if activations are what is multiplied next.
    if weights == activations && c.layers.iter().any(|layer| is_dense(&layer.mlp)) {
        kinds.extend(of_weights(gated_matmul::NAME));
    }
    // Norms behind a part are of its output.
    if c.out_norms {
        kinds.push(Kind::new(rms_norm::NAME, DType::F32));
    }
    if survey.permutes() != Permutes::default() {
        kinds.push(Kind::new(permute_columns::NAME, activations));
    }
    if c.qk_norm {
        kinds.push(Kind::new(qk_norm::NAME, DType::F32));
    }
    if c.layers.iter().any(|layer| layer.kv_sharing_target.is_some()) {
        kinds.push(Kind::new(rope::NAME, DType::F32));
    }
    let mixtures = c.layers.iter().filter_map(|layer| match &layer.mlp {
        MlpConfig::Moe(moe) => Some(moe),
        MlpConfig::Dense { .. } => None,
    });
    for moe in mixtures {
        kinds.extend(of_weights(grouped_matmul::NAME));
        kinds.extend([topk_softmax::NAME, moe_combine::NAME].map(|op| Kind::new(op, DType::F32)));
        if moe.shared_intermediate_size.is_some() {
            kinds.push(Kind::new(add_shared_expert::NAME, DType::F32));
        }
    }
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}
