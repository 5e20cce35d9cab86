//! The model and the device that are examined, and how sections get at them.

use vllm_apple_device::{DeviceError, DeviceOptions, with_backend};
use vllm_apple_engine::{Engine, EngineConfig, EngineError, SubmitError};
use vllm_apple_executor::{Executor, ExecutorError};
use vllm_apple_model::{Checkpoint, LoadError, LoadOptions};

use crate::models::load;

/// What is examined.
pub struct Subject {
    /// The model.
    pub checkpoint: Checkpoint,
    /// How it is loaded, but for the sizes that a section needs.
    pub options: LoadOptions,
    /// Where it is computed.
    pub device: DeviceOptions,
    /// Prompts of the user's kinds.
    pub prompts: Vec<Prompt>,
}

/// A text as token ids, as long as a section may need it.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// `fox`, `code`, `story`, `instruction` or `mixed`.
    pub name: &'static str,
    /// Its tokens; a shorter prompt is their beginning.
    pub token_ids: Vec<u32>,
}

/// Why a section could not be examined.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The model.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An op outside of a step.
    #[error(transparent)]
    Op(#[from] vllm_apple_ops::Error),
    /// A step.
    #[error(transparent)]
    Step(#[from] ExecutorError),
    /// A request.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The engine is gone.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A step failed, or a request was ended in it.
    #[error("a request ended without a token")]
    NoToken,
    /// What a device can do cannot be measured.
    #[error("the device's limits cannot be measured: {0}")]
    Limits(std::io::Error),
    /// The reference, or what else was given.
    #[error("{0}")]
    Input(String),
}

impl VerifyError {
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Load(error) if error.is_refusal())
    }
}

impl Subject {
    /// Longest sequence that may be asked of the model.
    pub fn max_model_len(&self) -> usize {
        let longest = self.checkpoint.config().derived_max_model_len();
        self.options.max_model_len.map_or(longest, |asked| asked.min(longest))
    }

    /// The model on the device, with what `change` makes of the options.
    ///
    /// # Errors
    /// The device or the model cannot be had.
    pub fn executor(&self, change: impl FnOnce(&mut LoadOptions)) -> Result<Box<dyn Executor>, VerifyError> {
        self.on_device(change, |device, options| {
            with_backend!(device, backend => Ok(Box::new(load(backend, self, options)?) as Box<dyn Executor>))
        })
    }

    /// The same below an engine.
    ///
    /// # Errors
    /// As [`Self::executor`].
    pub fn engine(
        &self,
        prefix_caching: bool,
        change: impl FnOnce(&mut LoadOptions),
    ) -> Result<Engine<Box<dyn Executor>>, VerifyError> {
        let config = EngineConfig { enable_prefix_caching: prefix_caching, max_waiting: 1024, seed: 0 };
        let engine = Engine::new(self.executor(change)?, config);
        engine.map_err(|error| VerifyError::Input(error.to_string()))
    }
}
