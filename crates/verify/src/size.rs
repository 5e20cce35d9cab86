//! What is known of a subject before it is loaded: how long its sequences may be, its types, and its device's limits.

use vllm_apple_device::{Device, DeviceKind, Limits, Measurable, with_backend};
use vllm_apple_model::{LoadOptions, ModelTypes};

use crate::subject::{Prompt, Subject, VerifyError};

impl Prompt {
    /// Its first `len` tokens; where it ends, it begins again.
    pub fn beginning(&self, len: usize) -> Vec<u32> {
        self.token_ids.iter().copied().cycle().take(len).collect()
    }
}

/// Asks for sequences of up to `tokens`, or of as many of them as memory has room for.
pub(crate) fn up_to(tokens: usize, options: &mut LoadOptions) {
    (options.max_model_len, options.longest_of_use) = (None, Some(tokens));
}

impl Subject {
    /// The longest sequence that may be asked of the model, prompt and output together, in tokens.
    pub fn max_model_len(&self) -> usize {
        let longest = self.checkpoint.config().derived_max_model_len();
        self.options.max_model_len.map_or(longest, |asked| asked.min(longest))
    }

    /// What its numbers are. A checkpoint that cannot be loaded says so when it is.
    pub fn types(&self) -> ModelTypes {
        let types = self.checkpoint.types(&self.options);
        types.unwrap_or_else(|_| self.options.types_for(self.checkpoint.dtype()))
    }

    /// The prompt of this kind, or the first if there is none.
    ///
    /// # Errors
    /// There is no prompt.
    pub fn prompt(&self, name: &str) -> Result<&Prompt, VerifyError> {
        let found = self.prompts.iter().find(|prompt| prompt.name == name).or(self.prompts.first());
        found
            .filter(|prompt| !prompt.token_ids.is_empty())
            .ok_or_else(|| VerifyError::Input("there is no prompt".into()))
    }

    /// The prompt of this number: the kinds take turns.
    ///
    /// # Errors
    /// There is no prompt.
    pub fn prompt_at(&self, number: usize) -> Result<&Prompt, VerifyError> {
        let kinds = self.prompts.len().max(1);
        self.prompts.get(number % kinds).ok_or_else(|| VerifyError::Input("there is no prompt".into()))
    }

    /// On how many threads the ops are computed; `None`: not on the CPU.
    ///
    /// # Errors
    /// There is no such device.
    pub(crate) fn threads(&self) -> Result<Option<usize>, VerifyError> {
        // A GPU is not tested once more for that.
        if matches!(self.device.kind, DeviceKind::Metal | DeviceKind::SoftwareMetal) {
            return Ok(None);
        }
        let device = Device::open(&self.device, &self.checkpoint.kinds(&self.options)?)?;
        let is_cpu = matches!(device, Device::Cpu(_));
        let threads = device.info().facts.into_iter().find(|(name, _)| is_cpu && name == "threads");
        Ok(threads.and_then(|(_, threads)| threads.parse().ok()))
    }

    /// What the device does at most. `None`: it is the software device, which is measured against nothing.
    ///
    /// # Errors
    /// There is no such device, or it cannot be measured.
    pub fn limits(&self) -> Result<Option<Limits>, VerifyError> {
        let mut device = Device::open(&self.device, &self.checkpoint.kinds(&self.options)?)?;
        if matches!(device, Device::SoftwareMetal(_)) {
            return Ok(None);
        }
        let weights = self.types().weights;
        with_backend!(&mut device, backend => backend.limits(weights)).map(Some).map_err(VerifyError::Limits)
    }
}
