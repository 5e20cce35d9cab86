//! Qwen3-MoE: Qwen3 with mixtures of experts.

use super::rules::{experts, optional_window, sparse_layers, uniform_window};
use super::{Family, LLAMA_NAMES};
use crate::load::config::{Defaults, ModelConfig, MoeConfig};
use crate::load::error::LoadError;
use crate::load::fields::Fields;

pub(super) const FAMILY: Family =
    Family { architecture: "Qwen3MoeForCausalLM", model_type: "qwen3_moe", config, names: LLAMA_NAMES };

/// `transformers.Qwen3MoeConfig`, which unlike `Qwen3Config` has no default for `head_dim`.
const DEFAULTS: Defaults =
    Defaults { num_key_value_heads: Some(4), head_dim: None, max_position_embeddings: 32_768, ..Defaults::LLAMA };

fn config(f: &Fields) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::shared(FAMILY.architecture, f, &DEFAULTS)?;
    let attention_bias = f.boolean("attention_bias")?.unwrap_or(false);
    (config.qkv_bias, config.o_bias) = (attention_bias, attention_bias);
    config.qk_norm = true;
    uniform_window(&mut config, optional_window(f)?);
    let (num_experts, top_k) = experts(f, &["num_experts", "num_local_experts"], 128, 8)?;
    let moe = MoeConfig {
        num_experts,
        top_k,
        intermediate_size: f.size("moe_intermediate_size")?.unwrap_or(768),
        renormalize: f.boolean("norm_topk_prob")?.unwrap_or(false),
        bias: false,
        shared_intermediate_size: None,
    };
    sparse_layers(&mut config, f, &moe)?;
    Ok(config)
}
