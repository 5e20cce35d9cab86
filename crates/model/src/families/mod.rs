//! The supported model families: each maps its `config.json` to a [`ModelConfig`] and names its weights.

mod llama;
mod mistral;
mod mixtral;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;

use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::fields::Fields;

/// A family: how to read its configuration and what its weights are called.
#[derive(Debug)]
pub(crate) struct Family {
    /// The entry in `architectures`.
    pub(crate) architecture: &'static str,
    /// `model_type`, for checkpoints without `architectures`.
    pub(crate) model_type: &'static str,
    /// Maps the fields of `config.json`.
    pub(crate) config: fn(&Fields) -> Result<ModelConfig, LoadError>,
    /// Names of the weights within a layer.
    pub(crate) names: LayerNames,
}

/// Names within `model.layers.<i>.` that differ between families. All else is called as in Llama.
#[derive(Debug)]
pub(crate) struct LayerNames {
    /// The router of a mixture of experts.
    pub(crate) router: &'static str,
    /// The list of experts.
    pub(crate) experts: &'static str,
    /// Gate, up and down projection of an expert.
    pub(crate) expert_projections: [&'static str; 3],
}

/// Llama's names, and Qwen's for mixtures of experts.
pub(crate) const QWEN_NAMES: LayerNames = LayerNames {
    router: "mlp.gate",
    experts: "mlp.experts",
    expert_projections: ["gate_proj", "up_proj", "down_proj"],
};

const FAMILIES: [Family; 7] = [
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    mixtral::FAMILY,
    qwen2_moe::FAMILY,
    qwen3_moe::FAMILY,
];

/// The family that `config.json` asks for.
pub(crate) fn find(f: &Fields) -> Result<&'static Family, LoadError> {
    let architectures = f.strings("architectures")?.unwrap_or_default();
    let model_type = f.string("model_type")?.unwrap_or_default();
    let named = |family: &&Family| match architectures.first() {
        Some(name) => family.architecture == name,
        None => family.model_type == model_type,
    };
    FAMILIES.iter().find(named).ok_or_else(|| LoadError::Architecture {
        path: f.path().to_owned(),
        got: architectures.first().cloned().unwrap_or_else(|| match model_type {
            "" => "(neither architectures nor model_type is given)".to_owned(),
            name => name.to_owned(),
        }),
        supported: FAMILIES.iter().map(|family| family.architecture).collect::<Vec<_>>().join(", "),
    })
}
