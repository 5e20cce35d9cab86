//! Llama: the plain decoder. Optional biases; every kind of RoPE scaling.

use super::rules::window_of_layers;
use super::{Family, LLAMA_NAMES};
use crate::load::config::{Defaults, MlpConfig, ModelConfig};
use crate::load::error::LoadError;
use crate::load::fields::Fields;

pub(super) const FAMILY: Family =
    Family { architecture: "LlamaForCausalLM", model_type: "llama", config, names: LLAMA_NAMES };

fn config(f: &Fields) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::shared(FAMILY.architecture, f, &Defaults::LLAMA)?;
    let attention_bias = f.boolean("attention_bias")?.unwrap_or(false);
    (config.qkv_bias, config.o_bias) = (attention_bias, attention_bias);
    // Only some derivatives have layers with a window.
    if f.has("layer_types") {
        window_of_layers(&mut config, f, f.size("sliding_window")?)?;
    }
    let mlp_bias = f.boolean("mlp_bias")?.unwrap_or(false);
    for layer in &mut config.layers {
        if let MlpConfig::Dense { bias, .. } = &mut layer.mlp {
            *bias = mlp_bias;
        }
    }
    Ok(config)
}
