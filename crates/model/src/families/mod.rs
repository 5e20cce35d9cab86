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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MlpConfig;
    use serde_json::{Value, json};
    use std::path::Path;

    /// The configuration of `model_type` with small sizes and `more`.
    fn config(model_type: &str, more: Value) -> ModelConfig {
        let mut value = json!({
            "model_type": model_type, "vocab_size": 100, "hidden_size": 256, "intermediate_size": 96,
            "num_hidden_layers": 4, "num_attention_heads": 32,
        });
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let fields = Fields::parse(Path::new("config.json"), value.to_string().as_bytes()).unwrap();
        let mut config = (find(&fields).unwrap().config)(&fields).unwrap();
        config.share_kv(&fields).unwrap();
        config
    }

    fn windows(config: &ModelConfig) -> Vec<Option<usize>> {
        config.layers.iter().map(|layer| layer.window).collect()
    }

    /// What transformers 5.23's config classes set when a field is absent.
    #[test]
    fn defaults_are_those_of_transformers() {
        let expected = [
            ("llama", 32, 8, 2048, 1e-6, 10_000.0, None),
            ("mistral", 8, 8, 131_072, 1e-6, 10_000.0, Some(4096)),
            ("qwen2", 32, 8, 32_768, 1e-6, 10_000.0, None),
            ("qwen3", 32, 128, 32_768, 1e-6, 10_000.0, None),
            ("mixtral", 8, 8, 131_072, 1e-5, 1_000_000.0, None),
            ("qwen2_moe", 16, 8, 32_768, 1e-6, 10_000.0, None),
            ("qwen3_moe", 4, 8, 32_768, 1e-6, 10_000.0, None),
        ];
        for (model_type, kv_heads, head_dim, positions, eps, theta, window) in expected {
            let c = config(model_type, json!({}));
            assert_eq!((c.num_key_value_heads, c.head_dim), (kv_heads, head_dim), "{model_type}");
            assert_eq!((c.max_position_embeddings, c.rms_norm_eps), (positions, eps), "{model_type}");
            assert_eq!((c.rope.theta, windows(&c)), (theta, vec![window; 4]), "{model_type}");
            assert_eq!(c.qkv_bias, model_type.starts_with("qwen2"), "{model_type}");
            assert_eq!(c.qk_norm, model_type.starts_with("qwen3"), "{model_type}");
            assert!(!c.tie_word_embeddings);
        }
    }

    #[test]
    fn both_spellings_mean_the_same() {
        let old = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}, "torch_dtype": "float16"});
        let new = json!({
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2}, "dtype": "float16",
        });
        assert_eq!(config("llama", old), config("llama", new));
    }

    #[test]
    fn windows_follow_the_families_rules() {
        let on = json!({"use_sliding_window": true, "sliding_window": 20, "max_window_layers": 3});
        assert_eq!(windows(&config("qwen2", on.clone())), [None, None, None, Some(20)]);
        assert_eq!(windows(&config("qwen3", on.clone())), [None, None, None, Some(20)]);
        assert_eq!(windows(&config("qwen2_moe", on.clone())), [Some(20), None, Some(20), None]);
        assert_eq!(windows(&config("qwen3_moe", on)), [Some(20); 4]);
        let off = json!({"use_sliding_window": false, "sliding_window": 20, "max_window_layers": 0});
        assert_eq!(windows(&config("qwen2", off)), [None; 4]);
        let (full, sliding) = ("full_attention", "sliding_attention");
        let named = json!({
            "use_sliding_window": true, "sliding_window": 20, "layer_types": [sliding, full, full, sliding],
        });
        assert_eq!(windows(&config("qwen3", named)), [Some(20), None, None, Some(20)]);
        assert_eq!(windows(&config("mistral", json!({"sliding_window": null}))), [None; 4]);
    }

    #[test]
    fn the_last_layers_share_the_cache_of_the_nearest_layer_of_their_kind() {
        let targets = |c: &ModelConfig| c.layers.iter().map(|layer| layer.kv_sharing_target).collect::<Vec<_>>();
        let uniform = config("llama", json!({"num_kv_shared_layers": 2}));
        assert_eq!(targets(&uniform), [None, None, Some(1), Some(1)]);
        assert_eq!(uniform.num_kv_caches(), 2);
        let (full, sliding) = ("full_attention", "sliding_attention");
        let mixed = json!({
            "use_sliding_window": true, "sliding_window": 20, "layer_types": [sliding, full, full, sliding],
            "num_kv_shared_layers": 2,
        });
        assert_eq!(targets(&config("qwen3", mixed)), [None, None, Some(1), Some(0)]);
        let refused = |shared: u64, layer_types: [&str; 2]| {
            let value = json!({
                "model_type": "qwen3", "vocab_size": 100, "hidden_size": 256, "intermediate_size": 96,
                "num_hidden_layers": 2, "num_attention_heads": 32, "use_sliding_window": true, "sliding_window": 20,
                "layer_types": layer_types, "num_kv_shared_layers": shared,
            });
            let fields = Fields::parse(Path::new("config.json"), value.to_string().as_bytes()).unwrap();
            let mut config = (find(&fields).unwrap().config)(&fields).unwrap();
            config.share_kv(&fields).unwrap_err().to_string()
        };
        assert!(refused(2, [full, full]).contains("below num_hidden_layers (2)"));
        assert!(refused(1, [full, sliding]).contains("num_kv_shared_layers"));
    }

    #[test]
    fn sparse_layers_follow_step_and_list() {
        let more = json!({"decoder_sparse_step": 2, "mlp_only_layers": [1], "num_local_experts": 16});
        let c = config("qwen3_moe", more);
        let sparse: Vec<bool> = c.layers.iter().map(|layer| matches!(layer.mlp, MlpConfig::Moe(_))).collect();
        assert_eq!(sparse, [false, false, false, true]);
        let MlpConfig::Moe(moe) = &c.layers[3].mlp else { panic!("layer 3 is sparse") };
        assert_eq!((moe.num_experts, moe.top_k, moe.intermediate_size, moe.renormalize), (16, 8, 768, false));
    }
}
