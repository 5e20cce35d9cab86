//! A checkpoint directory: its configuration, and its safetensors files mapped into memory. It knows no backend.

mod gguf_files;
mod header;
pub(crate) mod index;
mod tied;
mod unsound;
mod unused;

use crate::load::config::{Head, MlpConfig, ModelConfig};
use crate::load::error::LoadError;
use crate::load::families::{self, Family};
use crate::load::fields::Fields;
use crate::load::generation_config::GenerationConfig;
use crate::load::gguf::{self, RowOrder};
use crate::load::mapped_file::WeightsFile;
use crate::load::packed::{Expert, Method, Wanted};
use index::{INDEX, Index};
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, SafeTensors};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vllm_apple_ops::{DType, HostTensor, MappedFile};

/// A tensor.
pub(crate) struct View<'a> {
    /// In its file.
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    /// Its type in a GGUF file, and the order of its rows there.
    pub(crate) ggml: Option<(gguf::Type, RowOrder)>,
    pub(crate) shape: &'a [usize],
    pub(crate) bytes: &'a [u8],
}

/// An opened checkpoint.
pub struct Checkpoint {
    directory: PathBuf,
    /// Of config.json.
    fields: Fields,
    pub(crate) config: ModelConfig,
    pub(crate) family: &'static Family,
    /// How its quantised matrices are spelled; `None` if it has none.
    pub(crate) method: Option<Method>,
    /// What that is called.
    pub(crate) method_name: Option<&'static str>,
    /// The file that says it.
    pub(crate) method_file: &'static str,
    shards: Vec<Shard>,
    tensors: HashMap<String, Entry>,
    /// Stands for the content of every tensor, from its start on: weights that were never read.
    dummy: Option<Vec<u8>>,
}

struct Shard {
    weights: Arc<WeightsFile>,
    /// The same, for devices that compute on it in place.
    file: Arc<dyn MappedFile>,
}

#[derive(Debug)]
struct Entry {
    shard: usize,
    dtype: Dtype,
    /// Its type in a GGUF file, and the order of its rows there.
    ggml: Option<(gguf::Type, RowOrder)>,
    shape: Vec<usize>,
    bytes: Range<usize>,
    /// What a GGUF file calls it.
    in_file: Option<String>,
    /// Whether the model has asked for it.
    used: AtomicBool,
}

const CONFIG: &str = "config.json";

impl Checkpoint {
    /// Reads the configuration and the headers of all weight files. No weight is read yet, but an output head beside tied embeddings, which
    /// is compared to these.
    ///
    /// # Errors
    /// The first fault found: file, field or tensor, and what was expected.
    pub fn open(directory: &Path) -> Result<Self, LoadError> {
        let mut checkpoint = Self::describe(directory)?;
        if checkpoint.method == Some(Method::Gguf) {
            checkpoint.add_gguf(directory)?;
            return Ok(checkpoint);
        }
        let index = Index::read(directory)?;
        for name in index::files(index.as_ref(), directory)? {
            checkpoint.add_shard(directory.join(name))?;
        }
        if let Some(index) = index {
            index.check(&checkpoint)?;
        }
        checkpoint.name_as_with_a_head();
        checkpoint.untie_another_head();
        Ok(checkpoint)
    }

    /// Reads the configuration alone; the weights will be random. For measuring the speed of a model without having it.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_dummy(directory: &Path) -> Result<Self, LoadError> {
        let mut checkpoint = Self::describe(directory)?;
        if checkpoint.method.is_some() {
            return Err(LoadError::DummyCodes { path: directory.join(checkpoint.method_file) });
        }
        checkpoint.dummy = Some(dummy_bytes(&checkpoint.config, checkpoint.dtype()));
        Ok(checkpoint)
    }

    pub(crate) fn describe(directory: &Path) -> Result<Self, LoadError> {
        let fields = Fields::read(&directory.join(CONFIG))?;
        let found = match Method::read(&fields)? {
            None => Method::read_beside(directory)?,
            found => found.map(|found| (found, CONFIG)),
        };
        let (found, method_file) = found.map_or((None, CONFIG), |(found, file)| (Some(found), file));
        let method = found.map(|found| found.method);
        let family = families::find(&fields)?;
        let mut config = (family.config)(&fields)?;
        config.share_kv(&fields)?;
        if method == Some(Method::Gguf) {
            // What a norm adds to its weight is added in the file.
            config.norm_offset = 0.0;
        }
        Ok(Self {
            directory: directory.to_owned(),
            fields,
            config,
            family,
            method,
            method_name: found.map(|found| found.name),
            method_file,
            shards: Vec::new(),
            tensors: HashMap::new(),
            dummy: None,
        })
    }

    /// Gives the tensors of a decoder that was saved by itself the names that they have in a model with an output head, of which it is a part.
    fn name_as_with_a_head(&mut self) {
        let with_head = format!("{}.weight", self.family.names.embedding);
        let Some((part, alone)) = with_head.split_once('.') else { return };
        if self.tensors.contains_key(&with_head) || !self.tensors.contains_key(alone) {
            return;
        }
        let head = self.family.names.lm_head;
        let renamed = |name: String| if name.starts_with(head) { name } else { format!("{part}.{name}") };
        self.tensors = self.tensors.drain().map(|(name, entry)| (renamed(name), entry)).collect();
    }

    /// The same checkpoint, whose steps answer with hidden states: its output head, if there is one, is not read.
    pub fn without_head(mut self) -> Self {
        self.config.head = Head::Hidden;
        self
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The files with its weights; none if these are random.
    pub fn weights_paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.weights.path())
    }

    /// What it describes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// End tokens and sampling defaults. They are read now: who has others needs no generation_config.json that is right.
    ///
    /// # Errors
    /// A file that cannot be read, or a value out of its range.
    pub fn generation_config(&self) -> Result<GenerationConfig, LoadError> {
        let generation = match self.directory.join("generation_config.json") {
            path if path.exists() => Some(Fields::read(&path)?),
            _ => None,
        };
        GenerationConfig::read(generation.as_ref(), &self.fields, self.config.vocab_size)
    }

    /// The type of the weights: what the configuration says, else that of the embedding.
    pub fn dtype(&self) -> DType {
        let embedding =
            self.tensors.get(&format!("{}.weight", self.family.names.embedding)).and_then(|e| float_type(e.dtype));
        let stored = self.config.dtype.or(embedding).unwrap_or(DType::F32);
        // Gemma 3's activations leave float16's range, so that vLLM takes bfloat16 for it, too.
        if stored == DType::F16 && self.family.model_type.starts_with("gemma3") { DType::BF16 } else { stored }
    }

    /// Whether it has quantised matrices.
    pub(crate) fn has_codes(&self) -> bool {
        let is_codes = |entry: &Entry| entry.ggml.is_some_and(|(kind, _)| kind.spelling().is_some());
        match self.method {
            Some(Method::Gguf) => self.tensors.values().any(is_codes),
            Some(_) => true,
            None => false,
        }
    }

    /// Whether there is a tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// A tensor as it is, or an expert's part of it: then the first dimension is that of all experts.
    pub(crate) fn view(&self, name: &str, expert: Option<Expert>) -> Option<View<'_>> {
        let entry = self.tensors.get(name)?;
        entry.used.store(true, Ordering::Relaxed);
        let (name, dtype, ggml) = (self.in_file(name), entry.dtype, entry.ggml);
        let (shape, bytes) = (&entry.shape[..], self.bytes_of(entry));
        let Some(Expert { number, of }) = expert else { return Some(View { name, dtype, ggml, shape, bytes }) };
        let (_, shape) = shape.split_first().filter(|(experts, _)| **experts == of)?;
        Some(View { name, dtype, ggml, shape, bytes: bytes.chunks_exact((bytes.len() / of).max(1)).nth(number)? })
    }

    /// All tensors of safetensors files, by name.
    pub(crate) fn views(&self) -> Vec<View<'_>> {
        let mut views: Vec<_> = self.tensors.keys().filter_map(|name| self.view(name, None)).collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }

    /// A matrix of floats, checked against the shape that the configuration asks for.
    pub(crate) fn float_matrix(&self, wanted: Wanted<'_>) -> Result<HostTensor<'_>, LoadError> {
        let Wanted { name, expert, rows, cols } = wanted;
        self.tensor(&format!("{name}.weight"), expert, &[rows, cols])
    }

    /// A vector as one row, checked against its length.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<HostTensor<'_>, LoadError> {
        self.tensor(name, None, &[len])
    }

    /// A tensor of floats, or an expert's part of it, checked against its shape.
    pub(crate) fn tensor(
        &self,
        name: &str,
        expert: Option<Expert>,
        shape: &[usize],
    ) -> Result<HostTensor<'_>, LoadError> {
        let (rows, cols) = if let [rows, cols] = *shape { (rows, cols) } else { (1, shape[0]) };
        if let Some(bytes) = &self.dummy {
            let dtype = self.dtype();
            return Ok(HostTensor { dtype, rows, cols, bytes: &bytes[..rows * cols * dtype.size()], file: None });
        }
        let Some(entry) = self.tensors.get(name) else {
            return Err(LoadError::MissingTensor { path: self.weights_path(), tensor: self.in_file(name) });
        };
        let shard = &self.shards[entry.shard];
        let Some(dtype) = float_type(entry.dtype) else {
            let path = shard.weights.path().to_owned();
            let got = entry.ggml.map_or_else(|| format!("{:?}", entry.dtype), |(kind, _)| kind.to_string());
            return Err(LoadError::TensorType { path, tensor: self.in_file(name), got });
        };
        match self.view(name, expert) {
            Some(view) if view.shape == shape => {
                Ok(HostTensor { dtype, rows, cols, bytes: view.bytes, file: Some(&shard.file) })
            }
            _ => {
                let (path, got) = (shard.weights.path().to_owned(), entry.shape.clone());
                let experts = expert.map(|expert| expert.of);
                let expected = experts.into_iter().chain(shape.iter().copied()).collect();
                Err(LoadError::Shape { path, tensor: self.in_file(name), expected, got })
            }
        }
    }

    /// Says that the model may have this tensor, which need not be there and is not read.
    pub(crate) fn allow(&self, name: &str) {
        if let Some(entry) = self.tensors.get(name) {
            entry.used.store(true, Ordering::Relaxed);
        }
    }

    /// The first of the tensors whose names begin so.
    pub(crate) fn first_of(&self, prefix: &str) -> Option<&str> {
        self.tensors.keys().map(String::as_str).filter(|name| name.starts_with(prefix)).min()
    }

    fn bytes_of(&self, entry: &Entry) -> &[u8] {
        &self.shards[entry.shard].weights.bytes()[entry.bytes.clone()]
    }

    /// The file that has a tensor, or that says which there are.
    pub(crate) fn file_of(&self, name: &str) -> PathBuf {
        self.tensors.get(name).map_or_else(|| self.weights_path(), |entry| self.path_of(entry).to_owned())
    }

    /// The file that has a tensor.
    fn path_of(&self, entry: &Entry) -> &Path {
        self.shards[entry.shard].weights.path()
    }

    /// The file that says which tensors there are, or what holds the files that have them.
    pub(crate) fn weights_path(&self) -> PathBuf {
        let index = self.directory.join(INDEX);
        match &self.shards[..] {
            [only] => only.weights.path().to_owned(),
            _ if index.exists() => index,
            _ => self.directory.clone(),
        }
    }

    /// Tells the system that all tensors whose names begin so will be read soon.
    pub(crate) fn prefetch(&self, prefix: &str) {
        #[cfg(unix)]
        for entry in self.tensors.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, entry)| entry) {
            let map = self.shards[entry.shard].weights.map();
            // Only advice: without it, reading is slower.
            let _ = map.advise_range(memmap2::Advice::WillNeed, entry.bytes.start, entry.bytes.len());
        }
    }

    /// Gives back the memory of tensors that have been copied. They stay readable, from the file again.
    pub(crate) fn release(&self, prefix: &str) {
        #[cfg(unix)]
        for entry in self.tensors.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, entry)| entry) {
            let map = self.shards[entry.shard].weights.map();
            // SAFETY: the map is read-only and backed by a file, so a dropped page comes back from the file with the same
            // content. The range lies within the map: `add_shard` checked it.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, entry.bytes.start, entry.bytes.len())
            };
        }
    }

    /// Whether the weights that were read are those of the files that were opened. To be asked after reading.
    pub(crate) fn check_unchanged(&self) -> Result<(), LoadError> {
        self.shards.iter().try_for_each(|shard| shard.weights.check())
    }

    /// The mapped files, for those who compute on them in place and must ask from time to time whether they change.
    pub(crate) fn weights_files(&self) -> Vec<Arc<WeightsFile>> {
        self.shards.iter().map(|shard| shard.weights.clone()).collect()
    }

    fn add_shard(&mut self, path: PathBuf) -> Result<(), LoadError> {
        let weights = Arc::new(WeightsFile::open(path)?);
        let (path, map) = (weights.path(), weights.bytes());
        check_length(path, map)?;
        let invalid = |reason: String| LoadError::Safetensors { path: path.to_owned(), reason };
        let (header, metadata) = match SafeTensors::read_metadata(map) {
            Ok(found) => found,
            Err(SafeTensorError::MetadataIncompleteBuffer) => return Err(wrong_length(path, map)),
            Err(e) => return Err(invalid(e.to_string())),
        };
        let data = header + size_of::<u64>();
        if let Some(name) = header::repeated_name(&map[size_of::<u64>()..data]) {
            return Err(invalid(format!("its header has the tensor {name} twice")));
        }
        let shard = self.shards.len();
        for (name, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let entry = Entry {
                shard,
                dtype: info.dtype,
                ggml: None,
                shape: info.shape.clone(),
                bytes: data + start..data + end,
                in_file: None,
                used: AtomicBool::new(false),
            };
            if self.tensors.insert(name.clone(), entry).is_some() {
                return Err(invalid(format!("the tensor {name} is also in another shard")));
            }
        }
        self.shards.push(Shard { file: weights.clone(), weights });
        Ok(())
    }
}

/// The error for a file whose header is sound and whose data is not of the length that it says.
fn wrong_length(path: &Path, map: &[u8]) -> LoadError {
    const PREFIX: usize = size_of::<u64>();
    let header = map.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let end = usize::try_from(header).ok().and_then(|len| len.checked_add(PREFIX)).unwrap_or(usize::MAX);
    let metadata = map.get(PREFIX..end).and_then(|header| serde_json::from_slice::<Metadata>(header).ok());
    let expected = metadata.map_or(0, |m| end as u64 + m.data_len() as u64);
    LoadError::Truncated { path: path.to_owned(), expected, got: map.len() as u64 }
}

/// A file cut within its header, told apart from a damaged one: the first 8 bytes are the header's length.
fn check_length(path: &Path, map: &[u8]) -> Result<(), LoadError> {
    let got = map.len() as u64;
    let header = map.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let expected = header.saturating_add(size_of::<u64>() as u64);
    // What the safetensors format allows; more is not a cut file but a damaged one.
    const MAX_HEADER: u64 = 100_000_000;
    match got < expected && header <= MAX_HEADER {
        true => Err(LoadError::Truncated { path: path.to_owned(), expected, got }),
        false => Ok(()),
    }
}

/// Random values of the size of trained weights, as many as the largest tensor has.
fn dummy_bytes(c: &ModelConfig, dtype: DType) -> Vec<u8> {
    let widest = |mlp: &MlpConfig| match mlp {
        MlpConfig::Dense { intermediate_size, .. } => *intermediate_size,
        MlpConfig::Moe(moe) => {
            // Gates and ups may be one tensor.
            (2 * moe.intermediate_size).max(moe.shared_intermediate_size.unwrap_or(0)).max(moe.num_experts)
        }
    };
    let width = c.layers.iter().map(|layer| widest(&layer.mlp)).max().unwrap_or(0);
    let len = c.hidden_size * c.vocab_size.max(width).max(c.qkv_size());
    // A multiplicative generator (Knuth's MMIX constants); its upper bits are even enough to compute with.
    let mut state = 1u64;
    let mut value = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.1
    };
    let values: Vec<f32> = (0..1 << 16).map(|_| value()).collect();
    let mut bytes = dtype.encode(&values);
    let pattern = bytes.clone();
    bytes.resize(len * dtype.size(), 0);
    for chunk in bytes.chunks_mut(pattern.len()) {
        let n = chunk.len();
        chunk.copy_from_slice(&pattern[..n]);
    }
    bytes
}

pub(crate) fn float_type(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        _ => None,
    }
}
