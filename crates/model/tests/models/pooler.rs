//! What a checkpoint's files say of embeddings, and what of it is refused.

use crate::common::{golden, rewritten_at};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;
use vllm_apple_cpu::CpuBackend;
use vllm_apple_executor::{Executor, Pooling};
use vllm_apple_model::load::pooler::Matryoshka;
use vllm_apple_model::{Checkpoint, LoadError, LoadOptions, LoadedModel, Pooler, Quantization};

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&golden(name)).unwrap()
}

#[test]
fn files_of_sentence_transformers_say_how_embeddings_are_made() {
    let last = open("embedders/models/qwen3-last");
    let pooler = Pooler { pooling: Pooling::Last, normalize: true, matryoshka: Matryoshka::No, max_tokens: None };
    assert!(last.is_embedder().unwrap() && last.pooler().unwrap() == pooler);
    let mean = open("embedders/models/llama-mean");
    let pooler = Pooler { pooling: Pooling::Mean, normalize: false, matryoshka: Matryoshka::Any, max_tokens: None };
    assert!(mean.is_embedder().unwrap() && mean.pooler().unwrap() == pooler);
    let generates = open("models/qwen3");
    assert!(!generates.is_embedder().unwrap());
    assert_eq!(generates.pooler().unwrap().pooling, Pooling::Last);
}

/// Gemma's decoder alone, which transformers does not call `…Model`.
#[test]
fn gemmas_text_model_is_an_embedder() {
    let alone = rewritten_at(
        &golden("models/gemma3"),
        |config| config["architectures"] = json!(["Gemma3TextModel"]),
        |tensors| {
            let all = std::mem::take(tensors);
            tensors.extend(all.into_iter().map(|(name, tensor)| (name.replacen("model.", "", 1), tensor)));
        },
    );
    let checkpoint = Checkpoint::open(alone.path()).unwrap();
    assert!(checkpoint.is_embedder().unwrap());
    checkpoint.without_head().check(&CpuBackend::new(Some(1)), &LoadOptions::default()).unwrap();
}

#[test]
fn a_model_with_a_head_of_its_own_can_do_without() {
    // Of which Llama's is not tied, and Qwen3's is.
    for name in ["models/llama", "models/qwen3"] {
        let load = |checkpoint: &Checkpoint| {
            let backend = CpuBackend::new(Some(1));
            checkpoint.check(&backend, &LoadOptions::default()).unwrap();
            LoadedModel::load(backend, checkpoint, &LoadOptions::default()).unwrap()
        };
        let (with_head, alone) = (load(&open(name)), load(&open(name).without_head()));
        assert!(alone.memory_plan().scratch < with_head.memory_plan().scratch, "{name}: there are no logits");
        let is_smaller = alone.memory_plan().weights < with_head.memory_plan().weights;
        assert_eq!(is_smaller, name == "models/llama");
        let [size, none] = [alone, with_head].map(|loaded| loaded.allocate(4096).unwrap().info().embedding_size);
        assert_eq!((size, none), (Some(64), None));
    }
}

/// A copy of an embedder, and where that is.
fn copy() -> (PathBuf, TempDir) {
    let (from, to) = (golden("embedders/models/qwen3-last"), tempfile::tempdir().unwrap());
    fs::create_dir(to.path().join("1_Pooling")).unwrap();
    for name in ["config.json", "modules.json", "1_Pooling/config.json", "model.safetensors"] {
        fs::copy(from.join(name), to.path().join(name)).unwrap();
    }
    (from, to)
}

/// What a copy of an embedder says whose `file` was changed.
fn changed(file: &str, change: impl Fn(&mut Value)) -> Result<Pooler, LoadError> {
    let (from, to) = copy();
    let before = fs::read(from.join(file)).unwrap_or_else(|_| b"{}".to_vec());
    let mut value: Value = serde_json::from_slice(&before).unwrap();
    change(&mut value);
    fs::write(to.path().join(file), value.to_string()).unwrap();
    Checkpoint::open(to.path())?.pooler()
}

#[test]
fn both_spellings_of_modes_are_read_and_others_are_refused_by_name() {
    let pooling = |value: Value| changed("1_Pooling/config.json", |file| file.clone_from(&value));
    for (value, expected) in [
        (json!({"pooling_mode": "cls"}), Pooling::First),
        (json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}), Pooling::First),
        (json!({"pooling_mode_mean_tokens": true}), Pooling::Mean),
        // The only switch that is on where it is not there.
        (json!({}), Pooling::Mean),
        (json!({"pooling_mode_cls_token": false}), Pooling::Mean),
        (json!({"pooling_mode": "lasttoken"}), Pooling::Last),
    ] {
        assert_eq!(pooling(value).unwrap().pooling, expected);
    }
    for (value, named) in [
        (json!({"pooling_mode_max_tokens": true}), "pooling_mode_max_tokens must be false"),
        (json!({"pooling_mode_weightedmean_tokens": true}), "pooling_mode_weightedmean_tokens"),
        (json!({"pooling_mode": "max"}), "one of lasttoken, mean and cls"),
        (json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}), "no other mode"),
        (json!({"pooling_mode_cls_token": true}), "pooling_mode_mean_tokens must be false beside another mode"),
        (json!({"pooling_mode_mean_tokens": false}), "pooling_mode must be one of"),
        (json!({"pooling_mode": "mean", "include_prompt": false}), "include_prompt must be true"),
    ] {
        let error = pooling(value).unwrap_err().to_string();
        assert!(error.contains(named) && error.contains("1_Pooling"), "{error}");
    }
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let module =
        |class: &str, path: &str| json!({"type": format!("sentence_transformers.models.{class}"), "path": path});
    let (model, pooling) = (module("Transformer", ""), module("Pooling", "1_Pooling"));
    let modules = |list: Value| changed("modules.json", |file| file.clone_from(&list));
    assert!(!modules(json!([model, pooling])).unwrap().normalize);
    // Without a module that pools the file says nothing of embeddings, as in vLLM.
    assert!(modules(json!([model])).unwrap().normalize);
    for (list, named) in [
        (json!([model, pooling, module("Dense", "2_Dense"), module("Normalize", "3_Normalize")]), "Dense"),
        (json!([model, module("Normalize", ""), pooling]), "Normalize, Pooling"),
        (json!([model, module("Pooling", "../1_Pooling")]), "got , ../1_Pooling"),
        (json!([model, {"type": "Pooling"}]), "the strings `type` and `path`, got {\"type\":\"Pooling\"}"),
        (json!({"0": "a"}), "a list of modules, got {\"0\":\"a\"}"),
    ] {
        let error = modules(list).unwrap_err().to_string();
        assert!(error.contains(named) && error.contains("modules.json"), "{error}");
    }
    let config = |name: &str, value: Value| changed("config.json", |file| file[name] = value.clone());
    for (name, value) in [("is_causal", json!(false)), ("use_bidirectional_attention", json!(true))] {
        let error = config(name, value).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("later tokens"), "{error}");
    }
    let sizes = config("matryoshka_dimensions", json!([16, 32])).unwrap();
    assert_eq!(sizes.matryoshka, Matryoshka::Of(vec![16, 32]));
    for sizes in [json!([0, 16]), json!([16, 65])] {
        let error = config("matryoshka_dimensions", sizes).unwrap_err().to_string();
        assert!(error.contains("matryoshka_dimensions must be sizes from 1 to hidden_size"), "{error}");
    }
}

#[test]
fn what_happens_to_texts_before_the_model_is_read() {
    let texts = |value: Value| changed("sentence_bert_config.json", |file| file.clone_from(&value));
    let longest = |value: Value| texts(value).unwrap().max_tokens;
    assert_eq!(longest(json!({"max_seq_length": 8, "do_lower_case": false})), Some(8));
    assert_eq!(longest(json!({"max_seq_length": null})), None);
    let error = texts(json!({"do_lower_case": true})).unwrap_err().to_string();
    assert!(error.contains("do_lower_case must be false") && error.contains("sentence_bert_config.json"), "{error}");
}

#[test]
fn an_embedder_that_is_written_quantised_is_one() {
    let to = tempfile::tempdir().unwrap();
    let (_, from) = copy();
    fs::create_dir(from.path().join("additional_chat_templates")).unwrap();
    let beside = ["additional_chat_templates/tool_use.jinja", "1_Pooling/more.txt"];
    beside.iter().for_each(|file| fs::write(from.path().join(file), "x").unwrap());
    let checkpoint = Checkpoint::open(from.path()).unwrap();
    checkpoint.write_quantized(to.path(), Quantization::Int8, &mut |_, _| {}).unwrap();
    let written = Checkpoint::open(to.path()).unwrap();
    assert!(written.is_embedder().unwrap());
    assert_eq!(written.pooler().unwrap(), checkpoint.pooler().unwrap());
    for file in beside {
        assert!(to.path().join(file).exists(), "{file}");
    }
    written.without_head().check(&CpuBackend::new(Some(1)), &LoadOptions::default()).unwrap();
}
