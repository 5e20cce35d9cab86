//! The model and the device that are examined, and how sections get at them.

use vllm_apple_device::{DeviceError, DeviceOptions, with_backend};
use vllm_apple_engine::{Engine, EngineConfig, EngineError, FinishReason, RequestOutput, SubmitError};
use vllm_apple_executor::{Executor, ExecutorError, Sample};
use vllm_apple_model::{Checkpoint, LoadError, LoadOptions, StepCost};

use crate::host_ops::HostOps;
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
    /// What devices left to the host so far.
    pub host_ops: HostOps,
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
    /// A step failed, or a request was ended in it, with the reason.
    #[error("a request ended without a token: {0}")]
    NoToken(String),
    /// An answer without all that was asked for: two of them may be equal and say nothing.
    #[error("an answer is not whole: {0}")]
    NotWhole(String),
    /// What a device can do cannot be measured.
    #[error("the device's limits cannot be measured: {0}")]
    Limits(std::io::Error),
    /// The reference, or what else was given.
    #[error("{0}")]
    Input(String),
}

/// An error that keeps something from being examined.
pub trait Failure: std::fmt::Display {
    /// Whether it is want of memory: the machine is too small for the examination, and nothing is known to be wrong.
    fn is_want_of_memory(&self) -> bool;
}

impl Failure for vllm_apple_ops::Error {
    fn is_want_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::NoMemory { .. })
    }
}

impl Failure for LoadError {
    fn is_want_of_memory(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Backend(error) => error.is_want_of_memory(),
            _ => false,
        }
    }
}

impl Failure for DeviceError {
    fn is_want_of_memory(&self) -> bool {
        matches!(self, Self::Op(error) if error.is_want_of_memory())
    }
}

impl Failure for VerifyError {
    fn is_want_of_memory(&self) -> bool {
        match self {
            Self::Load(error) => error.is_want_of_memory(),
            Self::Device(error) => error.is_want_of_memory(),
            Self::Op(error) => error.is_want_of_memory(),
            _ => false,
        }
    }
}

impl VerifyError {
    /// The token that a request got in a step.
    pub(crate) fn token(output: &RequestOutput) -> Result<&Sample, Self> {
        let why = || match &output.finish {
            Some(FinishReason::Error(why) | FinishReason::Invalid(why)) => why.clone(),
            _ => "nobody says why".to_owned(),
        };
        output.sample.as_ref().ok_or_else(|| Self::NoToken(why()))
    }
}

impl Subject {
    /// Operations for a token at the start of a sequence, its logits included.
    pub fn flops_per_token(&self) -> f64 {
        StepCost::new(self.checkpoint.config(), self.types(), 1, 1, 1, 1).flops
    }

    /// Prompts of these lengths, of the subject's kinds in turn and each with another beginning. `first` tells apart what different callers
    /// get.
    pub fn prompts_of(&self, lengths: &[usize], first: usize) -> Vec<Vec<u32>> {
        let of = |(i, &len): (usize, &usize)| {
            let tokens = &self.prompts[i % self.prompts.len()].token_ids;
            tokens.iter().copied().cycle().skip((first + i) * 13 % tokens.len()).take(len).collect()
        };
        lengths.iter().enumerate().map(of).collect()
    }

    /// The model on the device, with what `change` makes of the options.
    ///
    /// # Errors
    /// The device or the model cannot be had.
    pub fn executor(
        &self,
        wish: Wish,
        change: impl FnOnce(&mut LoadOptions),
    ) -> Result<Box<dyn Executor>, VerifyError> {
        self.on_device(wish, change, |device, options| {
            with_backend!(device, backend => Ok(Box::new(load(backend, self, wish, options)?) as Box<dyn Executor>))
        })
    }

    /// The same below an engine.
    ///
    /// # Errors
    /// As [`Self::executor`].
    pub fn engine(
        &self,
        wish: Wish,
        change: impl FnOnce(&mut LoadOptions),
    ) -> Result<Engine<Box<dyn Executor>>, VerifyError> {
        let config =
            EngineConfig { enable_prefix_caching: wish.prefix_caching, max_waiting: 1024, seed: 0, speculation: None };
        let engine = Engine::new(self.executor(wish, change)?, config);
        engine.map_err(|error| VerifyError::Input(error.to_string()))
    }
}

/// How a section wants the model, beside the options.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wish {
    /// Whether prompts' equal beginnings are computed once.
    pub prefix_caching: bool,
    /// Blocks of the KV cache.
    pub num_blocks: Option<usize>,
    /// Threads of the host.
    pub threads: Option<usize>,
}
