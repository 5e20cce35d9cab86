//! Damaged quantised checkpoints: one error that names the file, or a model with other numbers, and never a panic.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use vllm_apple_cpu::CpuBackend;
use vllm_apple_executor::{Batch, Executor};
use vllm_apple_model::{Checkpoint, LoadOptions};

use crate::common::{golden_of, load_checkpoint, quantised_models, resolve, rewritten};

/// A multiplicative generator (Knuth's MMIX constants), of whose numbers the upper bits are taken.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((u128::from(self.0) * n as u128) >> 64) as usize
    }

    fn one_of<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

/// A file's bytes, some of them changed, cut or put elsewhere: half of the time before `header`, where everything has a meaning.
fn damage_bytes(bytes: &mut Vec<u8>, header: usize, random: &mut Random) {
    let reach = [header, bytes.len()][random.below(2)].max(16) - 8;
    let at = random.below(reach);
    match random.below(5) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.one_of(&[0, 1, b'0', b'9', b'"', b'[', 0x7f, 0x80, 0xff]),
        2 => {
            let number = random.one_of(&[0, 1, 1 << 31, 1 << 32, u64::MAX / 2, u64::MAX - 31, u64::MAX]);
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        3 => {
            let from = random.below(reach);
            bytes.copy_within(from..from + 8, at);
        }
        _ => bytes.truncate(random.below(bytes.len())),
    }
}

/// Types of as many bytes.
const ALIKE: [&[Dtype]; 4] = [
    &[Dtype::U8, Dtype::I8, Dtype::F8_E4M3, Dtype::F8_E5M2, Dtype::BOOL],
    &[Dtype::F16, Dtype::BF16, Dtype::I16, Dtype::U16],
    &[Dtype::F32, Dtype::I32, Dtype::U32],
    &[Dtype::F64, Dtype::I64, Dtype::U64],
];

/// Another shape of as many elements.
fn reshaped(shape: &[usize], random: &mut Random) -> Vec<usize> {
    let all = shape.iter().product::<usize>();
    match random.below(5) {
        0 => shape.iter().rev().copied().collect(),
        1 => vec![all],
        2 => [&[1], shape].concat(),
        3 => [shape, &[1]].concat(),
        _ => vec![all / 2, 2],
    }
}

/// A sound file of safetensors that says something else: of one tensor another type, shape, length or name, other numbers, or not the tensor.
fn damage_tensors(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let file = SafeTensors::deserialize(bytes).unwrap();
    let mut tensors: BTreeMap<_, _> = file
        .tensors()
        .into_iter()
        .map(|(name, tensor)| (name, (tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec())))
        .collect();
    let names: Vec<String> = tensors.keys().cloned().collect();
    let name = random.one_of(&names);
    let (mut dtype, mut shape, mut data) = tensors.remove(&name).unwrap();
    let row = data.len() / shape.first().copied().unwrap_or(1).max(1);
    let mut new_name = name.clone();
    match random.below(8) {
        0 => dtype = random.one_of(ALIKE.iter().find(|types| types.contains(&dtype)).unwrap()),
        1 if shape.len() < 2 || shape.iter().product::<usize>() % 2 == 0 => shape = reshaped(&shape, random),
        2 if shape.first().is_some_and(|&rows| rows > 0) => {
            let rows = random.below(shape[0]);
            (shape[0], data) = (rows, data[..rows * row].to_vec());
        }
        3 if !shape.is_empty() => {
            shape[0] += 1;
            data.resize(data.len() + row, 0x11);
        }
        4 => new_name = random.one_of(&names),
        5 => return serialized(&tensors),
        6 => data.fill(random.one_of(&[0, 0x7f, 0x80, 0xff])),
        _ => {
            for _ in 0..4 {
                let at = random.below(data.len().max(1));
                data.get_mut(at).into_iter().for_each(|byte| *byte = random.one_of(&[0, 0x7f, 0x80, 0xfe, 0xff]));
            }
        }
    }
    tensors.insert(new_name, (dtype, shape, data));
    serialized(&tensors)
}

fn serialized(tensors: &BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>) -> Vec<u8> {
    let views = tensors.iter().filter_map(|(name, (dtype, shape, data))| {
        // Shapes that do not fit their bytes are what `damage_bytes` makes.
        Some((name, TensorView::new(*dtype, shape.clone(), data).ok()?))
    });
    safetensors::serialize(views, None).unwrap()
}

/// config.json with another value somewhere.
fn damage_config(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut config: Value = serde_json::from_slice(bytes).unwrap();
    let mut pointer = String::new();
    while let Some(Value::Object(fields)) = config.pointer(&pointer)
        && !fields.is_empty()
    {
        let names: Vec<&String> = fields.keys().collect();
        // What says how weights are quantised, more often than the rest.
        let said = names.iter().find(|name| name.starts_with("quantization")).filter(|_| random.below(2) == 0);
        let name = said.copied().unwrap_or_else(|| random.one_of(&names));
        pointer = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
    }
    *config.pointer_mut(&pointer).unwrap() = random.one_of(&[
        json!(null),
        json!(0),
        json!(-1),
        json!(3),
        json!(64),
        json!(u64::MAX),
        json!(1e300),
        json!(0.5),
        json!(""),
        json!("awq"),
        json!("fp8"),
        json!("pack-quantized"),
        json!([]),
        json!([0, 0]),
        json!({}),
        json!(true),
    ]);
    config.to_string().into_bytes()
}

/// Where a file's data begin, or where to look for what a file of text says.
fn header(path: &Path, bytes: &[u8]) -> usize {
    match path.extension().and_then(|end| end.to_str()) {
        Some("safetensors") => 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize,
        // Tokens and fields, and names, types and places of tensors, which the first kilobytes of these small files hold.
        Some("gguf") => bytes.len().min(24 << 10),
        _ => bytes.len(),
    }
}

/// One file of a checkpoint, damaged in one way.
fn damage(path: &Path, bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let kind = path.extension().and_then(|end| end.to_str());
    let mut damaged = match kind {
        Some("safetensors") if random.below(2) == 0 => return damage_tensors(bytes, random),
        Some("json") if random.below(4) > 0 => return damage_config(bytes, random),
        _ => bytes.to_vec(),
    };
    damage_bytes(&mut damaged, header(path, bytes), random);
    damaged
}

/// Opens, loads and runs a model: whether that went well, or one line about it.
fn run(path: &Path) -> Result<(), String> {
    let checkpoint = Checkpoint::open(path).map_err(|error| error.to_string())?;
    let options = LoadOptions {
        max_model_len: Some(32),
        max_num_seqs: 1,
        max_num_batched_tokens: Some(16),
        ..LoadOptions::default()
    };
    checkpoint.check(&CpuBackend::new(Some(1)), &options).map_err(|error| error.to_string())?;
    let mut model =
        load_checkpoint(CpuBackend::new(Some(1)), &checkpoint, &options).map_err(|error| error.to_string())?;
    let mut batch = Batch::default();
    batch.clear(1);
    batch.push_request(&[1, 2, 0], 0, &[0], model.info().block_size, 3);
    // Weights that are other numbers may have no logits, which is an error of its own.
    let _ = model.forward(&batch);
    Ok(())
}

/// Damages each quantised checkpoint so many times, and one of floats whose experts are two tensors a layer; of all, how many are refused.
fn damaged(times: usize) -> (usize, usize) {
    let (mut all, mut refused) = (0, 0);
    for (seed, name) in (1..).zip(quantised_models().into_iter().chain(["gpt-oss".to_owned()])) {
        let from = golden_of("models", &name);
        let first = resolve(&from);
        let directory = tempfile::tempdir().unwrap();
        let mut files: Vec<(PathBuf, Vec<u8>)> = Vec::new();
        for entry in fs::read_dir(&from).unwrap() {
            let path = entry.unwrap().path();
            files.push((directory.path().join(path.file_name().unwrap()), fs::read(&path).unwrap()));
        }
        files.sort();
        files.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        let model = match first.is_dir() {
            true => directory.path().to_owned(),
            false => directory.path().join(first.file_name().unwrap()),
        };
        run(&model).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut random = Random(seed);
        for turn in 0..times {
            let (path, sound) = &files[random.below(files.len())];
            let bytes = damage(path, sound, &mut random);
            fs::write(path, &bytes).unwrap();
            let what = format!("{name}, turn {turn}, {}", path.display());
            let outcome = catch_unwind(AssertUnwindSafe(|| run(&model))).unwrap_or_else(|_| panic!("{what}: a panic"));
            if let Err(error) = outcome {
                // A file, a tensor of which there is one, or an option that was too much for what the file says now.
                let place = directory.path().to_str().unwrap();
                let tensors =
                    ["model.layers.", "model.embed_tokens", "model.norm", "lm_head", "blk.", "token_embd", "output"];
                let names = tensors.iter().chain(&[place, "`max_model_len`"]).any(|word| error.contains(word));
                assert!(names && error.len() < 2000 && !error.contains('\n'), "{what}: {error}");
                refused += 1;
            }
            all += 1;
            fs::write(path, sound).unwrap();
        }
    }
    (all, refused)
}

#[test]
fn a_part_that_is_missing_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let first = "model-00001-of-00003.gguf";
    fs::copy(golden_of("models", "quantised/gguf-qwen2").join(first), directory.path().join(first)).unwrap();
    let error = Checkpoint::open(&directory.path().join(first)).map(drop).unwrap_err().to_string();
    let path = directory.path().display();
    let expected =
        format!("{path}/{first}: cannot be read as a GGUF file: its part {path}/model-00002-of-00003.gguf: ");
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn a_field_of_a_gguf_file_has_its_name_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    let original = fs::read(golden_of("models", "quantised/gguf-llama").join("model.gguf")).unwrap();
    let refused = |key: &str, name: &str, value: u32| {
        let mut bytes = original.clone();
        let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).unwrap();
        bytes[at..at + key.len()].copy_from_slice(name.as_bytes());
        // A type of four bytes, and then the number.
        bytes[at + key.len() + 4..][..4].copy_from_slice(&value.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        Checkpoint::open(&path).map(drop).unwrap_err().to_string()
    };
    let error = refused("llama.attention.head_count_kv", "llama.attention.head_count_kv", 0);
    assert_eq!(error, format!("{}: llama.attention.head_count_kv must be at least 1, got 0", path.display()));
    // Fields that nobody heeds are refused, unless they say what is so without them.
    let error = refused("llama.attention.key_length", "llama.rope.dimension_count", 4);
    assert!(error.contains("llama.rope.dimension_count is 4, which is not supported: a head has"), "{error}");
    let error = refused("llama.attention.layer_norm_rms_epsilon", "llama.attention.layer_norm_rms_epsilom", 0);
    assert!(error.ends_with("it has no llama.attention.layer_norm_rms_epsilon"), "{error}");
    let error = refused("llama.attention.value_length", "llama.attn_logit_softcapping", 30);
    assert!(error.ends_with("llama.attn_logit_softcapping is 30, which is not supported"), "{error}");
    let error = refused("llama.block_count", "llama.logit_scale", 2);
    assert!(error.contains("llama.logit_scale is 2, which is not supported"), "{error}");
}

#[test]
fn a_tensor_of_a_gguf_file_has_its_name_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    let refused = |model: &str, from: &str, to: &[u8]| {
        let mut bytes = fs::read(golden_of("models", model).join("model.gguf")).unwrap();
        let at = bytes.windows(from.len()).rposition(|window| window == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to);
        fs::write(&path, bytes).unwrap();
        let error = run(&path).unwrap_err();
        let said = error.strip_prefix(&format!("{}: ", path.display()));
        said.unwrap_or_else(|| panic!("{error}")).to_owned()
    };
    for (model, name) in [
        ("gguf-llama", "output_norm.weight"),
        ("gguf-llama", "blk.0.attn_norm.weight"),
        ("gguf-llama", "blk.1.attn_k.weight"),
        ("gguf-llama", "blk.1.ffn_gate.weight"),
        ("gguf-qwen3-moe", "blk.0.ffn_gate_inp.weight"),
        ("gguf-qwen3-moe", "blk.1.ffn_up_exps.weight"),
        ("gguf-mixtral", "blk.1.ffn_down_exps.weight"),
        ("gguf-qwen2-moe", "blk.0.ffn_gate_shexp.weight"),
        ("gguf-gpt-oss", "blk.1.ffn_gate_exps.weight"),
        ("gguf-gpt-oss", "blk.1.attn_sinks.weight"),
        ("gguf-gpt-oss", "blk.0.post_attention_norm.weight"),
        ("gguf-gemma3", "blk.0.post_attention_norm.weight"),
        ("gguf-qwen3", "blk.0.ffn_norm.weight"),
    ] {
        let other = name.replace("_", "-");
        let error = refused(&format!("quantised/{model}"), name, other.as_bytes());
        assert_eq!(error, format!("the tensor {name} is missing"), "{model}");
    }
    // Behind the name of a field are a type of four bytes and the number.
    let number = |field: &str, number: u32| [field.as_bytes(), &[4, 0, 0, 0], &number.to_le_bytes()].concat();
    let error = refused("quantised/gguf-llama", "llama.block_count", &number("llama.block_count", 1));
    assert!(error.contains("of its tensors (blk.1.attn_k.weight, "), "{error}");
    let field = "llama.feed_forward_length";
    let error = refused("quantised/gguf-llama", field, &number(field, 64));
    assert!(error.starts_with("the tensor blk.0.ffn_") && error.contains(" has shape ["), "{error}");
}

/// The tensor, also where a weight is made of several matrices.
#[test]
fn scales_that_are_no_numbers_are_named() {
    let attention = |part: &str| format!("model.layers.1.self_attn.{part}");
    let expert = "model.layers.1.mlp.experts.2.up_proj.weight_scale".to_owned();
    for (model, tensor, at, bytes) in [
        ("awq", attention("k_proj.scales"), 6, &f16::NAN.to_le_bytes()[..]),
        ("gptq", attention("v_proj.scales"), 0, &f16::INFINITY.to_le_bytes()),
        ("compressed-w4a16", attention("q_proj.weight_scale"), 2, &bf16::NAN.to_le_bytes()),
        ("mlx-affine", attention("v_proj.biases"), 2, &bf16::NEG_INFINITY.to_le_bytes()),
        ("mlx-mxfp4", attention("q_proj.scales"), 3, &[0xff]),
        ("fp8-block", attention("o_proj.weight_scale_inv"), 0, &f32::NAN.to_le_bytes()),
        ("fp8-block", attention("o_proj.weight"), 9, &[0xff]),
        ("fp8-tensor", expert, 0, &f32::NAN.to_le_bytes()),
        ("modelopt-nvfp4", attention("k_proj.weight_scale"), 1, &[0x7f]),
        ("mxfp4", "model.layers.1.mlp.experts.down_proj_scales".to_owned(), 5, &[0xff]),
    ] {
        let directory = rewritten(
            model,
            |_| (),
            |tensors| {
                let (_, _, content) = tensors.get_mut(&tensor).unwrap_or_else(|| panic!("{model} has no {tensor}"));
                content[at..at + bytes.len()].copy_from_slice(bytes);
            },
        );
        let error = run(directory.path()).unwrap_err();
        let file = directory.path().join("model.safetensors");
        let expected =
            format!("{}: the tensor {tensor} of a quantised matrix makes a group's scale or bias ", file.display());
        assert!(error.starts_with(&expected) && error.contains("download it again"), "{model}: {error}");
    }
    // The last matrices of the last file, whose blocks hold their scales.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    let mut bytes = fs::read(golden_of("models", "quantised/gguf-qwen3").join("model.gguf")).unwrap();
    let end = bytes.len() - 4096;
    bytes[end..].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let error = run(&path).unwrap_err();
    let expected = format!("{}: the tensor blk.1.", path.display());
    assert!(
        error.starts_with(&expected) && error.contains(".weight of a quantised matrix makes a group's scale"),
        "{error}"
    );
}

#[test]
fn damaged_quantised_checkpoints_never_panic() {
    let (all, refused) = damaged(12);
    assert!(refused > all / 4, "of {all} damaged checkpoints {refused} are refused");
}

#[test]
#[ignore = "takes minutes: `cargo test --release -p vllm-apple-model --test models -- --ignored damaged`"]
fn thousands_of_damaged_quantised_checkpoints_never_panic() {
    let (all, refused) = damaged(2000);
    println!("{refused} of {all} damaged checkpoints are refused");
    assert!(all >= 40_000 && refused > all / 4, "of {all} damaged checkpoints {refused} are refused");
}
