//! Qwen2-MoE and Qwen1.5-MoE: Qwen2 with mixtures of experts, beside an expert that every token uses behind a gate.

use super::rules::{experts, sparse_layers, windows_by_layer};
use super::{Family, LLAMA_NAMES};
use crate::load::config::{Defaults, ModelConfig, MoeConfig};
use crate::load::error::LoadError;
use crate::load::fields::Fields;

pub(super) const FAMILY: Family =
    Family { architecture: "Qwen2MoeForCausalLM", model_type: "qwen2_moe", config, names: LLAMA_NAMES };

/// `transformers.Qwen2MoeConfig`.
const DEFAULTS: Defaults =
    Defaults { num_key_value_heads: Some(16), head_dim: None, max_position_embeddings: 32_768, ..Defaults::LLAMA };

fn config(f: &Fields) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::shared(FAMILY.architecture, f, &DEFAULTS)?;
    config.qkv_bias = f.boolean("qkv_bias")?.unwrap_or(true);
    windows_by_layer(&mut config, f, |layer, max| layer.is_multiple_of(2) && layer < max)?;
    let (num_experts, top_k) = experts(f, &["num_experts"], 60, 4)?;
    let moe = MoeConfig {
        num_experts,
        top_k,
        intermediate_size: f.size("moe_intermediate_size")?.unwrap_or(1408),
        renormalize: f.boolean("norm_topk_prob")?.unwrap_or(false),
        bias: false,
        shared_intermediate_size: Some(f.size("shared_expert_intermediate_size")?.unwrap_or(5632)),
    };
    sparse_layers(&mut config, f, &moe)?;
    Ok(config)
}
