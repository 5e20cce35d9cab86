//! Gemma 3, the text models: norms before and after each part, whose weights are differences from 1; sliding layers with a RoPE of their
//! own, every sixth layer full; GELU; scaled embeddings.

use super::rules::sliding_layers;
use super::{Family, LLAMA_NAMES, Names};
use crate::load::config::{Defaults, ModelConfig};
use crate::load::error::LoadError;
use crate::load::fields::Fields;
use std::ops::RangeInclusive;
use vllm_apple_ops::Activation;

pub(super) const FAMILY: Family =
    Family { architecture: "Gemma3ForCausalLM", model_type: "gemma3_text", config, names: NAMES };

const NAMES: Names = Names {
    attention_out_norm: "post_attention_layernorm",
    mlp_norm: "pre_feedforward_layernorm",
    mlp_out_norm: "post_feedforward_layernorm",
    ..LLAMA_NAMES
};

/// `transformers.Gemma3TextConfig`.
const DEFAULTS: Defaults = Defaults {
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-6,
    rope_theta: 1_000_000.0,
    local_rope_theta: Some(10_000.0),
    activation: ("hidden_activation", Activation::GeluTanh),
    tie_word_embeddings: true,
};

/// Models have the size of a head, or hidden_size / num_attention_heads.
const QUERY_SCALAR: RangeInclusive<f64> = 1.0..=1e6;

fn config(f: &Fields) -> Result<ModelConfig, LoadError> {
    for field in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if f.get(field).is_some() {
            return Err(f.error(field, "null: capped scores and logits are not supported"));
        }
    }
    if f.get("use_bidirectional_attention").is_some_and(|value| value != false) {
        return Err(f.error("use_bidirectional_attention", "false"));
    }
    let mut config = ModelConfig::shared(FAMILY.architecture, f, &DEFAULTS)?;
    let attention_bias = f.boolean("attention_bias")?.unwrap_or(false);
    (config.qkv_bias, config.o_bias) = (attention_bias, attention_bias);
    (config.qk_norm, config.out_norms, config.norm_offset) = (true, true, 1.0);
    config.embedding_scale = (config.hidden_size as f32).sqrt();
    config.attention_scale = f.number_in("query_pre_attn_scalar", &QUERY_SCALAR)?.unwrap_or(256.0).powf(-0.5) as f32;
    // vLLM's exception: Gemma's length is that after scaling.
    config.longest = config.max_position_embeddings;
    sliding_and_full_layers(&mut config, f)?;
    Ok(config)
}

/// Sliding layers, but for every sixth (`sliding_window_pattern`) or those that `layer_types` names. Full layers use the first RoPE.
fn sliding_and_full_layers(config: &mut ModelConfig, f: &Fields) -> Result<(), LoadError> {
    let pattern = f.size("sliding_window_pattern")?.unwrap_or(6);
    let num_layers = config.layers.len();
    let sliding = sliding_layers(config, f)?
        .unwrap_or_else(|| (1..=num_layers).map(|number| !number.is_multiple_of(pattern)).collect());
    if f.has_null("sliding_window") && sliding.contains(&true) {
        return Err(f.error("sliding_window", "a size: there are sliding layers"));
    }
    let window = f.size("sliding_window")?.unwrap_or(4096);
    for (layer, sliding) in config.layers.iter_mut().zip(sliding) {
        (layer.window, layer.rope) = if sliding { (Some(window), 1) } else { (None, 0) };
    }
    Ok(())
}
