//! Peak memory of loading. A test binary of its own: the measure is of the whole process.
#![cfg(target_os = "linux")]

use safetensors::tensor::{Dtype, TensorView};
use std::fs;
use vllm_apple_cpu::CpuBackend;
use vllm_apple_model::{Checkpoint, LoadOptions, LoadedModel};

/// Bytes that this process ever had resident at once.
fn peak_resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

const HIDDEN: usize = 1024;
const LAYERS: usize = 8;

/// About 160 MiB of zeros: only their size matters.
fn write_checkpoint(directory: &std::path::Path) {
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![512, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for i in 0..LAYERS {
        let mut add = |name: &str, shape: Vec<usize>| shapes.push((format!("model.layers.{i}.{name}.weight"), shape));
        for name in ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"] {
            add(name, vec![HIDDEN, HIDDEN]);
        }
        add("mlp.gate_proj", vec![2 * HIDDEN, HIDDEN]);
        add("mlp.up_proj", vec![2 * HIDDEN, HIDDEN]);
        add("mlp.down_proj", vec![HIDDEN, 2 * HIDDEN]);
        add("input_layernorm", vec![HIDDEN]);
        add("post_attention_layernorm", vec![HIDDEN]);
    }
    let zeros = vec![0u8; 2 * HIDDEN * HIDDEN * 2];
    let views = shapes.iter().map(|(name, shape)| {
        let bytes = 2 * shape.iter().product::<usize>();
        (name.as_str(), TensorView::new(Dtype::BF16, shape.clone(), &zeros[..bytes]).unwrap())
    });
    safetensors::serialize_to_file(views, None, &directory.join("model.safetensors")).unwrap();
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": 512, "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": 16, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "max_position_embeddings": 64,
    });
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
}

#[test]
fn loading_peaks_below_1_3_times_the_weights_and_the_cache() {
    let directory = tempfile::tempdir().unwrap();
    write_checkpoint(directory.path());
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let options = LoadOptions { max_num_seqs: 2, max_num_batched_tokens: Some(32), ..LoadOptions::default() };
    let before = peak_resident();
    let loaded = LoadedModel::load(CpuBackend::new(Some(2)), &checkpoint, &options).unwrap();
    let num_blocks = loaded.num_blocks().unwrap();
    let model = loaded.allocate(num_blocks).unwrap();
    let grown = peak_resident() - before;
    let plan = model.memory_plan();
    let limit = plan.weights * 13 / 10 + plan.kv_cache;
    assert!(plan.weights > 150 << 20);
    assert!(grown < limit, "{grown} bytes for weights of {} and a cache of {}", plan.weights, plan.kv_cache);
}
