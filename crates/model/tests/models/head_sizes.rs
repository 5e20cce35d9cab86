//! Models with heads, and caches with blocks, that attention's Metal kernels do not have: that is an error, unless the user wants attention
//! on the host, which then computes what the CPU backend does.

use crate::common::{Sequence, golden, load_checkpoint, options, step};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::path::Path;
use vllm_apple_cpu::CpuBackend;
use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_model::{Checkpoint, LoadOptions, ModelExecutor};
use vllm_apple_ops::{Backend, DType};

/// Qwen3's golden configuration with one layer of random weights and heads of `head_dim` elements.
fn write_checkpoint(head_dim: usize, directory: &Path) {
    let config = std::fs::read(golden("models/qwen3/config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["num_hidden_layers"] = json!(1);
    config["head_dim"] = json!(head_dim);
    config.as_object_mut().unwrap().remove("layer_types");
    let size = |field: &str| config[field].as_u64().unwrap() as usize;
    let (hidden, intermediate, vocab) = (size("hidden_size"), size("intermediate_size"), size("vocab_size"));
    let (q, kv) = (size("num_attention_heads") * head_dim, size("num_key_value_heads") * head_dim);
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    for (name, shape) in [
        ("self_attn.q_proj", vec![q, hidden]),
        ("self_attn.k_proj", vec![kv, hidden]),
        ("self_attn.v_proj", vec![kv, hidden]),
        ("self_attn.o_proj", vec![hidden, q]),
        ("self_attn.q_norm", vec![head_dim]),
        ("self_attn.k_norm", vec![head_dim]),
        ("mlp.gate_proj", vec![intermediate, hidden]),
        ("mlp.up_proj", vec![intermediate, hidden]),
        ("mlp.down_proj", vec![hidden, intermediate]),
        ("input_layernorm", vec![hidden]),
        ("post_attention_layernorm", vec![hidden]),
    ] {
        shapes.push((format!("model.layers.0.{name}.weight"), shape));
    }
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let scale = if shape.len() == 1 { 1.0 } else { 2.0 / (shape[1] as f32).sqrt() };
            let bytes = (0..shape.iter().product()).flat_map(|_| (random() * scale).to_le_bytes()).collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &directory.join("model.safetensors")).unwrap();
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
}

fn load<B: Backend>(backend: B, directory: &Path, options: &LoadOptions) -> ModelExecutor<B> {
    let checkpoint = Checkpoint::open(directory).unwrap();
    checkpoint.check(&backend, options).unwrap();
    let mut model = load_checkpoint(backend, &checkpoint, options).unwrap();
    model.warm_up(&mut |_| {}).unwrap();
    model
}

/// Logits of a prompt in two chunks, and of a decode.
fn logits<B: Backend>(model: &mut ModelExecutor<B>) -> Vec<f32> {
    let tokens = (0..40).map(|i| (i * 37 + 3) % 440).collect();
    let blocks = [5, 1, 9, 2, 7][..40usize.div_ceil(model.memory_plan().info.block_size)].to_vec();
    let mut sequences = [Sequence { tokens, computed: 0, blocks }];
    let chunks = [22, 17, 1];
    chunks.iter().flat_map(|&len| step(model, &mut sequences, &[(0, len)])).flatten().flatten().collect()
}

/// Without attention the device's logits in blocks of `block_size` are the CPU's, and the host has computed `ops` besides; with it, there is
/// an error.
fn check(head_dim: usize, block_size: usize, ops: &[&str], reason: &str) {
    let directory = tempfile::tempdir().unwrap();
    write_checkpoint(head_dim, directory.path());
    let options = options(DType::F32, 40);
    let expected = logits(&mut load(CpuBackend::new(Some(2)), directory.path(), &options));
    let options = LoadOptions { block_size, ..options };
    let device = |attention| {
        let options = MetalOptions { attention, ..MetalOptions::default() };
        MetalBackend::new(SoftwareGpu::fast().unwrap(), options).unwrap()
    };
    let backend = device(false);
    let mut model = load(backend, directory.path(), &options);
    let got = logits(&mut model);
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |m, l| m.max(l.abs()));
    assert!(largest > 0.1 && largest.is_finite(), "{largest}");
    for (got, expected) in got.iter().zip(&expected) {
        assert!((got - expected).abs() <= 1e-5 * largest, "{got} {expected}, of {largest}");
    }
    let fallbacks = model.backend().fallbacks();
    assert!(fallbacks.iter().map(|(kind, _)| kind.op).eq(ops.iter().copied()), "{fallbacks:?}");

    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let error = checkpoint.check(&device(true), &options).unwrap_err().to_string();
    assert!(error.contains(reason) && error.contains("use `device` cpu"), "{error}");
}

#[test]
fn heads_that_are_too_large_for_the_kernels() {
    check(320, 16, &["qk_norm"], "heads of 320 elements; multiples of 8 up to 256 work");
}

#[test]
fn blocks_that_the_kernels_do_not_take() {
    check(32, 8, &[], "blocks of 8 tokens; multiples of 16 work");
    check(32, 24, &[], "blocks of 24 tokens; multiples of 16 work");
}
