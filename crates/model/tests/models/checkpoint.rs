//! Faults in a checkpoint: each is one error that names the file and the field or tensor, and none is a panic.

use crate::common::{Tensors, golden, load_checkpoint, logits_in_f32, models, rewritten_at};
use proptest::prelude::*;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use vllm_apple_cpu::CpuBackend;
use vllm_apple_model::{Checkpoint, LoadError, LoadOptions, Quantization};
use vllm_apple_ops::DType;

/// A copy of a golden checkpoint, to be damaged.
fn copy(name: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(golden(&format!("models/{name}"))).unwrap() {
        let path = entry.unwrap().path();
        fs::write(directory.path().join(path.file_name().unwrap()), fs::read(&path).unwrap()).unwrap();
    }
    directory
}

fn load(directory: &Path) -> Result<(), LoadError> {
    let checkpoint = Checkpoint::open(directory)?;
    checkpoint.generation_config()?;
    let options = LoadOptions {
        max_model_len: Some(32),
        max_num_seqs: 1,
        max_num_batched_tokens: Some(16),
        ..LoadOptions::default()
    };
    load_checkpoint(CpuBackend::new(Some(1)), &checkpoint, &options).map(drop)
}

/// Changes one field of config.json and checks that the error says all of `words`.
fn check_config(model: &str, field: &str, value: Value, words: &[&str]) {
    let directory = copy(model);
    let path = directory.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    match value {
        Value::String(s) if s == "(absent)" => drop(config.as_object_mut().unwrap().remove(field)),
        value => config[field] = value,
    }
    fs::write(&path, config.to_string()).unwrap();
    check_error(directory.path(), &[&["config.json"], words].concat());
}

fn check_error(directory: &Path, words: &[&str]) {
    let error = load(directory).expect_err("the fault must be found").to_string();
    for word in words {
        assert!(error.contains(word), "\"{error}\" does not say \"{word}\"");
    }
    assert!(!error.contains('\n'), "\"{error}\" is more than one line");
}

#[test]
fn config_values_that_cannot_be_used_are_named() {
    check_config("llama", "architectures", json!(["GPT2LMHeadModel"]), &["GPT2LMHeadModel", "Qwen3MoeForCausalLM"]);
    check_config("llama", "hidden_act", json!("gelu"), &["hidden_act", "gelu", "silu"]);
    check_config("llama", "model_type", json!("granite"), &["model_type", "granite", "LlamaForCausalLM"]);
    check_config("llama", "is_causal", json!(false), &["is_causal must be true", "later tokens"]);
    check_config("llama", "hidden_size", json!("(absent)"), &["hidden_size"]);
    check_config("llama", "hidden_size", json!(-1), &["hidden_size", "-1"]);
    check_config("llama", "vocab_size", json!(0), &["vocab_size", "0"]);
    check_config("llama", "num_hidden_layers", json!(1u64 << 60), &["num_hidden_layers"]);
    check_config("llama", "head_dim", json!(20), &["head_dim", "20", "multiple of 8"]);
    check_config("mistral", "head_dim", json!(520), &["head_dim", "520", "a multiple of 8", "512"]);
    check_config("llama", "num_key_value_heads", json!(3), &["num_key_value_heads", "3"]);
    for eps in [0.0, 1e-300, 1e300] {
        check_config("llama", "rms_norm_eps", json!(eps), &["rms_norm_eps", "a number from 1e-12 to 1.0", "got"]);
    }
    check_config("llama", "dtype", json!("float8_e4m3fn"), &["dtype", "float8_e4m3fn"]);
    check_config(
        "llama",
        "architectures",
        json!(["Gemma3ForConditionalGeneration"]),
        &["Gemma3ForConditionalGeneration"],
    );
    check_config("gemma3", "hidden_activation", json!("relu"), &["hidden_activation", "relu", "gelu_pytorch_tanh"]);
    check_config("gemma3", "final_logit_softcapping", json!(30.0), &["final_logit_softcapping", "30", "null"]);
    check_config("gemma3", "attn_logit_softcapping", json!(50.0), &["attn_logit_softcapping", "50", "null"]);
    check_config("gemma3", "use_bidirectional_attention", json!(true), &["use_bidirectional_attention", "true"]);
    check_config("gemma3", "sliding_window", json!(null), &["sliding_window"]);
    check_config("gemma3", "query_pre_attn_scalar", json!(0), &["query_pre_attn_scalar", "0"]);
    check_config("gemma3", "query_pre_attn_scalar", json!(1e300), &["query_pre_attn_scalar", "1e+300", "1000000.0"]);
    check_config("gemma3", "sliding_window_pattern", json!(0), &["sliding_window_pattern", "0"]);
    let quantised = |value, words: &[&str]| check_config("llama", "quantization_config", value, words);
    quantised(json!({"quant_method": "bitsandbytes"}), &["quantised (bitsandbytes)", "awq", "gptq", "fp8", "MLX"]);
    quantised(json!({"quant_method": "awq", "version": "gemv"}), &["version gemv", "gemm"]);
    quantised(json!({"quant_method": "gptq", "checkpoint_format": "marlin"}), &["checkpoint_format marlin"]);
    quantised(json!({"quant_method": "compressed-tensors", "format": "marlin-24"}), &["marlin-24", "pack-quantized"]);
    quantised(json!({"bits": 4, "group_size": 32, "mode": "fp6"}), &["mode fp6", "mxfp8 and nvfp4"]);
    quantised(
        json!({"quant_method": "auto-round", "packing_format": "auto_round:other"}),
        &["packing_format auto_round:other", "auto_gptq"],
    );
    quantised(json!({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}), &["quant_algo W4A8_AWQ", "NVFP4"]);
}

#[test]
fn modelopts_own_file_says_what_config_json_does_not() {
    let directory = copy("../quantised/models/modelopt-nvfp4");
    let (path, beside) = (directory.path().join("config.json"), directory.path().join("hf_quant_config.json"));
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("quantization_config");
    fs::write(&path, config.to_string()).unwrap();
    check_error(directory.path(), &["q_proj.weight", "U8"]);
    let says = |algorithm: &str| {
        let quantization = json!({"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "group_size": 16});
        let all = json!({"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": quantization});
        fs::write(&beside, all.to_string()).unwrap();
    };
    says("W4A8_AWQ");
    check_error(directory.path(), &["hf_quant_config.json", "quant_algo W4A8_AWQ", "NVFP4"]);
    says("NVFP4");
    load(directory.path()).unwrap();
    fs::write(&beside, "{").unwrap();
    check_error(directory.path(), &["hf_quant_config.json"]);
    // What config.json says comes first.
    config["quantization_config"] = json!({"quant_method": "modelopt", "quant_algo": "nvfp4"});
    fs::write(&path, config.to_string()).unwrap();
    load(directory.path()).unwrap();
}

#[test]
fn weights_are_floats_where_caches_alone_are_quantised() {
    let directory = copy("llama");
    let all = json!({"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}});
    let load_quantising = || {
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        let options = LoadOptions { quantization: Some("int4".parse().unwrap()), ..LoadOptions::default() };
        load_checkpoint(CpuBackend::new(Some(1)), &checkpoint, &options).map(drop).unwrap();
    };
    let beside = directory.path().join("hf_quant_config.json");
    fs::write(&beside, all.to_string()).unwrap();
    load_quantising();
    fs::remove_file(beside).unwrap();
    let path = directory.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["quantization_config"] = json!({"quant_method": "compressed-tensors", "format": "dense"});
    fs::write(&path, config.to_string()).unwrap();
    load_quantising();
}

#[test]
fn rope_values_that_cannot_be_used_are_named() {
    let rope = |p: Value| move |words: &[&str]| check_config("llama", "rope_scaling", p, words);
    rope(json!({"rope_type": "longrope"}))(&["rope_scaling.rope_type", "longrope", "yarn"]);
    rope(json!({"type": "linear"}))(&["rope_scaling.factor"]);
    rope(json!({"factor": 4.0}))(&["rope_scaling.rope_type", "beside fields of a scaling"]);
    rope(json!({"type": null, "low_freq_factor": 1.0}))(&["rope_scaling.", "beside fields of a scaling"]);
    rope(json!({"type": "linear", "factor": 0}))(&["rope_scaling.factor", "0"]);
    for factor in [1e-300, 0.5, 1e300] {
        rope(json!({"type": "linear", "factor": factor}))(&["rope_scaling.factor", "a number from 1.0 to 1000000.0"]);
        rope(json!({"type": "yarn", "factor": factor}))(&["rope_scaling.factor", "a number from 1.0 to 1000000.0"]);
    }
    for field in ["attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow"] {
        for value in [-1.0, 1e-300, 1e300] {
            let mut yarn = json!({"type": "yarn", "factor": 4});
            yarn[field] = json!(value);
            rope(yarn)(&[&format!("rope_scaling.{field}"), "a number from"]);
        }
    }
    for theta in [0.5, 1.0, 1e300] {
        let words = |field| [field, "a number from 1.01 to 1e16"];
        check_config("llama", "rope_parameters", json!({"rope_theta": theta}), &words("rope_parameters.rope_theta"));
        check_config("mistral", "rope_theta", json!(theta), &words("rope_theta"));
        check_config("gemma3", "rope_local_base_freq", json!(theta), &words("rope_local_base_freq"));
    }
    rope(json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}))(&[
        "high_freq_factor",
    ]);
    rope(json!({"rope_type": "default", "partial_rotary_factor": 0.5}))(&["partial_rotary_factor", "0.5"]);
    check_config("llama", "partial_rotary_factor", json!(0.25), &["partial_rotary_factor", "0.25"]);
    let linear = json!({"rope_type": "linear", "factor": 8});
    check_config("gemma3", "rope_scaling", linear.clone(), &["rope_scaling", "rope_parameters"]);
    check_config(
        "gemma3",
        "rope_parameters",
        linear.clone(),
        &["rope_parameters.", "full_attention and sliding_attention"],
    );
    check_config("qwen3", "rope_parameters", json!({"full_attention": linear}), &["rope_parameters.full_attention"]);
    check_config("qwen2", "layer_types", json!(["full_attention"]), &["layer_types", "3"]);
    check_config("mixtral", "num_experts_per_tok", json!(9), &["num_experts_per_tok", "9", "4"]);
}

#[test]
fn shapes_types_and_missing_tensors_are_named() {
    check_config_only("llama", "intermediate_size", json!(88), &["model.safetensors", "gate_proj.weight", "96", "88"]);
    check_config_only("llama", "attention_bias", json!(true), &["model.safetensors", "q_proj.bias", "missing"]);
    check_config_only("qwen3", "num_hidden_layers", json!(3), &["index.json", "model.layers.2.", "missing"]);
}

/// Adds a tensor to a safetensors file.
fn add_tensor(path: &Path, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) {
    change_header(path, bytes, |header, data| {
        let tensor = json!({"dtype": dtype, "shape": shape, "data_offsets": [data, data + bytes.len()]});
        header.insert_str(header.len() - 1, &format!(",{}:{tensor}", json!(name)));
    });
}

/// Changes the header of a safetensors file, which also learns how long the data is, and appends data.
fn change_header(path: &Path, more: &[u8], change: impl FnOnce(&mut String, usize)) {
    let content = fs::read(path).unwrap();
    let (len, rest) = content.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let mut header = std::str::from_utf8(header).unwrap().trim_end().to_owned();
    change(&mut header, data.len());
    fs::write(path, [&header.len().to_le_bytes(), header.as_bytes(), data, more].concat()).unwrap();
}

#[test]
fn tensors_that_the_model_does_not_have_are_named_and_counted() {
    let no_part = ["belong to no part of the model that the configuration describes"];
    let words = |more: &[&'static str]| [&no_part[..], more].concat();
    let fewer =
        ["9 of its tensors (model.layers.1.input_layernorm.weight, model.layers.1.mlp.down_proj.weight, ", ", …)"];
    check_config_only("llama", "num_hidden_layers", json!(1), &words(&[&["model.safetensors"], &fewer[..]].concat()));
    check_config_only("qwen3", "num_hidden_layers", json!(1), &words(&["index.json", "model.layers.1."]));
    check_config_only("mixtral", "num_hidden_layers", json!(1), &words(&["index.json", "model.layers.1."]));
    check_config_only("qwen2-moe", "mlp_only_layers", json!([0, 1, 2, 3]), &["mlp.gate_proj.weight"]);
    for (name, len) in [
        ("model.layers.0.self_attn.o_proj.bias", 64),
        ("model.layers.0.self_attn.q_norm.weight", 16),
        ("model.layers.0.self_attn.rotary_emb.inv_freq.weight", 8),
    ] {
        let directory = copy("llama");
        add_tensor(&directory.path().join("model.safetensors"), name, "F32", &[len], &vec![0; len * 4]);
        check_error(directory.path(), &words(&["1 of its tensors (model.", name]));
    }
}

/// What sound checkpoints have nevertheless.
#[test]
fn tables_of_rope_may_be_there() {
    let directory = copy("llama");
    let path = directory.path().join("model.safetensors");
    for name in ["model.rotary_emb.inv_freq", "model.layers.1.self_attn.rotary_emb.inv_freq"] {
        add_tensor(&path, name, "F32", &[8], &[0; 32]);
    }
    load(directory.path()).unwrap();
}

#[test]
fn keys_and_values_of_layers_that_would_share_are_named() {
    for model in ["llama", "qwen2", "qwen3"] {
        let directory = copy(model);
        change_json(&directory.path().join("config.json"), |config| {
            config["num_kv_shared_layers"] = json!(1);
            config["use_sliding_window"] = json!(false);
            config.as_object_mut().unwrap().remove("layer_types");
        });
        check_error(directory.path(), &["config.json: num_kv_shared_layers must be 0", "self_attn.k_proj.", "got 1"]);
    }
}

#[test]
fn an_output_head_beside_tied_embeddings_is_used_where_it_differs() {
    const HEAD: &str = "lm_head.weight";
    const EMBEDDING: &str = "model.embed_tokens.weight";
    let with = |tie: bool, change: &dyn Fn(&mut Tensors)| {
        rewritten_at(&golden("models/qwen2"), |config| config["tie_word_embeddings"] = json!(tie), change)
    };
    let is_tied = |directory: &TempDir| Checkpoint::open(directory.path()).unwrap().config().tie_word_embeddings;
    let logits = |directory: &TempDir| logits_in_f32(directory.path(), &[3, 1, 4, 1, 5]);
    let same = |tensors: &mut Tensors| drop(tensors.insert(HEAD.to_owned(), tensors[EMBEDDING].clone()));
    let other = |tensors: &mut Tensors| {
        same(tensors);
        tensors.get_mut(HEAD).unwrap().2.rotate_left(256);
    };
    assert!(is_tied(&with(true, &same)));
    let (said, unsaid) = (with(false, &other), with(true, &other));
    assert!(!is_tied(&unsaid));
    assert!(logits(&unsaid) == logits(&said) && logits(&unsaid) != logits(&with(true, &same)));

    let to = tempfile::tempdir().unwrap();
    Checkpoint::open(unsaid.path()).unwrap().write_quantized(to.path(), Quantization::Int8, &mut |_, _| {}).unwrap();
    let config: Value = serde_json::from_slice(&fs::read(to.path().join("config.json")).unwrap()).unwrap();
    assert_eq!(config["tie_word_embeddings"], false);

    // The same numbers in a type with more digits, and others there.
    let wider = |change: fn(&mut [f32])| {
        with(true, &move |tensors| {
            let (dtype, shape, bytes) = &tensors[EMBEDDING];
            assert_eq!(*dtype, Dtype::BF16);
            let mut values = DType::BF16.decode(bytes);
            change(&mut values);
            let head = (Dtype::F32, shape.clone(), DType::F32.encode(&values));
            tensors.insert(HEAD.to_owned(), head);
        })
    };
    assert!(is_tied(&wider(|_| ())));
    assert!(!is_tied(&wider(|values| *values.last_mut().unwrap() += 1.0)));

    // What it is then must be a head.
    let flat = with(true, &|tensors| {
        same(tensors);
        let shape = &mut tensors.get_mut(HEAD).unwrap().1;
        *shape = vec![shape.iter().product()];
    });
    check_error(flat.path(), &["model.safetensors", "lm_head.weight has shape"]);
}

#[test]
fn a_tensor_twice_in_a_header_is_named() {
    let directory = copy("llama");
    change_header(&directory.path().join("model.safetensors"), &[], |header, _| {
        let parsed: Value = serde_json::from_str(header).unwrap();
        let norm = &parsed["model.norm.weight"];
        header.insert_str(header.len() - 1, &format!(",\"model.norm.w\\u0065ight\":{norm}"));
    });
    check_error(directory.path(), &["model.safetensors", "model.norm.weight twice"]);
}

#[test]
fn an_index_and_its_files_must_have_the_same_tensors() {
    let llama = copy("llama");
    let index = llama.path().join("model.safetensors.index.json");
    let of_another = json!({"weight_map": {"foo": "model.safetensors"}});
    fs::write(&index, of_another.to_string()).unwrap();
    check_error(llama.path(), &["index.json", "weight_map.foo", "the file which has this tensor", "model.safetensors"]);

    // Of which no file is there: the index of what this one was made of.
    fs::write(&index, json!({"weight_map": {"foo": "model-00001-of-00002.safetensors"}}).to_string()).unwrap();
    load(llama.path()).unwrap();

    let check = |words: &[&str], change: fn(&mut Value)| {
        let directory = copy("qwen3");
        change_json(&directory.path().join("model.safetensors.index.json"), |index| change(&mut index["weight_map"]));
        match words {
            [] => load(directory.path()).unwrap(),
            words => check_error(directory.path(), &[&["index.json"], words].concat()),
        }
    };
    check(&["weight_map.model.norm.weight", "got nothing"], |map| {
        map.as_object_mut().unwrap().remove("model.norm.weight");
    });
    check(&["weight_map.model.norm.weight", "the file which has this tensor"], |map| {
        let other = if map["model.norm.weight"] == "model-00001-of-00003.safetensors" { 2 } else { 1 };
        map["model.norm.weight"] = json!(format!("model-0000{other}-of-00003.safetensors"));
    });
    // What nobody needs may be missing.
    check(&[], |map| map["model.layers.0.self_attn.rotary_emb.inv_freq"] = json!("model-00001-of-00003.safetensors"));
    check(&[], |map| map["lm_head.weight"] = json!("model-00001-of-00003.safetensors"));
}

fn change_json(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// As [`check_config`], for faults that show in another file.
fn check_config_only(model: &str, field: &str, value: Value, words: &[&str]) {
    let directory = copy(model);
    let path = directory.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config[field] = value;
    if field == "num_hidden_layers" {
        config.as_object_mut().unwrap().remove("layer_types");
    }
    fs::write(&path, config.to_string()).unwrap();
    check_error(directory.path(), words);
}

#[test]
fn damaged_and_missing_files_are_named() {
    let weights = |d: &TempDir| d.path().join("model.safetensors");
    let directory = copy("llama");
    let content = fs::read(weights(&directory)).unwrap();
    for len in [content.len() - 1, 2000, 100, 8, 7, 0] {
        fs::write(weights(&directory), &content[..len]).unwrap();
        check_error(directory.path(), &["model.safetensors", "download it again"]);
        let is_cut = matches!(load(directory.path()), Err(LoadError::Truncated { got, .. }) if got == len as u64);
        assert!(is_cut || len < 8, "{len} bytes");
    }
    fs::write(weights(&directory), [&content[..], &[0]].concat()).unwrap();
    check_error(directory.path(), &["model.safetensors", "bytes"]);
    fs::remove_file(weights(&directory)).unwrap();
    check_error(directory.path(), &["model.safetensors.index.json"]);

    let directory = copy("mixtral");
    fs::remove_file(directory.path().join("model-00002-of-00003.safetensors")).unwrap();
    check_error(directory.path(), &["index.json", "model-00002-of-00003.safetensors"]);
    fs::write(directory.path().join("model.safetensors.index.json"), "{}").unwrap();
    check_error(directory.path(), &["index.json", "weight_map"]);
    let outside = json!({"weight_map": {"a": "../../secret.safetensors"}});
    fs::write(directory.path().join("model.safetensors.index.json"), outside.to_string()).unwrap();
    check_error(directory.path(), &["index.json", "weight_map.a"]);

    let directory = copy("llama");
    fs::write(directory.path().join("config.json"), "[1]").unwrap();
    check_error(directory.path(), &["config.json", "JSON"]);
    fs::remove_file(directory.path().join("config.json")).unwrap();
    check_error(directory.path(), &["config.json"]);
}

#[test]
fn faults_of_generation_config_are_those_of_who_asks_for_it() {
    let directory = copy("llama");
    let path = directory.path().join("generation_config.json");
    for (content, words) in [
        ("{\"eos_token_id\": [1, 443]}", ["eos_token_id", "443"]),
        ("{\"top_k\": -2}", ["top_k", "-2"]),
        ("{\"repetition_penalty\": 0}", ["repetition_penalty", "from 1e-30"]),
        ("{\"max_new_tokens\": 0}", ["max_new_tokens", "at least 1"]),
        ("[1]", ["JSON", "object"]),
    ] {
        fs::write(&path, content).unwrap();
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        let error = checkpoint.generation_config().unwrap_err().to_string();
        for word in words.into_iter().chain(["generation_config.json"]) {
            assert!(error.contains(word), "\"{error}\" does not say \"{word}\"");
        }
    }
    fs::write(&path, "{\"top_k\": -1}").unwrap();
    let read = Checkpoint::open(directory.path()).unwrap().generation_config().unwrap();
    assert_eq!((read.top_k, read.eos_token_ids), (Some(0), vec![2]));
    fs::remove_file(&path).unwrap();
    let read = Checkpoint::open(directory.path()).unwrap().generation_config().unwrap();
    assert_eq!((read.top_k, read.eos_token_ids), (None, vec![2]));
}

#[test]
fn options_out_of_range_and_too_little_memory_are_told_with_numbers() {
    let checkpoint = Checkpoint::open(&golden("models/llama")).unwrap();
    let error = |change: fn(&mut LoadOptions)| {
        let mut options = LoadOptions::default();
        change(&mut options);
        load_checkpoint(CpuBackend::new(Some(1)), &checkpoint, &options).map(drop).unwrap_err().to_string()
    };
    assert!(error(|o| o.max_model_len = Some(257)).contains("256"));
    assert!(error(|o| o.max_num_seqs = 0).contains("`max_num_seqs`"));
    assert!(error(|o| o.max_num_batched_tokens = Some(8)).contains("`max_num_batched_tokens`"));
    assert!(error(|o| o.block_size = 0).contains("`block_size`"));
    assert!(error(|o| o.kv_cache_memory = Some(1 << 10)).contains("`max_model_len`"));
    assert!(error(|o| o.kv_cache_memory = Some(1 << 50)).contains("`kv_cache_memory`"));
}

#[test]
fn a_value_out_of_the_types_range_is_refused() {
    let directory = copy("llama");
    let path = directory.path().join("model.safetensors");
    let mut content = fs::read(&path).unwrap();
    // The file begins with a matrix.
    let header = 8 + u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
    content[header..header + 4].copy_from_slice(&1e6f32.to_le_bytes());
    fs::write(&path, content).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let options = LoadOptions { dtype: Some(DType::F16), ..LoadOptions::default() };
    let error = load_checkpoint(CpuBackend::new(Some(1)), &checkpoint, &options).map(drop).unwrap_err();
    assert!(error.to_string().contains("`dtype` bfloat16"), "{error}");
}

/// Files of a checkpoint that the loader reads.
const FILES: [&str; 3] = ["config.json", "generation_config.json", "model.safetensors"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever bytes change: an error, or a model with other numbers.
    #[test]
    fn damaged_bytes_never_panic(
        model in prop::sample::select(models().into_iter().filter(|m| !["qwen3", "mixtral"].contains(&m.as_str())).collect::<Vec<_>>()),
        file in prop::sample::select(FILES.to_vec()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        keep in prop::option::weighted(0.3, any::<prop::sample::Index>()),
    ) {
        let directory = copy(&model);
        let path: PathBuf = directory.path().join(file);
        let mut content = fs::read(&path).unwrap();
        // Most of a weight file is numbers, where nothing can go wrong: aim at the header.
        let reach = content.len().min(6000);
        for (at, byte) in changes {
            content[at.index(reach)] = byte;
        }
        if let Some(keep) = keep {
            content.truncate(keep.index(content.len()));
        }
        fs::write(&path, content).unwrap();
        let _ = load(directory.path());
    }

    /// Any JSON value in any field.
    #[test]
    fn odd_values_never_panic(
        model in prop::sample::select(models()),
        field in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![
            json!(null), json!(0), json!(-1), json!(1), json!(7), json!(1e300), json!(u64::MAX), json!(0.5), json!(16_777_216),
            json!(""), json!("x"), json!([]), json!([0]), json!({}), json!(true), json!({"rope_type": "yarn", "factor": 1e300}),
        ]),
    ) {
        let directory = copy(&model);
        let path = directory.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let fields: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        config[&fields[field.index(fields.len())]] = value;
        fs::write(&path, config.to_string()).unwrap();
        let _ = load(directory.path());
    }
}
