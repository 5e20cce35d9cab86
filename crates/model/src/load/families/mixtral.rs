//! Mixtral: Mistral whose MLPs are mixtures of experts.

use super::rules::{experts, uniform_window};
use super::{Family, LLAMA_NAMES, Names, Projection};
use crate::load::config::{Defaults, MlpConfig, ModelConfig, MoeConfig};
use crate::load::error::LoadError;
use crate::load::fields::Fields;

pub(super) const FAMILY: Family =
    Family { architecture: "MixtralForCausalLM", model_type: "mixtral", config, names: NAMES };

const NAMES: Names = Names {
    router: "block_sparse_moe.gate",
    experts: "block_sparse_moe.experts",
    expert_projections: [
        Projection { own: "w1", stacked: "gate_proj" },
        Projection { own: "w3", stacked: "up_proj" },
        Projection { own: "w2", stacked: "down_proj" },
    ],
    ..LLAMA_NAMES
};

/// `transformers.MixtralConfig`.
const DEFAULTS: Defaults = Defaults {
    num_key_value_heads: Some(8),
    head_dim: None,
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-5,
    rope_theta: 1_000_000.0,
    ..Defaults::LLAMA
};

fn config(f: &Fields) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::shared(FAMILY.architecture, f, &DEFAULTS)?;
    uniform_window(&mut config, f.size("sliding_window")?);
    let (num_experts, top_k) = experts(f, &["num_local_experts", "num_experts"], 8, 2)?;
    let moe = MoeConfig {
        num_experts,
        top_k,
        intermediate_size: f.required_size("intermediate_size")?,
        renormalize: true,
        bias: false,
        shared_intermediate_size: None,
    };
    config.layers.iter_mut().for_each(|layer| layer.mlp = MlpConfig::Moe(moe.clone()));
    Ok(config)
}
