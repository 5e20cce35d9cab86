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

/// Fields that would change what is computed, and which nobody reads here, but for numbers that change nothing.
const NEUTRAL: [(&str, &[f64]); 9] = [
    ("attention.scale", &[]),
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("rope.scaling.attn_factor", &[1.0]),
    ("rope.scaling.yarn_attn_factor", &[1.0]),
    // The second lets the kind of scaling decide.
    ("rope.scaling.yarn_ext_factor", &[1.0, -1.0]),
    // None, and the last token's, as embeddings are taken here.
    ("pooling_type", &[0.0, 3.0]),
];

/// Texts of tokens that end a reply, whatever the metadata call the end: files name one of several, and llama.cpp
/// (`llama_vocab::impl::load`) finds the others by these. Not `</s>` and `<eos>`, which some vocabularies have as ordinary texts.
const ENDS: [&str; 26] = [
    "<|eot_id|>",
    "<|im_end|>",
    END_OF_MESSAGE,
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    // Of code between other code: filling, and where another file or repository begins.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Fields that name such tokens, the second ones between pieces of code: llama.cpp heeds those that there are.
const END_IDS: [&str; 3] = ["eos_token_id", "eot_token_id", "eom_token_id"];
const CODE_END_IDS: [&str; 3] = ["fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id"];

/// Ends a reply, but for gpt-oss, where it ends one message of a reply.
const END_OF_MESSAGE: &str = "<|end|>";

/// Whether a token ends a reply by its text.
pub(super) fn is_end(text: &str) -> bool {
    ENDS.contains(&text)
}

/// Layers of Gemma 3's largest model, whose queries are scaled by another rule.
const GEMMA_27B_LAYERS: u64 = 62;

/// The file's configuration.
///
/// # Errors
/// A field that is missing or cannot be used, by its name in the file.
pub(super) fn config(parts: &[(Container, memmap2::Mmap)]) -> Result<Value, String> {
    let metadata = &parts[0].0.metadata;
    check_kind(metadata)?;
    check_parts(parts)?;
    let architecture = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or("(absent)");
    let Some((_, model_type)) = ARCHITECTURES.iter().find(|(name, _)| *name == architecture) else {
        let known = ARCHITECTURES.map(|(name, _)| name).join(", ");
        let architecture: String = architecture.chars().take(40).collect();
        return Err(format!("general.architecture is {architecture:?}, which is not supported; supported are {known}"));
    };
    let field = |name: &str| {
        let value = metadata.get(&format!("{architecture}.{name}")).filter(|value| !value.is_null())?;
        // Of each layer the same.
        let is_number = SAME.iter().any(|(of_file, _)| *of_file == name);
        match value.as_array().map(Vec::as_slice) {
            Some([first, others @ ..]) if is_number && others.iter().all(|other| other == first) => Some(first),
            _ => Some(value),
        }
    };
    let is_neutral = |value: &Value, neutral: &[f64]| value.as_f64().is_some_and(|value| neutral.contains(&value));
    for (name, neutral) in NEUTRAL {
        if let Some(value) = field(name).filter(|value| !is_neutral(value, neutral)) {
            return Err(format!("{architecture}.{name} is {value}, which is not supported"));
        }
    }
    if field("attention.causal").is_some_and(|value| *value == json!(false)) {
        return Err(format!("{architecture}.attention.causal is false, which is not supported"));
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
    // What llama.cpp (`llama_model_base::load_hparams`) takes where a file does not say it, which is not what transformers' configurations have.
    if field("attention.layer_norm_rms_epsilon").is_none() {
        return Err(format!("it has no {architecture}.attention.layer_norm_rms_epsilon"));
    }
    for (name, default) in
        [("rope_theta", Some(json!(10000.0))), ("num_key_value_heads", field("attention.head_count").cloned())]
    {
        if let Some(default) = default.filter(|_| !config.contains_key(name)) {
            config.insert(name.to_owned(), default);
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
    if let Some(id) = metadata.get("tokenizer.ggml.bos_token_id") {
        set("bos_token_id", id.clone());
    }
    if let Some(ids) = end_tokens(metadata, architecture) {
        set("eos_token_id", ids);
    }
    if let Some(head_dim) = head_dim(&field)
        && let Some(rotated) = field("rope.dimension_count").and_then(Value::as_u64).filter(|size| *size != head_dim)
    {
        return Err(format!(
            "{architecture}.rope.dimension_count is {rotated}, which is not supported: a head has {head_dim}, all of which are rotated"
        ));
    }
    if let Some(experts) = field("expert_count").filter(|count| *count != &json!(0)) {
        if field("expert_used_count").is_none() {
            return Err(format!("it has {architecture}.expert_count, but no {architecture}.expert_used_count"));
        }
        set("num_local_experts", experts.clone());
        set("num_experts", experts.clone());
        if architecture == "llama" {
            set("model_type", "mixtral".into());
            set("sliding_window", Value::Null);
        }
    }
    let rope_factors = found("rope_freqs.weight");
    if let Some(scaling) = rope_scaling(&field) {
        if rope_factors.is_some() {
            return Err(format!(
                "it has both {architecture}.rope.scaling.type and the tensor rope_freqs.weight, of which one is supported"
            ));
        }
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
            let has_bias = ["q", "qkv"].iter().any(|part| tensor(&format!("blk.0.attn_{part}.bias")).is_some());
            set("attention_bias", has_bias.into());
            set("mlp_bias", tensor("blk.0.ffn_up.bias").is_some().into());
        }
        // It is the rule of the model, and not said in files.
        "qwen3moe" => {
            set("norm_topk_prob", true.into());
        }
        "gpt-oss" => {
            if let Some(width) = field("expert_feed_forward_length") {
                set("intermediate_size", width.clone());
            }
            // Without a scaling there is none, whatever transformers' configuration has by default. That it is not truncated is the rule of the
            // model, too.
            let rope = config.entry("rope_scaling").or_insert_with(|| json!({"rope_type": "default"}));
            if let Some(rope) = rope.as_object_mut() {
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
            if let Some(base) = field("rope.freq_base_swa") {
                set("rope_local_base_freq", base.clone());
            }
        }
        _ => {}
    }
    if ["gemma3", "gpt-oss"].contains(&architecture)
        && let Some(types) = layer_types(&field, architecture)?
    {
        config.insert("layer_types".to_owned(), types.into());
    }
    Ok(Value::Object(config))
}

/// That the file is a model's.
fn check_kind(metadata: &Map<String, Value>) -> Result<(), String> {
    let text = |key: &str| metadata.get(key).and_then(Value::as_str);
    let advice = match (text("general.type"), text("general.architecture")) {
        (Some("adapter"), _) => "an adapter, which is not supported; give a model that it was merged into",
        (Some("mmproj"), _) | (_, Some("clip")) => {
            "what turns images into a model's inputs; give the model's own file, for text alone"
        }
        (Some("imatrix"), _) => "the importance matrix that a model was quantised with; give the model's own file",
        _ => return Ok(()),
    };
    Err(format!("it is {advice}"))
}

/// That the files are the parts of one model, in their order.
fn check_parts(parts: &[(Container, memmap2::Mmap)]) -> Result<(), String> {
    let number = |part: &Container, key: &str| part.metadata.get(key).and_then(Value::as_u64);
    let count = number(&parts[0].0, "split.count").filter(|count| *count > 1);
    if let Some(count) = count.filter(|count| *count != parts.len() as u64) {
        return Err(format!(
            "it is a part of {count} (split.count), and {} were found by its name: the parts of a model are NAME-00001-of-{count:05}.gguf and so on",
            parts.len()
        ));
    }
    for (index, (part, _)) in parts.iter().enumerate() {
        if let Some(no) = number(part, "split.no").filter(|no| count.is_some() && *no != index as u64) {
            return Err(format!("the file of its part {} is part {} of a model (split.no)", index + 1, no + 1));
        }
    }
    if parts.iter().all(|(part, _)| part.tensors.is_empty()) {
        return Err("it has a vocabulary and no tensors; convert the whole model".to_owned());
    }
    Ok(())
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
    let named = |name: &str| metadata.get(&format!("tokenizer.ggml.{name}"));
    let mut ids: Vec<Value> = END_IDS.into_iter().filter_map(named).cloned().collect();
    // Ollama's files have a list.
    ids.extend(named("eos_token_ids").and_then(Value::as_array).into_iter().flatten().cloned());
    let tokens = named("tokens").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let is_there = |id: &&Value| id.as_u64().is_some_and(|id| (id as usize) < tokens.len());
    ids.extend(CODE_END_IDS.into_iter().filter_map(named).filter(is_there).cloned());
    let ends = tokens.iter().enumerate().filter(|(_, token)| {
        token.as_str().is_some_and(|text| is_end(text) && (text != END_OF_MESSAGE || architecture != "gpt-oss"))
    });
    for (id, _) in ends {
        if !ids.contains(&json!(id)) {
            ids.push(id.into());
        }
    }
    ids.dedup();
    (!ids.is_empty()).then_some(Value::Array(ids))
}

/// Elements of a query's head.
fn head_dim<'a>(field: &impl Fn(&str) -> Option<&'a Value>) -> Option<u64> {
    let number = |name: &str| field(name).and_then(Value::as_u64);
    number("attention.key_length").or_else(|| number("embedding_length")?.checked_div(number("attention.head_count")?))
}

/// `layer_types`, where the file says which layers see a window: each of them, all but every so many, or, without a window, none.
fn layer_types<'a>(
    field: &impl Fn(&str) -> Option<&'a Value>,
    architecture: &str,
) -> Result<Option<Vec<&'static str>>, String> {
    const NAME: &str = "attention.sliding_window_pattern";
    let Some(count) = field("block_count").and_then(Value::as_u64).filter(|count| *count <= 10_000) else {
        return Ok(None);
    };
    let named = |is_sliding: bool| if is_sliding { "sliding_attention" } else { "full_attention" };
    let has_window = field("attention.sliding_window").is_some_and(|size| *size != json!(0));
    let types = match field(NAME) {
        None if has_window || architecture != "gemma3" => return Ok(None),
        _ if !has_window => (0..count).map(|_| named(false)).collect(),
        Some(Value::Array(layers)) if layers.iter().all(Value::is_boolean) => {
            layers.iter().map(|layer| named(*layer == json!(true))).collect()
        }
        Some(pattern) => {
            let Some(pattern) = pattern.as_u64() else {
                return Err(format!("{architecture}.{NAME} is neither a number nor a list of true and false"));
            };
            (0..count).map(|layer| named(pattern == 0 || layer % pattern < pattern - 1)).collect()
        }
        None => return Ok(None),
    };
    Ok(Some(types))
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
                "beta_fast": field("rope.scaling.yarn_beta_fast"), "beta_slow": field("rope.scaling.yarn_beta_slow"),
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
    fn ends_of_replies_are_found_by_their_texts() {
        let tokens = ["<eos>", "<|call|>", "<|return|>", "<|end|>", "a", "<end_of_turn>", "</s>"];
        let metadata = json!({"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.tokens": tokens});
        let ids = |architecture| end_tokens(metadata.as_object().unwrap(), architecture);
        // A message that ends is not the end there.
        assert_eq!(ids("gpt-oss"), Some(json!([2, 1, 5])));
        assert_eq!(ids("llama"), Some(json!([2, 1, 3, 5])));
        let many = json!({"tokenizer.ggml.eos_token_id": 4, "tokenizer.ggml.eos_token_ids": [4, 7]});
        assert_eq!(end_tokens(many.as_object().unwrap(), "gemma3"), Some(json!([4, 7])));
        let code = json!({"tokenizer.ggml.fim_sep_token_id": 2, "tokenizer.ggml.fim_rep_token_id": 3, "tokenizer.ggml.tokens": ["a", "<|fim_pad|>", "<|fim_middle|>"]});
        assert_eq!(end_tokens(code.as_object().unwrap(), "qwen2"), Some(json!([2, 1])));
    }

    #[test]
    fn what_is_no_model_is_named() {
        let kind = |metadata: Value| check_kind(metadata.as_object().unwrap());
        for (metadata, word) in [
            (json!({"general.type": "adapter", "general.architecture": "llama"}), "adapter"),
            (json!({"general.type": "mmproj"}), "images"),
            (json!({"general.architecture": "clip"}), "images"),
            (json!({"general.type": "imatrix"}), "importance matrix"),
        ] {
            assert!(kind(metadata).unwrap_err().contains(word), "{word}");
        }
        assert_eq!(kind(json!({"general.type": "model", "general.architecture": "llama"})), Ok(()));
    }

    #[test]
    fn layers_with_a_window_are_those_that_the_file_says() {
        let types = |fields: Value| {
            let types = layer_types(&|name| fields.get(name), "gemma3");
            types.map(|types| types.map(|types| types.iter().map(|name| &name[..1]).collect::<String>()))
        };
        let (count, window, pattern) = ("block_count", "attention.sliding_window", "attention.sliding_window_pattern");
        let of = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(types(json!({count: 3})), of("fff"));
        assert_eq!(types(json!({count: 3, window: 512})), Ok(None));
        assert_eq!(types(json!({count: 5, window: 512, pattern: 3})), of("ssfss"));
        assert_eq!(types(json!({count: 3, window: 512, pattern: 1})), of("fff"));
        assert_eq!(types(json!({count: 2, window: 512, pattern: [true, false]})), of("sf"));
        assert!(types(json!({count: 2, window: 512, pattern: "x"})).unwrap_err().contains("neither a number"));
    }
}
