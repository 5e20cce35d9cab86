//! Weights that are quantised at load: the model computes what its dequantised weights say, which are f32 here.

use std::collections::HashMap;
use std::path::Path;

use half::f16;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use tempfile::TempDir;
use vllm_apple_cpu::CpuBackend;
use vllm_apple_executor::Executor;
use vllm_apple_model::{Checkpoint, LoadError, LoadOptions, ModelExecutor, Quantization, QuantizationOption};
use vllm_apple_ops::{Activations, Backend, DType};

use crate::common::{
    Sequence, golden, golden_of, load_checkpoint, load_on, metal, options, quantised_models, resolve, step,
};

/// A tied table, mixtures of experts with and without a shared one, biases, and rows that are no whole groups.
const MODELS: [&str; 4] = ["qwen2", "gemma3", "qwen3-moe", "qwen2-moe"];
/// Experts that are tensors of all of them, whose inputs come before their outputs.
const JOINT: &str = "gpt-oss";

/// What a group of 32 becomes, written down for the second time: nearest multiples of a float16 scale.
fn dequantise(quantization: Quantization, group: &[f32]) -> Vec<f32> {
    // The first of those that are equal.
    let largest = group.iter().copied().reduce(|a, b| if b.abs() > a.abs() { b } else { a }).unwrap();
    let (scale, least, most) = match quantization {
        Quantization::Int8 => (largest.abs() / 127.0, -128.0, 127.0),
        Quantization::Int4 => (largest / -8.0, -8.0, 7.0),
    };
    let scale = f16::from_f32(scale).to_f32();
    let nearest = |v: &f32| if scale == 0.0 { 0.0 } else { scale * (v / scale).round_ties_even().clamp(least, most) };
    group.iter().map(nearest).collect()
}

/// The checkpoint with the numbers that its quantised matrices stand for: those of rows of so many elements, by name.
fn dequantised(
    name: &str,
    quantization: Quantization,
    is_quantised: impl Fn(&str, usize) -> bool,
) -> (TempDir, Checkpoint) {
    let from = golden(&format!("models/{name}"));
    let to = tempfile::tempdir().unwrap();
    std::fs::copy(from.join("config.json"), to.path().join("config.json")).unwrap();
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut floats: HashMap<String, (Vec<usize>, Vec<u8>)> = HashMap::new();
    for (name, tensor) in tensors.tensors() {
        let dtype = match tensor.dtype() {
            Dtype::BF16 => DType::BF16,
            Dtype::F16 => DType::F16,
            _ => DType::F32,
        };
        let values = dtype.decode(tensor.data());
        let of_choice = ["mlp.gate.weight", "shared_expert_gate.weight", "mlp.router.weight", "_bias"];
        let chooses_experts = of_choice.iter().any(|end| name.ends_with(end));
        let values = match *tensor.shape() {
            [_, rows, cols] => {
                let one = |values: &[f32]| {
                    let columns = transposed(values, cols);
                    let groups = columns.chunks(rows).flat_map(|row| row.chunks(32));
                    let groups: Vec<f32> = groups.flat_map(|group| dequantise(quantization, group)).collect();
                    transposed(&groups, rows)
                };
                values.chunks(rows * cols).flat_map(one).collect()
            }
            [_, cols] if !chooses_experts && is_quantised(&name, cols) => {
                let groups = values.chunks(cols).flat_map(|row| row.chunks(32));
                groups.flat_map(|group| dequantise(quantization, group)).collect()
            }
            _ => values,
        };
        floats.insert(name, (tensor.shape().to_vec(), DType::F32.encode(&values)));
    }
    let views = floats
        .iter()
        .map(|(name, (shape, bytes))| (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &to.path().join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(to.path()).unwrap();
    (to, checkpoint)
}

/// Columns of rows of so many elements.
fn transposed(values: &[f32], cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|col| values.iter().skip(col).step_by(cols)).copied().collect()
}

fn logits<B: Backend>(mut model: ModelExecutor<B>, tokens: &[u32]) -> Vec<f32> {
    let blocks = (0..8).collect();
    let mut sequences = [Sequence { tokens: tokens.to_vec(), computed: 0, blocks }];
    assert!(model.info().num_blocks >= 8);
    step(&mut model, &mut sequences, &[(0, tokens.len())]).remove(0).concat()
}

fn mean_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>() / a.len() as f64
}

#[test]
fn a_quantised_model_is_its_dequantised_one() {
    let tokens: Vec<u32> = (0..70).map(|i| i * 131 % 400).collect();
    let cpu = || CpuBackend::new(Some(2));
    for name in MODELS.into_iter().chain([JOINT]) {
        let record = std::fs::read(golden(&format!("logits/{name}.json"))).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        let deviation = record["logits_std"].as_f64().unwrap();
        let floats = logits(load_on(cpu(), name, &options(DType::F32, 128)), &tokens);
        for quantization in [Quantization::Int8, Quantization::Int4] {
            let (_directory, checkpoint) = dequantised(name, quantization, |_, _| true);
            let expected = logits(load_checkpoint(cpu(), &checkpoint, &options(DType::F32, 128)).unwrap(), &tokens);
            let quantised = |dtype| {
                let options = LoadOptions { quantization: Some(quantization.into()), ..options(dtype, 128) };
                logits(load_on(cpu(), name, &options), &tokens)
            };
            let got = quantised(DType::F32);
            let largest = got.iter().zip(&expected).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
            let lost = mean_error(&expected, &floats);
            println!("{name} {quantization}: {largest:.1e}, quantisation itself costs {lost:.1e} of {deviation:.1e}");
            // The contract of every model in f32.
            assert!(largest < 1e-3 * deviation, "{name} {quantization}: {largest}");
            assert!(lost > 20.0 * mean_error(&got, &expected), "{name} {quantization}: nothing was quantised");
            // In 16 bits only activations are rounded. With weights of 16 bits as many numbers are rounded once more, as much and by
            // chance: squares of errors add up, and half is left without. Three quarters are the middle of that and of all. In mixtures it is
            // chance which of the two comes to choose another expert.
            if !name.ends_with("moe") && name != JOINT {
                let all_rounded = load_checkpoint(cpu(), &checkpoint, &options(DType::BF16, 128)).unwrap();
                let (rounded, all_rounded) = (quantised(DType::BF16), logits(all_rounded, &tokens));
                let [rounded, all_rounded] = [rounded, all_rounded].map(|got| mean_error(&got, &expected));
                println!(
                    "{name} {quantization} with bfloat16 activations: {rounded:.1e}, and such weights: {all_rounded:.1e}"
                );
                assert!(
                    rounded.powi(2) < 0.75 * all_rounded.powi(2),
                    "{name} {quantization}: {rounded}, with weights of 16 bits {all_rounded}"
                );
            }
        }
    }
}

/// Both round to as many steps: of a group of 32 weights, or of activations.
#[test]
fn activations_of_8_bits_cost_what_such_weights_do() {
    let tokens: Vec<u32> = (0..70).map(|i| i * 131 % 400).collect();
    for name in MODELS.into_iter().filter(|name| !name.ends_with("moe")) {
        let floats = logits(load_on(CpuBackend::new(Some(2)), name, &options(DType::F32, 128)), &tokens);
        let of = |activation_dtype| {
            let quantization = Some(Quantization::Int8.into());
            let options = LoadOptions { quantization, activation_dtype, ..options(DType::F32, 128) };
            logits(load_on(CpuBackend::new(Some(2)), name, &options), &tokens)
        };
        let [exact, rounded] = [Activations::Exact, Activations::Int8].map(of);
        let (of_weights, of_activations) = (mean_error(&exact, &floats), mean_error(&rounded, &exact));
        println!("{name}: weights {of_weights:.1e}, activations {of_activations:.1e}");
        // Weights are rounded to multiples of a scale that is rounded itself, and there is chance: half to twice as much.
        assert!((0.5..2.0).contains(&(of_activations / of_weights)), "{name}: {of_activations} and {of_weights}");
    }
}

#[test]
fn activations_are_rounded_only_where_that_can_be_done() {
    let check = |name: &str, quantization: Option<Quantization>| {
        let checkpoint = Checkpoint::open(&resolve(&golden_of("models", name))).unwrap();
        let quantization = quantization.map(Into::into);
        let options = LoadOptions { quantization, activation_dtype: Activations::Int8, ..options(DType::BF16, 64) };
        let on = |outcome: Result<(), LoadError>| outcome.err().map_or(String::new(), |error| error.to_string());
        [on(checkpoint.check(&CpuBackend::new(Some(1)), &options)), on(checkpoint.check(&metal(), &options))]
    };
    let [cpu, gpu] = check("qwen2", None);
    assert!(cpu.contains("`activation_dtype`") && cpu.contains("`quantization` int8 or int4"), "{cpu}");
    assert_eq!(cpu, gpu);
    for (name, quantization) in [
        ("qwen2", Some(Quantization::Int4)),
        ("quantised/gguf-llama", None),
        ("quantised/awq", None),
        ("quantised/mxfp4", None),
    ] {
        let [cpu, gpu] = check(name, quantization);
        assert_eq!(cpu, "", "{name}");
        assert!(gpu.contains("use `activation_dtype` auto or `device` cpu"), "{name}: {gpu}");
    }
    let [cpu, _] = check("quantised/fp8-block", None);
    assert!(cpu.contains("model.layers.0.") && cpu.contains("codes mean whole numbers"), "{cpu}");
}

#[test]
fn a_checkpoint_that_is_written_quantised_is_its_dequantised_one() {
    let tokens: Vec<u32> = (0..70).map(|i| i * 131 % 400).collect();
    let of = |checkpoint: &Checkpoint| {
        logits(load_checkpoint(CpuBackend::new(Some(2)), checkpoint, &options(DType::F32, 128)).unwrap(), &tokens)
    };
    for name in MODELS {
        let floats = Checkpoint::open(&golden(&format!("models/{name}"))).unwrap();
        for quantization in [Quantization::Int8, Quantization::Int4] {
            let directory = tempfile::tempdir().unwrap();
            let mut last = (0, 0);
            let mut on_progress = |done, total| last = (done, total);
            floats.write_quantized(directory.path(), quantization, &mut on_progress).unwrap();
            assert!(last.0 == last.1 && last.1 > 0, "{last:?}");
            let permissions = |name| std::fs::metadata(directory.path().join(name)).unwrap().permissions();
            assert_eq!(permissions("model.safetensors"), permissions("config.json"));
            // The rows of a table are quantised only when they are loaded, and not those that are no whole groups.
            let is_quantised = |name: &str, cols: usize| name.contains(".layers.") && cols.is_multiple_of(32);
            let (_directory, expected) = dequantised(name, quantization, is_quantised);
            let written = Checkpoint::open(directory.path()).unwrap();
            let (got, expected, floats) = (of(&written), of(&expected), of(&floats));
            assert!(mean_error(&expected, &floats) > 20.0 * mean_error(&got, &expected), "{name} {quantization}");
            let error = written.write_quantized(directory.path(), quantization, &mut |_, _| ()).unwrap_err();
            assert!(error.to_string().contains("quantised already"), "{error}");
        }
    }
}

#[test]
fn what_cannot_be_written_quantised_is_named() {
    let floats = |name: &str| Checkpoint::open(&golden(&format!("models/{name}"))).unwrap();
    let write = |checkpoint: &Checkpoint, to: &Path| {
        checkpoint.write_quantized(to, Quantization::Int4, &mut |_, _| ()).unwrap_err().to_string()
    };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("notes.txt"), "mine").unwrap();
    let error = write(&floats("qwen2"), directory.path());
    assert!(
        error.contains("is not empty, as it has notes.txt") && error.contains(directory.path().to_str().unwrap()),
        "{error}"
    );
    let error = write(&floats("qwen2"), &directory.path().join("notes.txt"));
    assert!(error.contains("notes.txt: cannot be written"), "{error}");

    // A layer that the configuration has and the file has not.
    let short = tempfile::tempdir().unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden("models/qwen2/config.json")).unwrap()).unwrap();
    config["num_hidden_layers"] = (config["num_hidden_layers"].as_u64().unwrap() + 1).into();
    std::fs::write(short.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(golden("models/qwen2/model.safetensors"), short.path().join("model.safetensors")).unwrap();
    let error = write(&Checkpoint::open(short.path()).unwrap(), &short.path().join("new"));
    assert!(error.contains("is missing") && !short.path().join("new").exists(), "{error}");

    // And one that the file has and the configuration has not.
    config["num_hidden_layers"] = (config["num_hidden_layers"].as_u64().unwrap() - 2).into();
    std::fs::write(short.path().join("config.json"), config.to_string()).unwrap();
    let error = write(&Checkpoint::open(short.path()).unwrap(), &short.path().join("new"));
    assert!(error.contains("belong to no part") && !short.path().join("new").exists(), "{error}");

    // Where another run writes.
    let busy = tempfile::tempdir().unwrap();
    let lock = std::fs::File::open(busy.path()).unwrap();
    lock.lock().unwrap();
    assert!(write(&floats("qwen2"), busy.path()).contains("another run writes there"));

    // No format that others read has such experts.
    let to = directory.path().join("new");
    let error = write(&floats(JOINT), &to);
    assert!(error.contains("mlp.experts.") && error.contains("a matrix of its own for each expert"), "{error}");
    assert!(!to.exists(), "nothing is left");

    // A weight that is no number.
    let broken = tempfile::tempdir().unwrap();
    let from = golden("models/qwen2");
    std::fs::copy(from.join("config.json"), broken.path().join("config.json")).unwrap();
    let mut bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let (header, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let (name, info) = metadata.tensors().into_iter().find(|(name, _)| name.ends_with("1.mlp.up_proj.weight")).unwrap();
    let dtype = if info.dtype == Dtype::BF16 { DType::BF16 } else { DType::F32 };
    let nan = dtype.encode(&[f32::NAN]);
    bytes[8 + header + info.data_offsets.0..][..nan.len()].copy_from_slice(&nan);
    std::fs::write(broken.path().join("model.safetensors"), bytes).unwrap();
    let error = write(&Checkpoint::open(broken.path()).unwrap(), &to);
    assert!(error.contains(&name) && error.contains("no numbers"), "{error}");
    assert!(!to.exists(), "nothing is left");
    let empty = tempfile::tempdir().unwrap();
    write(&Checkpoint::open(broken.path()).unwrap(), empty.path());
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0, "nothing is left in what was there");

    // What fails when weights and other files are written.
    let moved = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(from.join(name), moved.path().join(name)).unwrap();
    }
    let checkpoint = Checkpoint::open(moved.path()).unwrap();
    std::fs::remove_file(moved.path().join("config.json")).unwrap();
    let error = write(&checkpoint, &to);
    assert!(error.contains("config.json: cannot be read") && !to.exists(), "{error}");
}

#[test]
fn memory_is_planned_for_the_codes() {
    let path = golden("models/qwen2");
    let checkpoint = Checkpoint::open(Path::new(&path)).unwrap();
    let quantised = |quantization: Option<Quantization>| {
        let quantization = quantization.map(Into::into);
        LoadOptions { quantization, ..options(DType::BF16, 128) }
    };
    let bytes = |quantization| {
        let loaded = load_checkpoint(CpuBackend::new(Some(1)), &checkpoint, &quantised(quantization)).unwrap();
        loaded.memory_plan().weights as f64
    };
    let floats = bytes(None);
    for (quantization, share) in [(Quantization::Int8, 8.5 / 16.0), (Quantization::Int4, 4.5 / 16.0)] {
        let of_floats = bytes(Some(quantization)) / floats;
        assert!((of_floats / share - 1.0).abs() < 0.1, "{quantization}: {of_floats} of the floats' bytes");
        checkpoint.check(&metal(), &quantised(Some(quantization))).unwrap();
    }
}

/// Short rows are filled up to 128 elements on Metal.
#[test]
fn memory_is_planned_for_how_a_backend_lays_codes_out() {
    let checkpoint = Checkpoint::open(&resolve(&golden_of("models", "quantised/gguf-llama"))).unwrap();
    let options = options(DType::F32, 64);
    let cpu = load_checkpoint(CpuBackend::new(Some(1)), &checkpoint, &options).unwrap().memory_plan().weights;
    let gpu = load_checkpoint(metal(), &checkpoint, &options).unwrap().memory_plan().weights;
    assert!(cpu < gpu, "{cpu} bytes on CPUs, {gpu} on Metal");
}

/// Else the files of floats would be in memory beside the codes that are made of them.
#[test]
fn a_device_that_lays_codes_out_anew_keeps_no_files() {
    let load = |name: &str, quantization: Option<Quantization>| {
        let options = LoadOptions { quantization: quantization.map(Into::into), ..options(DType::F32, 64) };
        load_on(metal(), name, &options).backend().keeps_host_tensors()
    };
    assert!(load("llama", None), "floats are used where they are, if the file lies well");
    // What chooses experts is not quantised.
    assert!(!load("mixtral", Some(Quantization::Int4)));
    for name in quantised_models() {
        assert!(!load(&name, None), "{name}");
    }
}

/// What it asks for is checked where a model is examined, and where it is loaded without that.
#[test]
fn a_checkpoint_is_loaded_only_as_what_it_is() {
    for (name, is) in [("quantised/awq", "awq"), ("quantised/gguf-llama", "gguf"), ("qwen2", "int8 or int4")] {
        let checkpoint = Checkpoint::open(&resolve(&golden_of("models", name))).unwrap();
        let outcomes = |asked: &str| {
            let quantization = Some(asked.parse::<QuantizationOption>().unwrap());
            let options = LoadOptions { quantization, ..options(DType::F32, 64) };
            let backend = || CpuBackend::new(Some(1));
            [checkpoint.check(&backend(), &options).err(), load_checkpoint(backend(), &checkpoint, &options).err()]
        };
        for asked in ["awq", "gguf", "int4"] {
            for error in outcomes(asked) {
                let expected = (!is.contains(asked)).then_some(format!("{is},"));
                assert_eq!(error.is_some(), expected.is_some(), "{asked} for {name}: {error:?}");
                assert!(error.zip(expected).is_none_or(|(error, expected)| error.to_string().contains(&expected)));
            }
        }
    }
}
