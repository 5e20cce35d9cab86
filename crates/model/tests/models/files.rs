//! Which files of a checkpoint are read, by what they are called.

use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use vllm_apple_cpu::CpuBackend;
use vllm_apple_model::hub::{self, HubOptions};
use vllm_apple_model::{Checkpoint, LoadOptions};
use vllm_apple_ops::DType;

use crate::common::{Tensors, golden, logits_in_f32, options, rewritten};

fn tokens() -> Vec<u32> {
    (0..30).map(|i| i * 37 % 440).collect()
}

fn without_quantization_config(config: &mut Value) {
    config.as_object_mut().unwrap().remove("quantization_config");
}

fn check(directory: &Path, options: &LoadOptions) -> Result<(), String> {
    let checkpoint = Checkpoint::open(directory).map_err(|error| error.to_string())?;
    checkpoint.check(&CpuBackend::new(Some(1)), options).map_err(|error| error.to_string())
}

/// As AutoGPTQ and AutoAWQ wrote them before config.json said it.
#[test]
fn files_beside_config_json_say_how_weights_are_quantised() {
    let gptq = |more: Value| {
        let mut all = json!({
            "bits": 4, "group_size": 32, "damp_percent": 0.01, "desc_act": true, "static_groups": false, "sym": true,
            "true_sequential": true, "model_name_or_path": null, "model_file_base_name": null,
        });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let awq = json!({"zero_point": true, "q_group_size": 32, "w_bit": 4, "version": "GEMM"});
    for (model, method, file, says) in [
        ("gptq-act-order", "gptq", "quantize_config.json", gptq(json!({}))),
        ("gptq-act-order", "gptq", "quantize_config.json", gptq(json!({"quant_method": "gptq"}))),
        ("awq", "awq", "quant_config.json", awq.clone()),
        ("awq", "awq", "quantize_config.json", awq),
    ] {
        let directory = rewritten(model, without_quantization_config, |_| ());
        let said = LoadOptions { quantization: Some(method.parse().unwrap()), ..options(DType::F32, 64) };
        assert!(check(directory.path(), &said).is_err(), "{model}: nothing says it");
        // Another program's file of this name says nothing.
        fs::write(directory.path().join("quant_config.json"), json!({"per_channel": true}).to_string()).unwrap();
        assert!(check(directory.path(), &said).is_err(), "{model}: nothing says it");
        fs::write(directory.path().join(file), says.to_string()).unwrap();
        assert_eq!(check(directory.path(), &said), Ok(()), "{model} by {file}");
        let expected = logits_in_f32(&golden(&format!("quantised/models/{model}")), &tokens());
        assert_eq!(logits_in_f32(directory.path(), &tokens()), expected, "{model} by {file}");
        let error = Checkpoint::open_dummy(directory.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains(file), "{error}");
    }
    let without_order = |tensors: &mut Tensors| tensors.retain(|name, _| !name.ends_with(".g_idx"));
    let directory = rewritten("gptq-act-order", without_quantization_config, without_order);
    let beside = directory.path().join("quantize_config.json");
    let says = |more: Value| fs::write(&beside, gptq(more).to_string()).unwrap();
    let error = || check(directory.path(), &options(DType::F32, 64)).unwrap_err();
    says(json!({"group_size": 16, "desc_act": false}));
    assert!(error().contains("[4, 64] by the group_size in quantize_config.json"), "{}", error());
    says(json!({"checkpoint_format": "marlin"}));
    assert!(error().contains("quantize_config.json") && error().contains("checkpoint_format marlin"), "{}", error());
    // What config.json says comes first.
    let directory = rewritten("gptq-act-order", |_| (), |_| ());
    fs::write(directory.path().join("quantize_config.json"), "{").unwrap();
    assert_eq!(check(directory.path(), &options(DType::F32, 64)), Ok(()));
}

#[test]
fn weights_may_be_in_files_of_any_name() {
    let directory = rewritten("gptq", |_| (), |_| ());
    let path = |name: &str| directory.path().join(name);
    fs::rename(path("model.safetensors"), path("gptq_model-4bit-32g.safetensors")).unwrap();
    let expected = logits_in_f32(&golden("quantised/models/gptq"), &tokens());
    assert_eq!(logits_in_f32(directory.path(), &tokens()), expected);
    fs::rename(path("gptq_model-4bit-32g.safetensors"), path("model.bin")).unwrap();
    let error = check(directory.path(), &options(DType::F32, 64)).unwrap_err();
    assert!(error.contains("has no safetensors file") && error.contains(directory.path().to_str().unwrap()), "{error}");
    // Several without an index are all of them, and an error about none in particular names the directory.
    fs::rename(path("model.bin"), path("a.safetensors")).unwrap();
    safetensors::serialize_to_file(std::iter::empty::<(&str, TensorView<'_>)>(), None, &path("b.safetensors")).unwrap();
    assert_eq!(check(directory.path(), &options(DType::F32, 64)), Ok(()));
    let mut config: Value = serde_json::from_slice(&fs::read(path("config.json")).unwrap()).unwrap();
    config["num_hidden_layers"] = json!(3);
    fs::write(path("config.json"), config.to_string()).unwrap();
    let error = check(directory.path(), &options(DType::F32, 64)).unwrap_err();
    assert!(error.starts_with(&format!("{}: the tensor model.layers.2.", directory.path().display())), "{error}");
}

#[cfg(unix)]
#[test]
fn a_pipe_that_is_called_as_a_gguf_file_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("a.gguf");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let options = HubOptions::from_variables(None, |_| None);
    let error = |path: &Path| hub::resolve(path.to_str().unwrap(), &options, &mut |_| ()).unwrap_err().to_string();
    let place = directory.path().display();
    assert_eq!(
        error(directory.path()),
        format!("{place}: it holds a.gguf, which cannot be read: it is not a regular file")
    );
    assert_eq!(error(&pipe), format!("{place}/a.gguf: it is not a regular file"));
    // Beside a model it is no model.
    fs::write(directory.path().join("b.gguf"), "").unwrap();
    let found = hub::resolve(directory.path().to_str().unwrap(), &options, &mut |_| ()).unwrap();
    assert_eq!(found, directory.path().join("b.gguf"));
}
