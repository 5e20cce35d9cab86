//! `config.json` as a GGUF file's metadata say it. It knows no tensors but by name and shape.

use serde_json::{Map, Value, json};

use super::container::{Container, Tensor};
use super::types::Type;

/// GGUF's architectures, and the `model_type` of each.
const ARCHITECTURES: [(&str, &str); 7] = [
    ("llama", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen2moe", "qwen2_moe"),
    ("qwen3moe", "qwen3_moe"),
    ("gemma3", "gemma3_text"),
    ("gpt-oss", "gpt_oss"),
];

/// Fields of the same meaning: without the architecture, and in config.json.
const SAME: [(&str, &str); 13] = [
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("block_count", "num_hidden_layers"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("context_length", "max_position_embeddings"),
    ("rope.freq_base", "rope_theta"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("attention.sliding_window", "sliding_window"),
];

/// Fields that would change what is computed, and which nobody reads here.
const REFUSED: [&str; 5] =
    ["attention.logit_softcapping", "final_logit_softcapping", "attention.scale", "logit_scale", "residual_scale"];

/// Layers of Gemma 3's largest model, whose queries are scaled by another rule.
const GEMMA_27B_LAYERS: u64 = 62;

/// The file's configuration.
///
/// # Errors
/// A field that is missing or cannot be used, by its name in the file.
pub(super) fn config(parts: &[(Container, memmap2::Mmap)]) -> Result<Value, String> {
    let metadata = &parts[0].0.metadata;
    let architecture = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or("(absent)");
    let Some((_, model_type)) = ARCHITECTURES.iter().find(|(name, _)| *name == architecture) else {
        let known = ARCHITECTURES.map(|(name, _)| name).join(", ");
        let architecture: String = architecture.chars().take(40).collect();
        return Err(format!("general.architecture is {architecture:?}, which is not supported; supported are {known}"));
    };
    let field = |name: &str| metadata.get(&format!("{architecture}.{name}")).filter(|value| !value.is_null());
    if let Some(name) = REFUSED.iter().find(|name| field(name).is_some()) {
        return Err(format!("it has the field {architecture}.{name}, which is not supported"));
    }
    let found = |name: &str| -> Option<(&Tensor, &[u8])> {
        parts.iter().find_map(|(container, file)| {
            let tensor = container.tensors.iter().find(|tensor| tensor.name == name)?;
            Some((tensor, &file[tensor.bytes.clone()]))
        })
    };
    let tensor = |name: &str| found(name).map(|(tensor, _)| tensor);
    let embedding = tensor("token_embd.weight").ok_or("it has no tensor token_embd.weight")?;
    let mut config = Map::new();
    for (from, to) in SAME {
        if let Some(value) = field(from) {
            if value.is_array() {
                return Err(format!("{architecture}.{from} is a list: layers that differ in it are not supported"));
            }
            config.insert(to.to_owned(), value.clone());
        }
    }
    let mut set = |name: &str, value: Value| config.insert(name.to_owned(), value);
    set("model_type", (*model_type).into());
    set("vocab_size", embedding.shape[0].into());
    set("tie_word_embeddings", tensor("output.weight").is_none().into());
    set("quantization_config", json!({"quant_method": "gguf"}));
    if embedding.kind.float().is_none() {
        set("dtype", "bfloat16".into());
    }
    for (name, to) in [("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id")] {
        if let Some(id) = metadata.get(&format!("tokenizer.ggml.{name}")) {
            set(to, id.clone());
        }
    }
    if let Some(ids) = end_tokens(metadata, architecture) {
        set("eos_token_id", ids);
    }
    if let Some(experts) = field("expert_count").filter(|count| *count != &json!(0)) {
        set("num_local_experts", experts.clone());
        set("num_experts", experts.clone());
        if architecture == "llama" {
            set("model_type", "mixtral".into());
            set("sliding_window", Value::Null);
        }
    }
    let rope_factors = found("rope_freqs.weight");
    if let Some(scaling) = rope_scaling(&field) {
        set("rope_scaling", scaling?);
    } else if let Some((factors, bytes)) = rope_factors {
        if factors.kind != Type::F32 {
            return Err(format!("the tensor rope_freqs.weight is of {}, expected F32", factors.kind));
        }
        let factors: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        set("rope_scaling", json!({"rope_type": "factors", "factors": factors}));
    }
    match architecture {
        "llama" => {
            set("attention_bias", tensor("blk.0.attn_q.bias").is_some().into());
        }
        // It is the rule of the model, and not said in files.
        "qwen3moe" => {
            set("norm_topk_prob", true.into());
        }
        "gpt-oss" => {
            if let Some(width) = field("expert_feed_forward_length") {
                set("intermediate_size", width.clone());
            }
            // It is the rule of the model, too.
            if let Some(rope) = config.get_mut("rope_scaling").and_then(Value::as_object_mut) {
                rope.insert("truncate".to_owned(), false.into());
            }
        }
        "gemma3" => {
            let number = |name: &str| field(name).and_then(Value::as_u64);
            let scalar = match (number("block_count"), number("embedding_length"), number("attention.head_count")) {
                (Some(GEMMA_27B_LAYERS), Some(hidden), Some(heads)) if heads > 0 => hidden / heads,
                _ => number("attention.key_length").unwrap_or(256),
            };
            set("query_pre_attn_scalar", scalar.into());
        }
        _ => {}
    }
    Ok(Value::Object(config))
}

/// What a file of this architecture calls a field of its configuration, if that is one of the file's.
pub(super) fn name_in_file(architecture: &str, field: &str) -> Option<String> {
    let name = match field {
        "bos_token_id" | "eos_token_id" => return Some(format!("tokenizer.ggml.{field}")),
        "num_experts" | "num_local_experts" => "expert_count",
        "intermediate_size" if architecture == "gpt-oss" => "expert_feed_forward_length",
        "rope_scaling.factor" => "rope.scaling.factor",
        "rope_scaling.original_max_position_embeddings" => "rope.scaling.original_context_length",
        _ => SAME.iter().find_map(|(from, to)| (*to == field).then_some(*from))?,
    };
    Some(format!("{architecture}.{name}"))
}

/// All tokens that end a reply.
fn end_tokens(metadata: &Map<String, Value>, architecture: &str) -> Option<Value> {
    let ids =
        ["eos_token_id", "eot_token_id", "eom_token_id"].map(|name| metadata.get(&format!("tokenizer.ggml.{name}")));
    let mut ids: Vec<Value> = ids.into_iter().flatten().cloned().collect();
    if architecture == "gpt-oss" {
        // It hands over to a tool with this one, which OpenAI's generation_config.json names, and files do not: llama.cpp knows it by its text.
        let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array);
        ids.extend(tokens.and_then(|tokens| tokens.iter().position(|token| token == "<|call|>")).map(Value::from));
    }
    ids.dedup();
    (!ids.is_empty()).then_some(Value::Array(ids))
}

/// `rope_scaling`, if there is one.
fn rope_scaling<'a>(field: &impl Fn(&str) -> Option<&'a Value>) -> Option<Result<Value, String>> {
    let kind = field("rope.scaling.type").and_then(Value::as_str);
    // The field of files before there were types.
    let factor = field("rope.scaling.factor").or_else(|| field("rope.scale_linear"));
    match (kind, factor) {
        (Some("none"), _) | (None, None) => None,
        (Some("linear") | None, Some(factor)) => {
            (factor.as_f64() != Some(1.0)).then(|| Ok(json!({"rope_type": "linear", "factor": factor})))
        }
        (Some("yarn"), Some(factor)) => {
            let original = field("rope.scaling.original_context_length");
            Some(Ok(json!({
                "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
            })))
        }
        (kind, _) => Some(Err(format!(
            "rope.scaling.type is {}, which is not supported without more; supported are none, linear and yarn with a factor",
            kind.map_or_else(|| "(absent)".to_owned(), |kind| kind.chars().take(40).collect())
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_their_names_in_the_file() {
        let name = |field| name_in_file("llama", field);
        assert_eq!(name("num_key_value_heads").unwrap(), "llama.attention.head_count_kv");
        assert_eq!(name("rope_scaling.factor").unwrap(), "llama.rope.scaling.factor");
        assert_eq!(name("eos_token_id").unwrap(), "tokenizer.ggml.eos_token_id");
        assert_eq!(name("hidden_act"), None);
        assert_eq!(name_in_file("gpt-oss", "intermediate_size").unwrap(), "gpt-oss.expert_feed_forward_length");
    }

    #[test]
    fn a_call_ends_a_reply_of_gpt_oss() {
        let metadata =
            json!({"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.tokens": ["a", "<|call|>", "<|return|>"]});
        let ids = |architecture| end_tokens(metadata.as_object().unwrap(), architecture);
        assert_eq!(ids("gpt-oss"), Some(json!([2, 1])));
        assert_eq!(ids("llama"), Some(json!([2])));
    }
}
