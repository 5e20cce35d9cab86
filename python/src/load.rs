//! From options to a loaded model whose backend is no longer part of its type. It knows no request.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use pyo3::{FromPyObject, PyResult, Python};
use vllm_apple_device::{Device, DeviceError, DeviceKind, DeviceOptions, MetalOptions, with_backend};
use vllm_apple_executor::{Executor, ExecutorError};
use vllm_apple_model::hub::{HubError, HubOptions};
use vllm_apple_model::{Checkpoint, KvBlock, LoadError, LoadOptions, LoadedModel, MemoryPlan};
use vllm_apple_ops::{Backend, DType};

use crate::download;

/// Why the engine cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// An option that cannot be understood.
    #[error("{0}")]
    Option(String),
    /// Called at the wrong time, or with what the engine does not hold.
    #[error("{0}")]
    Use(String),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Executor(#[from] ExecutorError),
}

/// What to load, and how: a dictionary with these keys.
#[derive(Debug, Clone, FromPyObject)]
#[pyo3(from_item_all)]
pub struct Options {
    model: String,
    revision: Option<String>,
    /// Shown to the hub.
    token: Option<String>,
    /// Where downloaded models are, unless the hub's own variables say.
    download_dir: Option<String>,
    /// Random weights.
    dummy: bool,
    device: String,
    threads: Option<usize>,
    attention: bool,
    prefill: bool,
    strict: bool,
    scratch_pool: Option<usize>,
    max_batch_size: Option<usize>,
    allow_vm: bool,
    /// A directory for what is kept between starts.
    cache: Option<String>,
    dtype: String,
    /// int8 or int4: made of floats at load.
    quantization: Option<String>,
    /// What quantised weights multiply the activations as: auto or int8.
    activation_dtype: String,
    kv_cache_dtype: Option<String>,
    max_model_len: usize,
    max_num_seqs: usize,
    max_num_batched_tokens: usize,
    block_size: usize,
}

impl Options {
    fn device(&self) -> Result<DeviceOptions, EngineError> {
        let defaults = MetalOptions::default();
        let metal = MetalOptions {
            attention: self.attention,
            prefill: self.prefill,
            strict: self.strict,
            scratch_pool: self.scratch_pool,
            max_batch_size: self.max_batch_size.unwrap_or(defaults.max_batch_size),
            allow_vm: self.allow_vm,
            cache: self.cache.clone().map(PathBuf::from),
        };
        let kind = DeviceKind::from_str(&self.device).map_err(EngineError::Option)?;
        Ok(DeviceOptions { kind, threads: self.threads, isa: None, metal })
    }

    fn load(&self, available_memory: Option<u64>) -> Result<LoadOptions, EngineError> {
        let dtype = |name: &str| DType::from_str(name).map_err(|e| EngineError::Option(e.to_string()));
        Ok(LoadOptions {
            dtype: Some(dtype(&self.dtype)?),
            quantization: self.quantization.as_deref().map(str::parse).transpose().map_err(EngineError::Option)?,
            activation_dtype: self
                .activation_dtype
                .parse()
                .map_err(|reason| EngineError::Option(format!("`activation_dtype`: {reason}")))?,
            kv_cache_dtype: self.kv_cache_dtype.as_deref().map(dtype).transpose()?,
            max_model_len: Some(self.max_model_len),
            longest_of_use: None,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: Some(self.max_num_batched_tokens),
            block_size: self.block_size,
            kv_cache_memory: None,
            available_memory,
        })
    }

    /// With a directory for the model, which all loads then read, whatever becomes of its name on the hub.
    pub fn resolved(self, py: Python<'_>) -> PyResult<Self> {
        let get = |name: &str| match (name, &self.download_dir) {
            ("HF_HUB_CACHE", Some(directory)) => Some(directory.clone()),
            _ => std::env::var(name).ok(),
        };
        let variables = HubOptions::from_variables(self.revision.clone(), get);
        let hub = HubOptions { token: self.token.clone(), weights: !self.dummy, ..variables };
        let directory = download::directory(py, self.model.clone(), hub)?;
        let model = directory.into_os_string().into_string();
        let model = model.map_err(|path| EngineError::Use(format!("{} is no UTF-8", path.display())))?;
        Ok(Self { model, ..self })
    }

    fn checkpoint(&self) -> Result<Checkpoint, EngineError> {
        let open = if self.dummy { Checkpoint::open_dummy } else { Checkpoint::open };
        Ok(open(Path::new(&self.model))?)
    }
}

/// A model without a KV cache.
pub trait Loaded: Send {
    fn kv_block(&self) -> KvBlock;
    fn memory_plan(&self) -> &MemoryPlan;
    fn allocate(self: Box<Self>, num_blocks: usize) -> Result<Box<dyn Executor>, EngineError>;
}

impl<B: Backend> Loaded for LoadedModel<B> {
    fn kv_block(&self) -> KvBlock {
        LoadedModel::kv_block(self)
    }

    fn memory_plan(&self) -> &MemoryPlan {
        LoadedModel::memory_plan(self)
    }

    fn allocate(self: Box<Self>, num_blocks: usize) -> Result<Box<dyn Executor>, EngineError> {
        let mut executor = LoadedModel::allocate(*self, num_blocks)?;
        executor.warm_up(&mut |_| {})?;
        Ok(Box::new(executor))
    }
}

/// A model whose device may refuse it when its sizes are known, with what it takes to load it for the CPU then.
struct OrCpu {
    loaded: Box<dyn Loaded>,
    options: Options,
    available_memory: Option<u64>,
}

impl Loaded for OrCpu {
    fn kv_block(&self) -> KvBlock {
        self.loaded.kv_block()
    }

    fn memory_plan(&self) -> &MemoryPlan {
        self.loaded.memory_plan()
    }

    fn allocate(self: Box<Self>, num_blocks: usize) -> Result<Box<dyn Executor>, EngineError> {
        let Self { loaded, options, available_memory } = *self;
        match loaded.allocate(num_blocks) {
            Err(EngineError::Load(error)) if error.is_refusal() => {
                tracing::warn!("computing on the CPU: {error}");
                let options = Options { device: "cpu".to_owned(), ..options };
                load(&options, available_memory)?.loaded.allocate(num_blocks)
            }
            result => result,
        }
    }
}

/// A loaded model, and what there is to know of its device.
pub struct Model {
    pub loaded: Box<dyn Loaded>,
    pub device: String,
    /// Bytes that the device recommends to use at most.
    pub memory_limit: Option<u64>,
}

/// `available_memory` is measured if it is not known.
pub fn load(options: &Options, available_memory: Option<u64>) -> Result<Model, EngineError> {
    let checkpoint = options.checkpoint()?;
    let load = options.load(available_memory)?;
    let device_options = options.device()?;
    let device = Device::open(&device_options, &checkpoint.kinds(&load)?)?;
    let is_refusal = |error: &EngineError| matches!(error, EngineError::Load(error) if error.is_refusal());
    let mut model = device.start(&device_options, is_refusal, |device| {
        let description = device.info().to_string();
        with_backend!(device, backend => {
            let memory_limit = backend.memory_limit();
            let loaded = Box::new(LoadedModel::load(backend, &checkpoint, &load)?);
            Ok(Model { loaded, device: description, memory_limit })
        })
    })?;
    if device_options.is_free() {
        model.loaded = Box::new(OrCpu { loaded: model.loaded, options: options.clone(), available_memory });
    }
    Ok(model)
}
