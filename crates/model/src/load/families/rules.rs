//! What several families say in the same fields: windows of layers, and which layers are mixtures of experts. It knows no family.

use crate::load::config::{MlpConfig, ModelConfig, MoeConfig};
use crate::load::error::LoadError;
use crate::load::fields::Fields;

const MAX_EXPERTS: usize = 4096;

/// The window of every layer (Mixtral, Qwen3-MoE).
pub(super) fn uniform_window(config: &mut ModelConfig, window: Option<usize>) {
    config.layers.iter_mut().for_each(|layer| layer.window = window);
}

/// The same, but of the layers that `layer_types` names if that field is there, as in vLLM (Llama, Mistral).
pub(super) fn window_of_layers(config: &mut ModelConfig, f: &Fields, window: Option<usize>) -> Result<(), LoadError> {
    let Some(named) = sliding_layers(config, f)? else {
        uniform_window(config, window);
        return Ok(());
    };
    if window.is_none() && named.contains(&true) {
        return Err(f.error("sliding_window", "a size: layer_types has sliding layers"));
    }
    for (layer, sliding) in config.layers.iter_mut().zip(named) {
        layer.window = window.filter(|_| sliding);
    }
    Ok(())
}

/// The window that `use_sliding_window` switches on (Qwen).
pub(super) fn optional_window(f: &Fields) -> Result<Option<usize>, LoadError> {
    match f.boolean("use_sliding_window")?.unwrap_or(false) {
        true if !f.has_null("sliding_window") => f.size("sliding_window").map(|size| Some(size.unwrap_or(4096))),
        _ => Ok(None),
    }
}

/// The window of the layers that `layer_types` names or, without that field, of those that `is_sliding` picks (Qwen2, Qwen3).
pub(super) fn windows_by_layer(
    config: &mut ModelConfig,
    f: &Fields,
    is_sliding: impl Fn(usize, usize) -> bool,
) -> Result<(), LoadError> {
    let window = optional_window(f)?;
    let named = sliding_layers(config, f)?;
    let max_window_layers = f.integer("max_window_layers")?.unwrap_or(28) as usize;
    for (i, layer) in config.layers.iter_mut().enumerate() {
        let sliding = named.as_ref().map_or_else(|| is_sliding(i, max_window_layers), |named| named[i]);
        layer.window = window.filter(|_| sliding);
    }
    Ok(())
}

/// Whether each layer's attention is sliding, if `layer_types` says it.
pub(super) fn sliding_layers(config: &ModelConfig, f: &Fields) -> Result<Option<Vec<bool>>, LoadError> {
    const FIELD: &str = "layer_types";
    let Some(types) = f.strings(FIELD)? else { return Ok(None) };
    if types.len() != config.layers.len() {
        return Err(f.error(FIELD, &format!("a list of {} layer types", config.layers.len())));
    }
    let is_sliding = |name: &String| match name.as_str() {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        _ => Err(f.error(FIELD, "made of full_attention and sliding_attention")),
    };
    types.iter().map(is_sliding).collect::<Result<_, _>>().map(Some)
}

/// Replaces the dense MLPs by the mixture, but for `mlp_only_layers` and what `decoder_sparse_step` skips (Qwen-MoE).
pub(super) fn sparse_layers(config: &mut ModelConfig, f: &Fields, moe: &MoeConfig) -> Result<(), LoadError> {
    let step = f.size("decoder_sparse_step")?.unwrap_or(1);
    let dense = f.integers("mlp_only_layers")?.unwrap_or_default();
    for (i, layer) in config.layers.iter_mut().enumerate() {
        if !dense.contains(&(i as u64)) && (i + 1).is_multiple_of(step) {
            layer.mlp = MlpConfig::Moe(moe.clone());
        }
    }
    Ok(())
}

/// The number of experts, and how many of them a token uses, by the fields' names and defaults.
pub(super) fn experts(f: &Fields, names: &[&str], count: usize, top_k: usize) -> Result<(usize, usize), LoadError> {
    let name = f.first_of(names);
    let num_experts = f.size(name)?.unwrap_or(count);
    if num_experts > MAX_EXPERTS {
        return Err(f.error(name, &format!("at most {MAX_EXPERTS}")));
    }
    let top_k = f.size("num_experts_per_tok")?.unwrap_or(top_k);
    match top_k <= num_experts {
        true => Ok((num_experts, top_k)),
        false => Err(f.error("num_experts_per_tok", &format!("at most {name} ({num_experts})"))),
    }
}
