//! Layers that share an earlier layer's KV cache against a model without sharing whose layers have the very same keys and values.
//!
//! The model has four layers. Layers 1 and 2 add nothing to the residual stream, and layers 1, 2 and 3 have the same input norm and
//! the same projections to keys and values, so the caches of the three hold the same: whether layers 2 and 3 have caches of
//! their own or read an earlier one's must not change a bit. In the shared models their weights for keys and values do not exist.

use crate::common::{Sequence, Tensors, golden, load_checkpoint, metal, options, rewritten, step, tensors_of};
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::path::Path;
use vllm_apple_cpu::CpuBackend;
use vllm_apple_model::{Checkpoint, ModelExecutor};
use vllm_apple_ops::{Backend, DType};

const KEYS_AND_VALUES: [&str; 3] = ["self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm."];

/// Four layers from the first two of a golden checkpoint, the last `shared` of them without weights for keys and values.
fn write_checkpoint(name: &str, shared: usize, directory: &Path) {
    let source = tensors_of(&golden(&format!("models/{name}")));
    let layer = |i: usize| -> Tensors {
        let prefix = format!("model.layers.{i}.");
        source.iter().filter_map(|(n, t)| Some((n.strip_prefix(&prefix)?.to_owned(), t.clone()))).collect()
    };
    let (first, second) = (layer(0), layer(1));
    let mut layers = [first.clone(), second.clone(), first.clone(), first];
    for layer in &mut layers[2..] {
        for (name, tensor) in &second {
            if name.starts_with("input_layernorm") || KEYS_AND_VALUES.iter().any(|kv| name.starts_with(kv)) {
                layer.insert(name.clone(), tensor.clone());
            }
        }
    }
    for layer in &mut layers[1..3] {
        for (name, tensor) in layer {
            if name.starts_with("self_attn.o_proj") || name.contains("down_proj") {
                tensor.2.fill(0);
            }
        }
    }
    for layer in &mut layers[4 - shared..] {
        layer.retain(|name, _| !KEYS_AND_VALUES.iter().any(|kv| name.starts_with(kv)));
    }
    let mut tensors: Tensors = source.into_iter().filter(|(name, _)| !name.starts_with("model.layers.")).collect();
    for (i, layer) in layers.into_iter().enumerate() {
        tensors.extend(layer.into_iter().map(|(name, tensor)| (format!("model.layers.{i}.{name}"), tensor)));
    }
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &directory.join("model.safetensors")).unwrap();
    let config = std::fs::read(golden(&format!("models/{name}/config.json"))).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["num_hidden_layers"] = json!(4);
    config["num_kv_shared_layers"] = json!(shared);
    // The same window in every layer.
    config.as_object_mut().unwrap().remove("layer_types");
    config["use_sliding_window"] = json!(false);
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
}

fn load<B: Backend>(backend: B, name: &str, shared: usize, dtype: DType) -> ModelExecutor<B> {
    let directory = tempfile::tempdir().unwrap();
    write_checkpoint(name, shared, directory.path());
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    load_checkpoint(backend, &checkpoint, &options(dtype, 128)).unwrap()
}

/// Logits of two sequences, computed in chunks and together.
fn logits<B: Backend>(model: &mut ModelExecutor<B>) -> Vec<f32> {
    let sequence = |seed: u32, len: u32, blocks: [u32; 3]| Sequence {
        tokens: (0..len).map(|i| (i * 37 + seed) % 440).collect(),
        computed: 0,
        blocks: blocks.to_vec(),
    };
    let mut sequences = [sequence(3, 45, [5, 1, 9]), sequence(8, 38, [2, 7, 0])];
    let mut all = Vec::new();
    for chunks in [vec![(0, 20)], vec![(1, 37), (0, 24)], vec![(0, 1), (1, 1)]] {
        all.extend(step(model, &mut sequences, &chunks).into_iter().flatten().flatten());
    }
    all
}

#[test]
fn sharing_a_cache_of_the_same_content_changes_nothing() {
    // Plain; with norms of queries and keys; with a window; with biases.
    for name in ["llama", "qwen3", "mistral", "qwen2"] {
        for dtype in DType::FLOATS {
            check(|| CpuBackend::new(Some(2)), name, dtype);
        }
    }
}

#[test]
fn nor_does_it_on_the_software_metal_device() {
    check(metal, "qwen3", DType::BF16);
    check(metal, "mistral", DType::F16);
}

fn check<B: Backend>(backend: impl Fn() -> B, name: &str, dtype: DType) {
    let expected = logits(&mut load(backend(), name, 0, dtype));
    assert!(expected.iter().all(|l| l.is_finite()));
    for shared in 1..=2 {
        let got = logits(&mut load(backend(), name, shared, dtype));
        let same = got.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same && got.len() == expected.len(), "{name} {dtype}, {shared} layers share");
    }
}

#[test]
fn the_plan_counts_only_caches_that_exist() {
    let plans =
        [0, 1, 2].map(|shared| load(CpuBackend::new(Some(1)), "qwen3", shared, DType::F32).memory_plan().clone());
    let per_block = plans.each_ref().map(|plan| plan.kv_cache / plan.info.num_blocks as u64);
    assert_eq!(per_block.map(|bytes| bytes * 4), [4, 3, 2].map(|caches| per_block[0] * caches));
    assert!(plans[0].weights > plans[1].weights && plans[1].weights > plans[2].weights);
}

/// Transformers does not know the field in these families: whoever leaves such weights out computes another model.
#[test]
fn keys_and_values_of_layers_that_share_are_refused_however_they_are_spelled() {
    let checked = |name: &str, change: fn(&mut Tensors)| {
        let directory = rewritten(name, |config| config["num_kv_shared_layers"] = json!(1), change);
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        checkpoint.check(&CpuBackend::new(Some(1)), &options(DType::F32, 64)).map_err(|error| error.to_string())
    };
    for name in ["compressed-w4a16", "gptq-act-order", "fp8-block", "mlx-affine"] {
        let error = checked(name, |_| ()).unwrap_err();
        for words in ["config.json: num_kv_shared_layers must be 0", "model.layers.1.self_attn.k_proj.", "got 1"] {
            assert!(error.contains(words), "{name}: {error}");
        }
        let without = |tensors: &mut Tensors| {
            let is_unread = |name: &str| KEYS_AND_VALUES.iter().any(|kv| name.contains(&format!(".1.{kv}")));
            let all = tensors.len();
            tensors.retain(|name, _| !is_unread(name));
            assert!(all - tensors.len() >= 4, "codes and scales of two matrices");
        };
        assert_eq!(checked(name, without), Ok(()), "{name}");
    }
}
