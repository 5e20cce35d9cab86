//! The supported model families: each maps its `config.json` to a [`ModelConfig`] and names its weights.

mod gemma3;
mod gpt_oss;
mod llama;
mod mistral;
mod mixtral;
mod names;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod rules;

pub(crate) use names::{LLAMA_NAMES, Names, Projection};

use crate::load::config::ModelConfig;
use crate::load::error::LoadError;
use crate::load::fields::Fields;

/// A family: how to read its configuration and what its weights are called.
#[derive(Debug)]
pub(crate) struct Family {
    /// The entry in `architectures`.
    pub(crate) architecture: &'static str,
    /// `model_type`, which chooses the family in checkpoints without `architectures`.
    pub(crate) model_type: &'static str,
    /// Maps the fields of `config.json`.
    pub(crate) config: fn(&Fields) -> Result<ModelConfig, LoadError>,
    /// What its weights are called.
    pub(crate) names: Names,
}

impl Family {
    /// What its decoder is called without the output head.
    fn alone(&self) -> Option<String> {
        // `…Model` is then the model of which the text's is a part.
        let of_text = if self.model_type.ends_with("_text") { "Text" } else { "" };
        self.architecture.strip_suffix(WITH_HEAD).map(|name| format!("{name}{of_text}{ALONE}"))
    }

    /// Whether `model_type` is its own, or that of a model which computes the same.
    fn is_of_type(&self, model_type: &str) -> bool {
        self.model_type == model_type || SAME.contains(&(model_type, self.model_type))
    }
}

pub(crate) const FAMILIES: [Family; 9] = [
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    mixtral::FAMILY,
    qwen2_moe::FAMILY,
    qwen3_moe::FAMILY,
    gemma3::FAMILY,
    gpt_oss::FAMILY,
];

/// Values of `model_type` for what another family computes, and that family's.
const SAME: [(&str, &str); 1] = [("ministral", "mistral")];

/// What the name of an architecture with an output head ends in, and that of its decoder alone.
const WITH_HEAD: &str = "ForCausalLM";
const ALONE: &str = "Model";
/// What the name of one with a head of labels ends in.
const CLASSIFIER: &str = "ForSequenceClassification";

/// Whether an architecture's name is that of a decoder without an output head.
pub(crate) fn is_decoder_alone(architecture: &str) -> bool {
    architecture.ends_with(ALONE)
}

/// The family that `config.json` asks for.
pub(crate) fn find(f: &Fields) -> Result<&'static Family, LoadError> {
    let architectures = f.strings("architectures")?.unwrap_or_default();
    let model_type = f.string("model_type")?.unwrap_or_default();
    let named = |family: &&Family| match architectures.first() {
        Some(name) => family.architecture == name || family.alone().is_some_and(|alone| alone == *name),
        None => family.is_of_type(model_type),
    };
    if let Some(scores) = architectures.first().filter(|name| name.ends_with(CLASSIFIER)) {
        return Err(LoadError::Classifier { path: f.path().to_owned(), got: scores.clone() });
    }
    let family = FAMILIES.iter().find(named).ok_or_else(|| LoadError::Architecture {
        path: f.path().to_owned(),
        got: architectures.first().cloned().unwrap_or_else(|| match model_type {
            "" => "(neither architectures nor model_type is given)".to_owned(),
            name => name.to_owned(),
        }),
        supported: FAMILIES.iter().map(|family| family.architecture).collect::<Vec<_>>().join(", "),
    })?;
    // Transformers goes by `model_type`, whose fields may ask for more than the architecture computes.
    if !model_type.is_empty() && !family.is_of_type(model_type) {
        let architecture = architectures.first().map_or(family.architecture, String::as_str);
        let expected =
            format!("{}, as architectures names {architecture}: one of the two is another model's", family.model_type);
        return Err(f.error("model_type", &expected));
    }
    Ok(family)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::config::MlpConfig;
    use crate::load::rope::{RopeConfig, RopeScaling};
    use serde_json::{Value, json};
    use std::path::Path;
    use vllm_apple_ops::Activation;

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

    #[test]
    fn classifiers_are_refused_with_what_works() {
        for name in
            ["Qwen3ForSequenceClassification", "LlamaForSequenceClassification", "BertForSequenceClassification"]
        {
            let text = json!({"architectures": [name]}).to_string();
            let error = find(&Fields::parse(Path::new("config.json"), text.as_bytes()).unwrap()).err().unwrap();
            let LoadError::Classifier { got, .. } = &error else { panic!("{error}") };
            assert!(got == name && error.to_string().contains("config.json: the architecture"), "{error}");
        }
    }

    #[test]
    fn decoders_without_a_head_are_named_as_in_transformers() {
        let found = |name: &str| {
            let text = json!({"architectures": [name]}).to_string();
            find(&Fields::parse(Path::new("config.json"), text.as_bytes()).unwrap()).map(|family| family.model_type)
        };
        for family in FAMILIES {
            let alone = if family.model_type == "gemma3_text" { "TextModel" } else { "Model" };
            let name = family.architecture.replace("ForCausalLM", alone);
            assert!(is_decoder_alone(&name) && found(&name).unwrap() == family.model_type, "{name}");
        }
        // The model of texts and images.
        let error = found("Gemma3Model").unwrap_err().to_string();
        assert!(error.contains("the architecture Gemma3Model is not supported"), "{error}");
    }

    #[test]
    fn both_names_of_a_model_must_be_of_the_same_family() {
        let found = |architecture: &str, model_type: &str| {
            let text = json!({"architectures": [architecture], "model_type": model_type}).to_string();
            find(&Fields::parse(Path::new("config.json"), text.as_bytes()).unwrap()).map(|family| family.model_type)
        };
        for family in FAMILIES {
            assert_eq!(found(family.architecture, family.model_type).unwrap(), family.model_type);
        }
        for model_type in ["ministral", ""] {
            assert_eq!(found("MistralForCausalLM", model_type).unwrap(), "mistral");
        }
        for (architecture, model_type) in
            [("LlamaForCausalLM", "granite"), ("LlamaModel", "mistral"), ("Gemma3TextModel", "gemma3")]
        {
            let error = found(architecture, model_type).unwrap_err().to_string();
            for word in ["config.json: model_type must be", "architectures", architecture, model_type] {
                assert!(error.contains(word), "{error}");
            }
        }
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
            ("gemma3_text", 4, 256, 131_072, 1e-6, 1_000_000.0, Some(4096)),
            ("gpt_oss", 8, 64, 131_072, 1e-5, 150_000.0, Some(128)),
        ];
        for (model_type, kv_heads, head_dim, positions, eps, theta, window) in expected {
            let c = config(model_type, json!({}));
            assert_eq!((c.num_key_value_heads, c.head_dim), (kv_heads, head_dim), "{model_type}");
            assert_eq!((c.max_position_embeddings, c.rms_norm_eps), (positions, eps), "{model_type}");
            let (is_gemma, is_gpt_oss) = (model_type.starts_with("gemma3"), model_type == "gpt_oss");
            let of_odd_layers = window.filter(|_| !is_gpt_oss);
            assert_eq!(windows(&c), [window, of_odd_layers, window, of_odd_layers], "{model_type}");
            assert_eq!((c.ropes[0].theta, c.sinks), (theta, is_gpt_oss), "{model_type}");
            assert_eq!(c.qkv_bias, model_type.starts_with("qwen2") || is_gpt_oss, "{model_type}");
            assert_eq!(c.qk_norm, model_type.starts_with("qwen3") || is_gemma, "{model_type}");
            assert_eq!((c.tie_word_embeddings, c.out_norms), (is_gemma, is_gemma), "{model_type}");
            assert_eq!(c.activation == Activation::GeluTanh, is_gemma, "{model_type}");
        }
    }

    #[test]
    fn both_spellings_mean_the_same() {
        let old = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}, "torch_dtype": "float16"});
        let new = json!({
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2}, "dtype": "float16",
        });
        assert_eq!(config("llama", old), config("llama", new.clone()));
        assert_eq!(config("llama", json!({"hidden_act": "swish"})), config("llama", json!({"hidden_act": "silu"})));
        let with_empty = |model_type: &str, mut fields: Value| {
            let without = config(model_type, fields.clone());
            fields["rope_scaling"] = json!({});
            assert_eq!(config(model_type, fields), without, "{model_type}");
        };
        with_empty("llama", new);
        with_empty("gemma3_text", json!({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8}}}));
        with_empty("gpt_oss", json!({}));
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
        for family in ["llama", "mistral"] {
            let some = json!({"sliding_window": 20, "layer_types": [full, sliding, full, sliding]});
            assert_eq!(windows(&config(family, some)), [None, Some(20), None, Some(20)], "{family}");
        }
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
        let local = json!({
            "sliding_window": 20, "layer_types": [full, sliding, sliding, full], "num_kv_shared_layers": 2,
        });
        assert_eq!(targets(&config("gemma3_text", local)), [None, None, Some(1), Some(0)]);
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

    #[test]
    fn gemmas_layers_are_five_sliding_ones_to_a_full_one() {
        let layers = |more: Value| {
            let c = config("gemma3_text", more);
            c.layers.iter().map(|layer| (layer.window, layer.rope)).collect::<Vec<_>>()
        };
        let (sliding, full) = ((Some(20), 1), (None, 0));
        let six = json!({"num_hidden_layers": 7, "sliding_window": 20});
        assert_eq!(layers(six), [sliding, sliding, sliding, sliding, sliding, full, sliding]);
        let two = json!({"sliding_window_pattern": 2, "sliding_window": 20});
        assert_eq!(layers(two), [sliding, full, sliding, full]);
        let types = ["full_attention", "full_attention", "sliding_attention", "full_attention"];
        let named = json!({"sliding_window_pattern": 2, "sliding_window": 20, "layer_types": types});
        assert_eq!(layers(named), [full, full, sliding, full]);
    }

    #[test]
    fn gemmas_ropes_are_one_per_kind_of_layer_in_both_spellings() {
        let ropes = |more: Value| config("gemma3_text", more).ropes;
        let rope = |theta, scaling| RopeConfig { theta, scaling };
        let plain = [rope(1e6, RopeScaling::Default), rope(1e4, RopeScaling::Default)];
        assert_eq!(ropes(json!({})), plain);
        assert_eq!(ropes(json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}})), plain);
        let scaled = [rope(5e5, RopeScaling::Linear { factor: 8.0 }), rope(200.0, RopeScaling::Default)];
        let old = json!({
            "rope_theta": 5e5, "rope_local_base_freq": 200, "rope_scaling": {"rope_type": "linear", "factor": 8},
        });
        let new = json!({"rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 200},
        }});
        assert_eq!(ropes(old.clone()), scaled);
        assert_eq!(ropes(new.clone()), scaled);
        // As transformers 5 may save it, with the bases of both again; others would be another model's.
        let again = |local: f64| {
            let mut again = new.clone();
            again["rope_parameters"]["rope_type"] = json!("default");
            again["rope_parameters"]["rope_theta"] = json!({"global": 5e5, "local": local});
            again
        };
        assert_eq!(ropes(again(200.0)), scaled);
        let mut other = json!({"model_type": "gemma3_text"});
        other.as_object_mut().unwrap().extend(again(1e4).as_object().unwrap().clone());
        let fields = Fields::parse(Path::new("config.json"), other.to_string().as_bytes()).unwrap();
        let read = RopeConfig::read(&fields, 256, 1024, (1e6, Some(1e4)));
        assert!(read.unwrap_err().to_string().contains("rope_parameters.rope_theta"));
        // Its length is that after scaling.
        assert_eq!(config("gemma3_text", old).derived_max_model_len(), 131_072);
    }

    #[test]
    fn gpt_oss_is_what_transformers_makes_of_its_fields() {
        let c = config("gpt_oss", json!({"num_local_experts": 32}));
        assert_eq!((c.derived_max_model_len(), c.o_bias, c.activation), (131_072, true, Activation::ClampedSwiglu));
        let MlpConfig::Moe(moe) = &c.layers[1].mlp else { panic!("all layers are sparse") };
        assert_eq!((moe.num_experts, moe.top_k, moe.intermediate_size), (32, 4, 96));
        assert_eq!((moe.renormalize, moe.bias), (true, true));
        // What OpenAI's own checkpoints say is what it is without.
        let said = json!({
            "num_local_experts": 32, "rope_theta": 150000, "swiglu_limit": 7.0, "attention_bias": true, "head_dim": 64,
            "rope_scaling": {
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                "rope_type": "yarn", "truncate": false,
            },
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        });
        assert_eq!(config("gpt_oss", said), c);
        let refused = |more: Value| {
            let mut value = json!({
                "model_type": "gpt_oss", "vocab_size": 9, "hidden_size": 64, "intermediate_size": 32,
                "num_hidden_layers": 2, "num_attention_heads": 8,
            });
            value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let fields = Fields::parse(Path::new("config.json"), value.to_string().as_bytes()).unwrap();
            (find(&fields).unwrap().config)(&fields).unwrap_err().to_string()
        };
        assert!(refused(json!({"swiglu_limit": 10.0})).contains("swiglu_limit"));
        assert!(refused(json!({"swiglu_alpha": 1.0})).contains("1.702"));
        assert!(refused(json!({"hidden_act": "gelu_pytorch_tanh"})).contains("silu"));
    }

    #[test]
    fn gemmas_factors_are_those_of_transformers() {
        let c = config("gemma3_text", json!({"hidden_size": 1152, "query_pre_attn_scalar": 168}));
        assert_eq!((c.embedding_scale, c.attention_scale), (33.941_124, 0.077_151_68));
        assert_eq!((c.norm_offset, c.logits_scale), (1.0, 1.0));
    }
}
