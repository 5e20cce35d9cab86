//! Qwen2 and Qwen2.5: Llama with biases on q, k and v, and a window on the upper layers if `use_sliding_window`.

use super::rules::windows_by_layer;
use super::{Family, LLAMA_NAMES};
use crate::load::config::{Defaults, ModelConfig};
use crate::load::error::LoadError;
use crate::load::fields::Fields;

pub(super) const FAMILY: Family =
    Family { architecture: "Qwen2ForCausalLM", model_type: "qwen2", config, names: LLAMA_NAMES };

/// `transformers.Qwen2Config`.
const DEFAULTS: Defaults =
    Defaults { num_key_value_heads: Some(32), head_dim: None, max_position_embeddings: 32_768, ..Defaults::LLAMA };

fn config(f: &Fields) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::shared(FAMILY.architecture, f, &DEFAULTS)?;
    config.qkv_bias = true;
    windows_by_layer(&mut config, f, |layer, max_window_layers| layer >= max_window_layers)?;
    Ok(config)
}
