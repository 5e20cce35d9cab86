//! What can be wrong with a checkpoint, its configuration or the memory for it. Each message names file, field and remedy.

use std::path::{Path, PathBuf};

/// What to do about a weights file that changes.
pub(crate) const CHANGED_REMEDY: &str =
    "restart with a file that nobody changes (to replace one in use, rename a new file over it)";

/// A model that cannot be loaded, and why.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is absent or unreadable.
    #[error("{path}: cannot be read: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A JSON file is not JSON, or not an object.
    #[error("{path}: is not a valid JSON object: {reason}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// A field of a JSON file has a value that cannot be used.
    #[error("{path}: {field} must be {expected}, got {got}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// What is allowed.
        expected: String,
        /// What it is.
        got: String,
    },
    /// The architecture is not one of those that are implemented.
    #[error("{path}: the architecture {got} is not supported; supported are {supported}")]
    Architecture {
        /// The file.
        path: PathBuf,
        /// What the checkpoint asks for.
        got: String,
        /// All that are implemented.
        supported: String,
    },
    /// The model has a head of labels.
    #[error(
        "{path}: the architecture {got} is one of classifiers and cross-encoders, whose labels are not computed; take an embedder, whose cosines \
         /score and /rerank give, or the generating form of a reranker (Qwen3-Reranker's, with the probabilities of its `yes` and `no`)"
    )]
    Classifier {
        /// The file.
        path: PathBuf,
        /// What the checkpoint asks for.
        got: String,
    },
    /// The weights are quantised in a way that nobody reads.
    #[error(
        "{path}: the weights are quantised ({method}), which is not supported; supported are {supported}, or take a bfloat16, float16 or \
         float32 checkpoint"
    )]
    Quantised {
        /// The file.
        path: PathBuf,
        /// What it says of them.
        method: String,
        /// What is read.
        supported: &'static str,
    },
    /// A tensor of a quantised matrix is not what it should be.
    #[error("{path}: the tensor {tensor} of a quantised matrix is {got}; supported is {expected}")]
    Packing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type and shape.
        got: String,
        /// What would be read.
        expected: String,
    },
    /// A scale or bias of a quantised matrix is no number, or too large.
    #[error(
        "{path}: the tensor {tensor} of a quantised matrix makes a group's scale or bias {value}, which does not fit {dtype}: the file is damaged, \
         download it again, or the weights were quantised wrongly"
    )]
    Scale {
        /// The file.
        path: PathBuf,
        /// The tensor or, if none of its tensors alone is at fault, the matrix.
        tensor: String,
        /// The first one.
        value: f32,
        /// The type of scales and biases in memory.
        dtype: vllm_apple_ops::DType,
    },
    /// Matrices that are one weight in memory have no format that holds both.
    #[error(
        "{} ({}) and {} ({}) are computed together and must be of formats with whole numbers, or both of floats; quantise them alike",
        tensors[0], what[0], tensors[1], what[1]
    )]
    Unlike {
        /// The matrices.
        tensors: [String; 2],
        /// Their formats.
        what: [String; 2],
    },
    /// A device does not compute with a weight's format.
    #[error("{name}: {error}")]
    WeightFormat {
        /// The weight.
        name: String,
        /// What the device says.
        error: vllm_apple_ops::Error,
    },
    /// What is to be quantised is.
    #[error(
        "{path}: its weights are quantised already, or in a GGUF file; take the safetensors checkpoint of bfloat16, float16 or float32 that it was made of"
    )]
    AlreadyQuantised {
        /// The checkpoint.
        path: PathBuf,
    },
    /// A checkpoint of which nothing would be quantised.
    #[error(
        "{path}: none of its layers' matrices has rows of whole groups of {group_size}, so that nothing would be quantised; it can be quantised while it is loaded"
    )]
    NothingToQuantise {
        /// The checkpoint.
        path: PathBuf,
        /// Elements of a row that share a scale.
        group_size: usize,
    },
    /// What cannot be quantised.
    #[error("{path}: the tensor {tensor} has values that are no numbers or too large for a float16 scale")]
    NoScale {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A file or directory cannot be written.
    #[error("{path}: cannot be written: {reason}")]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A directory for a new checkpoint has files.
    #[error("{path}: is not empty, as it has {found}; name a directory that is not there yet")]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// One of the files.
        found: String,
    },
    /// Random weights of a quantised checkpoint.
    #[error(
        "{path}: the weights are quantised, of which there are none that are random; remove what says so, and quantise random weights with \
         `quantization` int4 or int8"
    )]
    DummyCodes {
        /// The file.
        path: PathBuf,
    },
    /// A first step that fails, before any request.
    #[error("the first steps failed: {reason}")]
    WarmUp {
        /// What went wrong.
        reason: String,
        /// It is the device that failed, and not for want of memory.
        of_device: bool,
    },
    /// A directory without weights.
    #[error(
        "{path}: has no safetensors file and no model.safetensors.index.json, nor a GGUF file; weights of other kinds are not supported"
    )]
    NoWeights {
        /// The directory.
        path: PathBuf,
    },
    /// A shard that the index names is not there.
    #[error("{index}: names the shard {shard}, which is not in the directory; download it again")]
    MissingShard {
        /// The index.
        index: PathBuf,
        /// The shard's file name.
        shard: String,
    },
    /// A file shorter or longer than its header says.
    #[error("{path}: has {got} bytes, its header says {expected}; the file is truncated or damaged, download it again")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes according to the header.
        expected: u64,
        /// Bytes on disk.
        got: u64,
    },
    /// The header of a safetensors file is damaged.
    #[error("{path}: is not a valid safetensors file: {reason}; download it again")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A GGUF file is damaged, or of a kind that nobody reads.
    #[error("{path}: cannot be read as a GGUF file: {reason}")]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor that the configuration asks for is not in the checkpoint.
    #[error("{path}: the tensor {tensor} is missing")]
    MissingTensor {
        /// The file that should have it.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// Tensors that the model which the configuration describes does not have.
    #[error(
        "{path}: {count} of its tensors ({names}) belong to no part of the model that the configuration describes; \
         where that is a config.json, take the one with which they were saved"
    )]
    UnusedTensors {
        /// The file that has them.
        path: PathBuf,
        /// How many.
        count: usize,
        /// The first of them.
        names: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("{path}: the tensor {tensor} has shape {got:?}, the configuration asks for {expected:?}")]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// According to the configuration.
        expected: Vec<usize>,
        /// In the file.
        got: Vec<usize>,
    },
    /// A tensor has a type that is not supported.
    #[error(
        "{path}: the tensor {tensor} has type {got}; supported are BF16, F16 and F32, and codes whose scales are beside them, as config.json's quantization_config says"
    )]
    TensorType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// In the file.
        got: String,
    },
    /// A weights file is not any more what it was when it was opened: neither what was read nor what is read now can be relied on.
    #[error("the weights file {path} changed while it was in use: {change}; {CHANGED_REMEDY}")]
    Changed {
        /// The file.
        path: PathBuf,
        /// What is different.
        change: String,
    },
    /// A load option out of range.
    #[error("{option} must be {expected}, got {got}")]
    Option {
        /// Its name: a field of the options, in backticks.
        option: &'static str,
        /// What is allowed.
        expected: String,
        /// What was given.
        got: String,
    },
    /// Weights, KV cache and scratch do not fit into memory.
    #[error("not enough memory: {0}")]
    Memory(String),
    /// The backend refused a weight or has no memory.
    #[error(transparent)]
    Backend(#[from] vllm_apple_ops::Error),
}

impl LoadError {
    /// Whether the device does not compute what the model needs, or failed when it tried: another may.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Backend(error) => error.is_of_device(),
            Self::WarmUp { of_device, .. } => *of_device,
            _ => false,
        }
    }

    /// For a failed read of `path`.
    pub(crate) fn unreadable(path: &Path, reason: impl ToString) -> Self {
        Self::Unreadable { path: path.to_owned(), reason: reason.to_string() }
    }
}
