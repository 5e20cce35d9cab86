//! gpt-oss: a mixture of experts in every layer, whose experts are two tensors of all of them; biases everywhere; every second layer is
//! full; a sink in each head; SwiGLU within bounds.

use super::rules::{experts, sliding_layers};
use super::{Family, LLAMA_NAMES, Names};
use crate::load::config::{Defaults, MlpConfig, ModelConfig, MoeConfig};
use crate::load::error::LoadError;
use crate::load::fields::Fields;
use crate::load::rope::{self, RopeScaling};
use vllm_apple_ops::Activation;

pub(super) const FAMILY: Family =
    Family { architecture: "GptOssForCausalLM", model_type: "gpt_oss", config, names: NAMES };

const NAMES: Names = Names {
    sinks: "self_attn.sinks",
    router: "mlp.router",
    joint_projections: Some(["gate_up_proj", "down_proj"]),
    ..LLAMA_NAMES
};

/// `transformers.GptOssConfig`.
const DEFAULTS: Defaults = Defaults {
    num_key_value_heads: Some(8),
    head_dim: Some(64),
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-5,
    rope_theta: 150_000.0,
    ..Defaults::LLAMA
};

/// Its RoPE where config.json says nothing of one but the base. The factor of cosines and sines is YaRN's own, `ln(32) / 10 + 1`.
const ROPE: RopeScaling = RopeScaling::Yarn {
    factor: 32.0,
    attention_factor: 1.346_573_590_279_972_6,
    beta_fast: 32.0,
    beta_slow: 1.0,
    original_max_position_embeddings: 4096,
    truncate: false,
};

fn config(f: &Fields) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::shared(FAMILY.architecture, f, &DEFAULTS)?;
    if config.activation != Activation::Silu {
        return Err(f.error("hidden_act", "silu"));
    }
    let bounds = [("swiglu_alpha", Activation::SWIGLU_ALPHA), ("swiglu_limit", Activation::SWIGLU_LIMIT)];
    for (field, only) in bounds {
        if f.number(field)?.is_some_and(|number| number as f32 != only) {
            return Err(f.error(field, &only.to_string()));
        }
    }
    config.activation = Activation::ClampedSwiglu;
    if !f.has("rope_parameters") && rope::scaling(f)?.is_none() {
        config.ropes[0].scaling = ROPE;
        config.longest = config.ropes[0].derived_max_len(config.max_position_embeddings);
    }
    let attention_bias = f.boolean("attention_bias")?.unwrap_or(true);
    (config.qkv_bias, config.o_bias, config.sinks) = (attention_bias, attention_bias, true);
    let sliding = sliding_layers(&config, f)?
        .unwrap_or_else(|| (0..config.layers.len()).map(|layer| layer.is_multiple_of(2)).collect());
    let window = match f.has_null("sliding_window") {
        true => None,
        false => Some(f.size("sliding_window")?.unwrap_or(128)),
    };
    let (num_experts, top_k) = experts(f, &["num_local_experts", "num_experts"], 128, 4)?;
    let moe = MoeConfig {
        num_experts,
        top_k,
        intermediate_size: f.required_size("intermediate_size")?,
        // The softmax is that of the chosen ones.
        renormalize: true,
        bias: true,
        shared_intermediate_size: None,
    };
    for (layer, sliding) in config.layers.iter_mut().zip(sliding) {
        layer.window = window.filter(|_| sliding);
        layer.mlp = MlpConfig::Moe(moe.clone());
    }
    Ok(config)
}
