//! What the tests of whole models share: the golden checkpoints, and sequences that are run chunk by chunk.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use tempfile::TempDir;
use vllm_apple_cpu::CpuBackend;
use vllm_apple_executor::{Batch, Executor};
use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_model::hub::{self, HubOptions};
use vllm_apple_model::{Checkpoint, LoadError, LoadOptions, LoadedModel, ModelExecutor};
use vllm_apple_ops::{Backend, DType, Limits};

/// A model on the CPU.
pub type Model = ModelExecutor<CpuBackend>;

/// All golden checkpoints of floats.
pub fn models() -> Vec<String> {
    let entries = std::fs::read_dir(golden("models")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.len() >= 9, "one checkpoint per family at least: {names:?}");
    names
}

/// All of quantised weights, each with its set: `quantised/awq`.
pub fn quantised_models() -> Vec<String> {
    let entries = std::fs::read_dir(golden("quantised/models")).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = entries.map(|entry| format!("quantised/{}", name(entry))).collect();
    names.sort();
    assert!(names.len() >= 16, "one checkpoint per spelling at least: {names:?}");
    names
}

/// A golden checkpoint, or another `kind` of file about it.
pub fn golden_of(kind: &str, name: &str) -> PathBuf {
    let (set, name) = name.rsplit_once('/').unwrap_or(("", name));
    golden(set).join(kind).join(name)
}

/// A path within `tests/golden`.
pub fn golden(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(path)
}

/// Tensors by name: type, shape and bytes.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// All tensors of a directory.
pub fn tensors_of(directory: &Path) -> Tensors {
    let owned = |tensor: TensorView<'_>| (tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec());
    let mut tensors = Tensors::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "safetensors") {
            let bytes = std::fs::read(path).unwrap();
            let of_file = SafeTensors::deserialize(&bytes).unwrap().tensors();
            tensors.extend(of_file.into_iter().map(|(name, tensor)| (name, owned(tensor))));
        }
    }
    tensors
}

/// A golden checkpoint of quantised weights with another `config.json` and other tensors.
pub fn rewritten(
    name: &str,
    configure: impl FnOnce(&mut serde_json::Value),
    change: impl FnOnce(&mut Tensors),
) -> TempDir {
    rewritten_at(&golden(&format!("quantised/models/{name}")), configure, change)
}

/// The same of any checkpoint, in one file.
pub fn rewritten_at(
    from: &Path,
    configure: impl FnOnce(&mut serde_json::Value),
    change: impl FnOnce(&mut Tensors),
) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    let mut config = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    configure(&mut config);
    std::fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    let mut tensors = tensors_of(from);
    change(&mut tensors);
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &to.path().join("model.safetensors")).unwrap();
    to
}

/// Logits of all tokens of a prompt, on the CPU in f32.
pub fn logits_in_f32(directory: &Path, tokens: &[u32]) -> Vec<f32> {
    let checkpoint = Checkpoint::open(directory).unwrap();
    let mut model = load_checkpoint(CpuBackend::new(Some(2)), &checkpoint, &options(DType::F32, 64)).unwrap();
    let mut sequences = [Sequence { tokens: tokens.to_vec(), computed: 0, blocks: (0..4).collect() }];
    step(&mut model, &mut sequences, &[(0, tokens.len())]).remove(0).concat()
}

/// The options of most tests: small, so that each test's memory is.
pub fn options(dtype: DType, max_model_len: usize) -> LoadOptions {
    LoadOptions {
        dtype: Some(dtype),
        max_model_len: Some(max_model_len),
        max_num_seqs: 8,
        max_num_batched_tokens: Some(256),
        block_size: 16,
        ..LoadOptions::default()
    }
}

/// Loads a golden checkpoint.
pub fn load(name: &str, options: &LoadOptions, threads: usize) -> Model {
    load_on(CpuBackend::new(Some(threads)), name, options)
}

/// A model's directory or, of a directory of GGUF files, the first of these.
pub fn resolve(path: &Path) -> PathBuf {
    let options = HubOptions::from_variables(None, |_| None);
    hub::resolve(path.to_str().unwrap(), &options, &mut |_| {}).unwrap()
}

/// Loads a golden checkpoint on a backend.
pub fn load_on<B: Backend>(backend: B, name: &str, options: &LoadOptions) -> ModelExecutor<B> {
    let checkpoint = Checkpoint::open(&resolve(&golden_of("models", name))).unwrap();
    load_checkpoint(backend, &checkpoint, options).unwrap()
}

/// Loads a model, with a KV cache as large as the options say.
pub fn load_checkpoint<B: Backend>(
    backend: B,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
) -> Result<ModelExecutor<B>, LoadError> {
    let loaded = LoadedModel::load(backend, checkpoint, options)?;
    let num_blocks = loaded.num_blocks()?;
    loaded.allocate(num_blocks)
}

/// The Metal backend on the software device, without its checks, and with every op on the device.
pub fn metal() -> MetalBackend<SoftwareGpu> {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    MetalBackend::new(SoftwareGpu::fast().unwrap(), options).unwrap()
}

/// The same, which records every op in the smallest pieces, each in a command buffer of its own.
pub fn metal_in_pieces() -> MetalBackend<SoftwareGpu> {
    let mut backend = metal();
    backend.set_limits(Limits { read_bandwidth: 1.0, peak_flops: 1.0 });
    backend
}

/// A request: its tokens, how many are computed, and its blocks.
#[derive(Debug, Clone, Default)]
pub struct Sequence {
    pub tokens: Vec<u32>,
    pub computed: usize,
    pub blocks: Vec<u32>,
}

/// Runs the next `chunks[i].1` tokens of `sequences[chunks[i].0]` in one step, in this order, and returns the logits of each of them.
pub fn step<B: Backend>(
    model: &mut ModelExecutor<B>,
    sequences: &mut [Sequence],
    chunks: &[(usize, usize)],
) -> Vec<Vec<Vec<f32>>> {
    let (block_size, vocab_size) = (model.info().block_size, model.info().vocab_size);
    let mut batch = Batch::default();
    batch.clear(chunks.iter().map(|&(i, _)| sequences[i].blocks.len()).max().unwrap_or(0));
    for &(i, len) in chunks {
        let s = &sequences[i];
        batch.push_request(&s.tokens[s.computed..][..len], s.computed, &s.blocks, block_size, len);
    }
    model.forward(&batch).unwrap();
    let mut rows = model.logits().chunks_exact(vocab_size).map(<[f32]>::to_vec);
    let logits = chunks.iter().map(|&(_, len)| rows.by_ref().take(len).collect()).collect();
    for &(i, len) in chunks {
        sequences[i].computed += len;
    }
    logits
}
