//! Mistral: Llama with a sliding window, and a head size that may differ from `hidden_size / num_attention_heads` (Devstral).

use super::rules::window_of_layers;
use super::{Family, LLAMA_NAMES};
use crate::load::config::{Defaults, ModelConfig};
use crate::load::error::LoadError;
use crate::load::fields::Fields;

pub(super) const FAMILY: Family =
    Family { architecture: "MistralForCausalLM", model_type: "mistral", config, names: LLAMA_NAMES };

/// `transformers.MistralConfig`.
const DEFAULTS: Defaults = Defaults {
    num_key_value_heads: Some(8),
    head_dim: None,
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-6,
    rope_theta: 10_000.0,
    ..Defaults::LLAMA
};

fn config(f: &Fields) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::shared(FAMILY.architecture, f, &DEFAULTS)?;
    // An absent field means the class's default of 4096, `null` means no window.
    let window = match f.has_null("sliding_window") {
        true => None,
        false => Some(f.size("sliding_window")?.unwrap_or(4096)),
    };
    window_of_layers(&mut config, f, window)?;
    Ok(config)
}
