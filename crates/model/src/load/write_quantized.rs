//! Writes a checkpoint again with quantised matrices, spelled as compressed-tensors does (`pack-quantized`), which vLLM loads, too. It knows
//! no backend.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};

use half::f16;
use safetensors::tensor::{Dtype, View};
use serde_json::json;
use vllm_apple_ops::{HostTensor, ReadGroups};

use super::checkpoint::{Checkpoint, float_type};
use super::error::LoadError;
use super::hub::TEMPLATES;
use super::quantize::{GROUP_SIZE, Quantization, Quantizer};
use super::{file, json, pooler};
use crate::plan::memory::LoadOptions;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
/// Of files that hold weights.
const ENDS_OF_WEIGHTS: [&str; 8] =
    [".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf", ".onnx"];

impl Checkpoint {
    /// Writes the checkpoint to a directory that is not there yet, or empty: the matrices of attention and MLPs as codes of
    /// `quantization`, everything else as it is. Tables, routers, and matrices whose rows are not whole groups stay floats, which
    /// `ignore` in config.json says. `on_progress` is told how many bytes of the new weights are written, of how many.
    ///
    /// # Errors
    /// The weights are quantised already, have no matrix to quantise or are not those of the configuration, one is no number or too large for a float16 scale, the experts of a layer are one tensor, or a
    /// file cannot be read or written. What was written is removed then.
    pub fn write_quantized(
        &self,
        directory: &Path,
        quantization: Quantization,
        on_progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), LoadError> {
        if self.method.is_some() {
            return Err(LoadError::AlreadyQuantised { path: self.directory().to_owned() });
        }
        // What cannot be loaded is not worth the writing. Before the tensors are looked at, each of which counts as used then.
        self.survey(&LoadOptions::default())?;
        let (tensors, ignored) = self.new_tensors(quantization)?;
        if !tensors.iter().any(|(_, content)| matches!(content, Content::Codes(_))) {
            return Err(LoadError::NothingToQuantise { path: self.directory().to_owned(), group_size: GROUP_SIZE });
        }
        let mut written = Written::new(directory)?;
        let total = tensors.iter().map(|(_, content)| content.len() as u64).sum();
        // Before there is a file: whoever removes what was begun must know.
        on_progress(0, total);
        let job = Job { on_progress: RefCell::new(on_progress), done: Cell::new(0), total, wrong: RefCell::default() };
        let tensors = tensors.into_iter().map(|(name, content)| {
            let tensor = NewTensor { name: name.clone(), shape: content.shape(), content, job: &job };
            (name, tensor)
        });
        let unfinished = written.path(format!("{WEIGHTS}.part"));
        let metadata = [("format".to_owned(), "pt".to_owned())].into();
        let result = safetensors::serialize_to_file(tensors, Some(metadata), &unfinished)
            .map_err(|error| unwritable(&unfinished, error))
            .and_then(|()| self.check_unchanged())
            .and_then(|()| match job.wrong.take() {
                Some(tensor) => Err(LoadError::NoScale { path: self.weights_path(), tensor }),
                None => Ok(()),
            })
            .and_then(|()| self.copy_other_files(&mut written))
            .and_then(|()| self.write_config(&written.path(CONFIG), quantization, &ignored))
            .and_then(|()| {
                let weights = directory.join(WEIGHTS);
                // The library makes files that nobody else may read.
                fs::metadata(directory.join(CONFIG))
                    .and_then(|config| fs::set_permissions(&unfinished, config.permissions()))
                    .and_then(|()| fs::rename(&unfinished, &weights))
                    .map_err(|error| unwritable(&weights, error))
            });
        if result.is_err() {
            written.remove();
        }
        result
    }

    /// The tensors to write, and the modules whose matrices stay as they are.
    fn new_tensors(&self, quantization: Quantization) -> Result<(Vec<Named<'_>>, Vec<String>), LoadError> {
        let names = &self.family.names;
        let (mut tensors, mut ignored, mut left) = (Vec::new(), vec![names.lm_head.to_owned()], Vec::new());
        for view in self.views() {
            let in_layers = view.name.starts_with(&format!("{}.", names.layers));
            if in_layers && view.shape.len() > 2 {
                return Err(LoadError::Packing {
                    path: self.weights_path(),
                    tensor: view.name,
                    got: format!("{:?} {:?}", view.dtype, view.shape),
                    expected: "a matrix of its own for each expert".to_owned(),
                });
            }
            let module = view.name.strip_suffix(".weight").filter(|_| view.shape.len() == 2);
            let gates = [names.router, names.shared_expert_gate];
            let is_gate = |module: &str| gates.iter().any(|gate| !gate.is_empty() && module.ends_with(gate));
            match (module, view.shape, float_type(view.dtype)) {
                (Some(module), &[rows, cols], Some(dtype))
                    if in_layers && !is_gate(module) && cols.is_multiple_of(GROUP_SIZE) =>
                {
                    let tensor = HostTensor { dtype, rows, cols, bytes: view.bytes, file: None };
                    let matrix = Quantizer { tensor, quantization };
                    let shape = [rows, cols].map(|size| (size as i64).to_le_bytes()).concat();
                    tensors.push((format!("{module}.weight_shape"), Content::Shape(shape)));
                    tensors.push((format!("{module}.weight_scale"), Content::Scales(matrix)));
                    tensors.push((format!("{module}.weight_packed"), Content::Codes(matrix)));
                }
                (module, shape, _) => {
                    if let (Some(module), &[_, cols]) = (module, shape)
                        && in_layers
                        && !is_gate(module)
                    {
                        left.push(format!("{module} has rows of {cols}"));
                    }
                    ignored.extend(module.map(str::to_owned));
                    tensors.push((view.name, Content::AsItIs(view.dtype, view.shape, view.bytes)));
                }
            }
        }
        if let Some(first) = left.first() {
            let count = left.len();
            tracing::warn!(
                "matrices that stay as they are, as their rows are not whole groups of {GROUP_SIZE}: {count}; {first}"
            );
        }
        ignored.sort();
        ignored.dedup();
        Ok((tensors, ignored))
    }

    /// The tokenizer's and whatever else belongs to a checkpoint, but no weights.
    fn copy_other_files(&self, written: &mut Written<'_>) -> Result<(), LoadError> {
        let from = self.directory();
        for entry in fs::read_dir(from).map_err(|error| LoadError::unreadable(from, error))? {
            let path = entry.map_err(|error| LoadError::unreadable(from, error))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).filter(|_| path.is_file());
            let Some(name) = name.filter(|name| *name != CONFIG && !name.starts_with('.')) else { continue };
            if !ENDS_OF_WEIGHTS.iter().any(|end| name.ends_with(end)) {
                written.copy(&path, name)?;
            }
        }
        // Chat templates of names of their own, and sentence-transformers' modules, each in a directory.
        let modules = pooler::module_directories(from)?;
        [PathBuf::from(TEMPLATES)]
            .iter()
            .chain(&modules)
            .try_for_each(|directory| self.copy_directory(directory, written))
    }

    /// The files of a directory, if there is one.
    fn copy_directory(&self, directory: &Path, written: &mut Written<'_>) -> Result<(), LoadError> {
        let from = self.directory().join(directory);
        if !from.is_dir() {
            return Ok(());
        }
        let to = written.path(directory);
        fs::create_dir_all(&to).map_err(|error| unwritable(&to, error))?;
        for entry in fs::read_dir(&from).map_err(|error| LoadError::unreadable(&from, error))? {
            let path = entry.map_err(|error| LoadError::unreadable(&from, error))?.path();
            if let Some(name) = path.file_name().filter(|_| path.is_file()) {
                written.copy(&path, directory.join(name))?;
            }
        }
        Ok(())
    }

    fn write_config(&self, path: &Path, quantization: Quantization, ignored: &[String]) -> Result<(), LoadError> {
        let from = self.directory().join(CONFIG);
        let text = file::read(&from, file::MAX_JSON).map_err(|error| LoadError::unreadable(&from, error))?;
        let mut config = json::object(&text).map_err(|error| LoadError::unreadable(&from, error))?;
        let weights = json!({
            "num_bits": quantization.bits(), "type": "int", "symmetric": true, "strategy": "group", "group_size": GROUP_SIZE,
            "dynamic": false, "actorder": null, "observer": "minmax",
        });
        let group = json!({
            "targets": ["Linear"], "weights": weights, "input_activations": null, "output_activations": null,
        });
        let quantization = json!({
            "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "kv_cache_scheme": null, "ignore": ignored, "config_groups": { "group_0": group },
        });
        config.insert("quantization_config".to_owned(), quantization);
        if !self.config.tie_word_embeddings {
            // It may say otherwise of a head that differs from the embedding.
            config.insert("tie_word_embeddings".to_owned(), false.into());
        }
        let text = serde_json::to_string_pretty(&config).map_err(|error| unwritable(path, error))?;
        fs::write(path, text + "\n").map_err(|error| unwritable(path, error))
    }
}

fn unwritable(path: &Path, error: impl ToString) -> LoadError {
    LoadError::Unwritable { path: path.to_owned(), reason: error.to_string() }
}

/// A directory that was empty, and what has been put there since.
struct Written<'a> {
    directory: &'a Path,
    paths: Vec<PathBuf>,
    /// Locked as long as it is open: another run's files are not to be taken for this one's.
    _lock: fs::File,
}

impl<'a> Written<'a> {
    fn new(directory: &'a Path) -> Result<Self, LoadError> {
        let is_new = !directory.exists();
        fs::create_dir_all(directory).map_err(|error| unwritable(directory, error))?;
        let lock = fs::File::open(directory).map_err(|error| unwritable(directory, error))?;
        // A file system without locks keeps nobody from writing.
        if matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock)) {
            return Err(unwritable(directory, "another run writes there"));
        }
        let mut files = fs::read_dir(directory).map_err(|error| unwritable(directory, error))?;
        match files.next() {
            Some(found) => {
                let found = found.map_err(|error| unwritable(directory, error))?.file_name();
                Err(LoadError::NotEmpty { path: directory.to_owned(), found: found.to_string_lossy().into_owned() })
            }
            None => {
                let paths = is_new.then(|| directory.to_owned()).into_iter().collect();
                Ok(Self { directory, paths, _lock: lock })
            }
        }
    }

    /// Where a file or directory of this name comes.
    fn path(&mut self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.directory.join(name);
        self.paths.push(path.clone());
        path
    }

    fn copy(&mut self, from: &Path, name: impl AsRef<Path>) -> Result<(), LoadError> {
        let to = self.path(name);
        fs::copy(from, &to).map(drop).map_err(|error| unwritable(&to, error))
    }

    /// Removes all of it, the last first. What matters is the error that is there already.
    fn remove(&self) {
        for path in self.paths.iter().rev() {
            let _ = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
        }
    }
}

/// What all tensors that are written tell.
struct Job<'a> {
    on_progress: RefCell<&'a mut dyn FnMut(u64, u64)>,
    done: Cell<u64>,
    total: u64,
    /// A tensor with a group that has no scale.
    wrong: RefCell<Option<String>>,
}

/// A tensor's name and content.
type Named<'a> = (String, Content<'a>);

/// What a new tensor holds.
enum Content<'a> {
    AsItIs(Dtype, &'a [usize], &'a [u8]),
    /// Rows and columns of a matrix, as two numbers of 64 bits.
    Shape(Vec<u8>),
    /// A float16 for each group of a row.
    Scales(Quantizer<'a>),
    /// A row's codes, the first in the lowest bits of words of 32.
    Codes(Quantizer<'a>),
}

impl Content<'_> {
    fn shape(&self) -> Vec<usize> {
        match self {
            Self::AsItIs(_, shape, _) => shape.to_vec(),
            Self::Shape(_) => vec![2],
            Self::Scales(Quantizer { tensor, .. }) => vec![tensor.rows, tensor.cols / GROUP_SIZE],
            Self::Codes(Quantizer { tensor, quantization }) => {
                vec![tensor.rows, tensor.cols * quantization.bits() / 32]
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::AsItIs(.., bytes) => bytes.len(),
            Self::Shape(bytes) => bytes.len(),
            Self::Scales(_) => self.shape().iter().product::<usize>() * 2,
            Self::Codes(_) => self.shape().iter().product::<usize>() * 4,
        }
    }
}

/// A tensor on its way to the file: its bytes are made when they are written.
struct NewTensor<'a> {
    name: String,
    shape: Vec<usize>,
    content: Content<'a>,
    job: &'a Job<'a>,
}

impl View for NewTensor<'_> {
    fn dtype(&self) -> Dtype {
        match self.content {
            Content::AsItIs(dtype, ..) => dtype,
            Content::Shape(_) => Dtype::I64,
            Content::Scales(_) => Dtype::F16,
            Content::Codes(_) => Dtype::I32,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data_len(&self) -> usize {
        self.content.len()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let bytes = match &self.content {
            Content::AsItIs(.., bytes) => Cow::Borrowed(*bytes),
            Content::Shape(bytes) => Cow::Borrowed(&bytes[..]),
            Content::Scales(matrix) => {
                let scales =
                    map_groups(matrix, 2, |_, scale, to| to.copy_from_slice(&f16::from_f32(scale).to_le_bytes()));
                let is_number = |bytes: &[u8; 2]| f16::from_le_bytes(*bytes).is_finite();
                if !scales.as_chunks().0.iter().all(is_number) {
                    self.job.wrong.replace(Some(self.name.replace("weight_scale", "weight")));
                }
                Cow::Owned(scales)
            }
            Content::Codes(matrix) => {
                let bits = matrix.quantization.bits();
                let pack = |codes: &[u8; GROUP_SIZE], _, to: &mut [u8]| match bits {
                    8 => to.copy_from_slice(codes),
                    _ => to.iter_mut().zip(codes.as_chunks::<2>().0).for_each(|(to, [a, b])| *to = a | b << 4),
                };
                Cow::Owned(map_groups(matrix, GROUP_SIZE * bits / 8, pack))
            }
        };
        self.job.done.update(|done| done + bytes.len() as u64);
        (self.job.on_progress.borrow_mut())(self.job.done.get(), self.job.total);
        bytes
    }
}

/// So many bytes of each group of a matrix, from its codes and its scale, by all of the machine's threads.
fn map_groups(
    matrix: &Quantizer<'_>,
    bytes: usize,
    of_group: impl Fn(&[u8; GROUP_SIZE], f32, &mut [u8]) + Sync,
) -> Vec<u8> {
    let HostTensor { rows, cols, .. } = matrix.tensor;
    let groups = cols / GROUP_SIZE;
    let mut all = vec![0; rows * groups * bytes];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let together = rows.div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        for (part, of_rows) in all.chunks_mut((together * groups * bytes).max(1)).enumerate() {
            let of_group = &of_group;
            scope.spawn(move || {
                let mut codes = [0; GROUP_SIZE];
                for (i, to) in of_rows.chunks_exact_mut(bytes).enumerate() {
                    let scale = matrix.read(part * together + i / groups, i % groups, &mut codes).scale;
                    of_group(&codes, scale, to);
                }
            });
        }
    });
    all
}
