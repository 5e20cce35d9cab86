//! Apple's GPU as a [`Gpu`], through Metal. It knows no op; nothing outside this module knows an object of Metal.

mod activity;
mod archive;
mod buffer;
mod commands;
mod compile;
mod completion;
mod facts;
mod residency;

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::MTLDevice;

pub use buffer::AppleBuffer;
pub use compile::{AppleCompiler, ApplePipeline};

use crate::options::MetalOptions;

use super::heartbeat::{Heartbeat, LastUse, Moment};
use super::{Command, Facts, Gpu, GpuError, MappedFile};
use activity::Activity;
use buffer::Live;
use commands::Commands;
use residency::Residency;

type Device = ProtocolObject<dyn MTLDevice>;

/// How long a command buffer may take before the device counts as lost. macOS itself ends commands after some seconds; this is for the
/// case that it does not.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of memory that take a second more where it is new, or was not used for long: a checkpoint may have to come from a slow disk first.
const SLOWEST_DISK: u64 = 20_000_000;

/// The system's default GPU, with a queue of its own.
pub struct AppleGpu {
    /// Asks for the memory again and again, and keeps the Mac awake, while memory is made, steps are computed, and for minutes after.
    heartbeat: Option<Heartbeat>,
    device: Retained<Device>,
    facts: Facts,
    compiler: AppleCompiler,
    residency: Option<Arc<Residency>>,
    commands: Commands,
    patience: Duration,
    live: Live,
    last_use: LastUse,
    /// Bytes that were made, mapped or not used for long before the last step that has run.
    new_memory: Cell<u64>,
}

impl AppleGpu {
    /// The system's default GPU, whose command buffers may take as long as `patience`; of the options, it reads which devices may be taken,
    /// and where compiled kernels are kept.
    ///
    /// # Errors
    /// [`GpuError::Unavailable`] where there is none, or where it or macOS is too old for the kernels.
    pub fn open(patience: Duration, options: &MetalOptions) -> Result<Self, GpuError> {
        autoreleasepool(|_| {
            let device = facts::default_device(options.allow_vm)?;
            let facts = facts::of(&device)?;
            let residency = Residency::new(&device, &facts);
            let commands = Commands::new(&device, residency.clone())?;
            let compiler = AppleCompiler::new(device.clone(), options.cache.as_deref());
            let (live, last_use, new_memory) = (Live::default(), LastUse::default(), Cell::new(0));
            let kept = residency.clone();
            let beat = move || autoreleasepool(|_| kept.iter().for_each(|residency| residency.request()));
            let heartbeat = Heartbeat::start(Activity::begin, beat);
            Ok(Self { heartbeat, device, facts, compiler, residency, commands, patience, live, last_use, new_memory })
        })
    }

    /// How long a command buffer may take.
    fn patience(&self) -> Duration {
        self.patience + Duration::from_secs(self.new_memory.get() / SLOWEST_DISK)
    }

    /// Memory is in use, or about to be.
    fn stay_awake(&self) {
        self.heartbeat.iter().for_each(Heartbeat::used);
    }

    /// Commands are about to be committed. After a long pause all memory may have to come from a disk again: it is asked for before anybody's
    /// patience begins.
    fn take_in_use(&mut self) {
        self.stay_awake();
        if !self.last_use.again(Moment::now()) {
            return;
        }
        self.new_memory.set(self.live.load(Ordering::Relaxed));
        if let Some(residency) = &self.residency {
            autoreleasepool(|_| residency.request());
        }
    }
}

impl Gpu for AppleGpu {
    type Buffer = AppleBuffer;
    type Pipeline = ApplePipeline;
    type Compiler = AppleCompiler;

    fn compiler(&self) -> AppleCompiler {
        self.compiler.clone()
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn allocate(&self, len: usize, purpose: &str) -> Result<AppleBuffer, GpuError> {
        let out_of_memory = || GpuError::OutOfMemory { bytes: len, purpose: purpose.to_owned() };
        if len as u64 > self.facts.max_buffer {
            return Err(out_of_memory());
        }
        self.stay_awake();
        self.new_memory.set(self.new_memory.get() + len as u64);
        autoreleasepool(|_| AppleBuffer::zeroed(&self.device, len, purpose, self.residency.as_ref(), &self.live))
            .ok_or_else(out_of_memory)
    }

    fn map(&self, file: &Arc<dyn MappedFile>, part: Range<usize>) -> Result<Option<AppleBuffer>, GpuError> {
        let limit = self.facts.max_buffer;
        self.stay_awake();
        self.new_memory.set(self.new_memory.get() + part.len() as u64);
        let residency = self.residency.as_ref();
        Ok(autoreleasepool(|_| AppleBuffer::mapped(&self.device, file, part, limit, residency, &self.live)))
    }

    fn bytes<'a>(&self, buffer: &'a AppleBuffer) -> &'a [u8] {
        buffer.bytes()
    }

    unsafe fn bytes_mut<'a>(&self, buffer: &'a AppleBuffer) -> &'a mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { buffer.bytes_mut() }
    }

    fn max_threads(&self, pipeline: &ApplePipeline) -> usize {
        pipeline.max_threads
    }

    fn encode(&mut self, command: &Command<'_, Self>) {
        let patience = self.patience();
        autoreleasepool(|_| self.commands.encode(command, patience));
    }

    fn barrier(&mut self) {
        autoreleasepool(|_| self.commands.barrier());
    }

    fn commit(&mut self) {
        self.take_in_use();
        autoreleasepool(|_| self.commands.commit());
    }

    fn submit(&mut self) -> Result<(), GpuError> {
        self.take_in_use();
        let patience = self.patience();
        let result = autoreleasepool(|_| self.commands.submit(patience));
        // It may have waited for a disk for long.
        self.stay_awake();
        result.inspect(|()| self.new_memory.set(0))
    }

    fn discard(&mut self) {
        let patience = self.patience();
        autoreleasepool(|_| self.commands.discard(patience));
    }
}
