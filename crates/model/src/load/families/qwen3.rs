//! Qwen3: Llama with normalised queries and keys, and a head size of its own.

use super::rules::windows_by_layer;
use super::{Family, LLAMA_NAMES};
use crate::load::config::{Defaults, ModelConfig};
use crate::load::error::LoadError;
use crate::load::fields::Fields;

pub(super) const FAMILY: Family =
    Family { architecture: "Qwen3ForCausalLM", model_type: "qwen3", config, names: LLAMA_NAMES };

/// `transformers.Qwen3Config`.
const DEFAULTS: Defaults =
    Defaults { num_key_value_heads: Some(32), head_dim: Some(128), max_position_embeddings: 32_768, ..Defaults::LLAMA };

fn config(f: &Fields) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::shared(FAMILY.architecture, f, &DEFAULTS)?;
    let attention_bias = f.boolean("attention_bias")?.unwrap_or(false);
    (config.qkv_bias, config.o_bias) = (attention_bias, attention_bias);
    config.qk_norm = true;
    windows_by_layer(&mut config, f, |layer, max_window_layers| layer >= max_window_layers)?;
    Ok(config)
}
