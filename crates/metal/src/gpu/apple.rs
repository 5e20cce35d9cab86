//! Apple's GPU as a [`Gpu`], through Metal. It knows no op; nothing outside this module knows an object of Metal.

mod buffer;
mod commands;
mod compile;
mod completion;
mod facts;
mod residency;

use std::sync::Arc;
use std::time::Duration;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::MTLDevice;

pub use buffer::AppleBuffer;
pub use compile::ApplePipeline;

use super::{Command, Constant, Facts, Gpu, GpuError, Kernel, MappedFile};
use commands::Commands;
use compile::Libraries;
use residency::Residency;

type Device = ProtocolObject<dyn MTLDevice>;

/// How long commands may take before the device counts as lost. macOS itself ends commands after some seconds; this is for the case
/// that it does not.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The system's default GPU, with a queue of its own.
pub struct AppleGpu {
    device: Retained<Device>,
    facts: Facts,
    libraries: Libraries,
    residency: Option<Arc<Residency>>,
    commands: Commands,
}

impl AppleGpu {
    /// The system's default GPU.
    ///
    /// # Errors
    /// [`GpuError::Unavailable`] where there is none, or where it or macOS is too old for the kernels.
    pub fn new() -> Result<Self, GpuError> {
        Self::with_patience(PATIENCE)
    }

    /// As [`AppleGpu::new`], but commands may take this long at most.
    ///
    /// # Errors
    /// Those of [`AppleGpu::new`].
    pub fn with_patience(patience: Duration) -> Result<Self, GpuError> {
        autoreleasepool(|_| {
            let device = facts::default_device()?;
            let facts = facts::of(&device)?;
            let residency = Residency::new(&device, facts.max_working_set);
            let commands = Commands::new(&device, residency.clone(), patience)?;
            Ok(Self { device, facts, libraries: Libraries::default(), residency, commands })
        })
    }
}

impl Gpu for AppleGpu {
    type Buffer = AppleBuffer;
    type Pipeline = ApplePipeline;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn allocate(&self, len: usize, purpose: &str) -> Result<AppleBuffer, GpuError> {
        let out_of_memory = || GpuError::OutOfMemory { bytes: len, purpose: purpose.to_owned() };
        if len as u64 > self.facts.max_buffer {
            return Err(out_of_memory());
        }
        autoreleasepool(|_| AppleBuffer::zeroed(&self.device, len, purpose, self.residency.as_ref()))
            .ok_or_else(out_of_memory)
    }

    fn map(&self, file: &Arc<dyn MappedFile>) -> Result<Option<AppleBuffer>, GpuError> {
        let limit = self.facts.max_buffer;
        Ok(autoreleasepool(|_| AppleBuffer::mapped(&self.device, file, limit, self.residency.as_ref())))
    }

    fn bytes<'a>(&self, buffer: &'a AppleBuffer) -> &'a [u8] {
        buffer.bytes()
    }

    unsafe fn bytes_mut<'a>(&self, buffer: &'a AppleBuffer) -> &'a mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { buffer.bytes_mut() }
    }

    fn pipeline(&self, kernel: &Kernel, constants: &[Constant]) -> Result<ApplePipeline, GpuError> {
        autoreleasepool(|_| self.libraries.pipeline(&self.device, kernel, constants))
    }

    fn max_threads(&self, pipeline: &ApplePipeline) -> usize {
        pipeline.max_threads
    }

    fn encode(&mut self, command: &Command<'_, Self>) {
        self.commands.encode(command);
    }

    fn barrier(&mut self) {
        self.commands.barrier();
    }

    fn submit(&mut self) -> Result<(), GpuError> {
        autoreleasepool(|_| self.commands.submit())
    }

    fn discard(&mut self) {
        autoreleasepool(|_| self.commands.discard());
    }
}
