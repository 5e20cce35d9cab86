//! A step's commands on a GPU: memory, scratch, pipelines, and what must wait for what. It knows no op.

pub(crate) mod arena;
pub(crate) mod dispatch;
mod hazards;
pub(crate) mod held;
pub(crate) mod pace;
pub(crate) mod pipelines;
pub(crate) mod region;
pub(crate) mod variants;

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};

use vllm_apple_ops::pool::Pool;
use vllm_apple_ops::{DType, Error, Result, Tensor};

use crate::gpu::{Gpu, GpuError};
use arena::Arena;
use hazards::Hazards;
use held::Held;
use pace::Pace;
use pipelines::{Pipelines, Wanted};
use region::Region;

/// Bytes of the smallest buffer: of a vector of four words.
const LEAST: usize = 16;

/// Records commands and runs them all in [`Recorder::flush`].
pub(crate) struct Recorder<G: Gpu> {
    pub gpu: G,
    pub pipelines: Pipelines<G>,
    pub arena: Arena<G>,
    pub pace: Pace,
    hazards: Hazards,
    held: Option<Held>,
    /// The device is lost, in its own words.
    lost: Option<String>,
    /// Commands are recorded that have not run.
    pending: bool,
    /// Dispatches are noted, and neither compiled nor recorded.
    noted: Option<Vec<Wanted>>,
    /// Functions that the device has refused and that others are in the place of, with its words.
    replaced: BTreeMap<&'static str, String>,
    /// The last want of memory that nobody has asked for.
    want_of_memory: Cell<Option<Error>>,
}

impl<G: Gpu> Recorder<G> {
    /// A recorder whose scratch may grow to `scratch_limit` bytes.
    pub fn new(gpu: G, scratch_limit: Option<usize>) -> Self {
        let pipelines = Pipelines::new(gpu.compiler());
        let (arena, pace, hazards) = (Arena::new(scratch_limit), Pace::new(None), Hazards::default());
        let (replaced, want_of_memory) = (BTreeMap::new(), Cell::new(None));
        let (held, lost, pending, noted) = (None, None, false, None);
        Self { gpu, pipelines, arena, pace, hazards, held, lost, pending, noted, replaced, want_of_memory }
    }

    /// Scratch may grow so far from now on. What there was is given up.
    pub fn set_scratch_limit(&mut self, limit: Option<usize>) {
        self.arena = Arena::new(limit);
    }

    /// `len` zero bytes in a buffer of their own.
    pub fn region(&self, len: usize, purpose: &str) -> Result<Region<G>> {
        // Devices have no empty buffers, and Metal's own checks want room for one element, of whatever size, in all that is bound.
        let buffer = self.gpu.allocate(len.max(LEAST), purpose).map_err(|e| self.error(e))?;
        Ok(Region::whole(buffer, len))
    }

    /// A tensor of zeros.
    pub fn tensor(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Region<G>>> {
        let bytes = rows.saturating_mul(cols).saturating_mul(dtype.size());
        let region = self.region(bytes, &format!("a tensor {dtype} [{rows}, {cols}]"))?;
        Ok(Tensor::new(region, dtype, rows, cols))
    }

    /// Runs what is recorded and waits. Whether that works or not, nothing is recorded afterwards.
    pub fn flush(&mut self) -> Result<()> {
        self.hazards.clear();
        self.held = None;
        self.pace.end_step();
        if !std::mem::take(&mut self.pending) {
            return self.alive();
        }
        self.gpu.submit().map_err(|e| self.failed(e))?;
        self.pace.ran();
        Ok(())
    }

    /// Records and runs; once more if the system ended it though nothing is wrong with it, as steps are. Nothing may be recorded before.
    pub fn run(&mut self, mut record: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        let mut once = || record(self).and_then(|()| self.flush()).inspect_err(|_| self.discard());
        match once() {
            Err(Error::TooLong { .. } | Error::Discarded { .. }) => once(),
            result => result,
        }
    }

    /// Forgets what is recorded.
    pub fn discard(&mut self) {
        self.gpu.discard();
        self.hazards.clear();
        self.held = None;
        self.pace.end_step();
        self.pending = false;
    }

    /// From now on dispatches are noted, and neither compiled nor recorded.
    pub fn note(&mut self) {
        self.noted = Some(Vec::new());
    }

    /// Whether dispatches are noted.
    pub fn is_noting(&self) -> bool {
        self.noted.is_some()
    }

    /// Compiles what was noted, on all threads, and ends the noting. Errors of those that the device refuses and that no other is in the
    /// place of.
    pub fn compile_noted(&mut self, pool: &Pool, on_progress: &mut dyn FnMut(usize, usize)) -> Vec<Error> {
        let mut refused = Vec::new();
        let mut noted = self.noted.take().unwrap_or_default();
        while !noted.is_empty() {
            // Each once, also where it is asked for again below.
            let mut known = HashSet::new();
            noted.retain(|wanted| known.insert((wanted.op, wanted.key())));
            self.pipelines.compile(&noted, pool, on_progress);
            let mut instead = Vec::new();
            for wanted in noted {
                let pipeline = self.pipeline(wanted.op, wanted.kernel, &wanted.values(), wanted.threads);
                let Err(error) = pipeline else { continue };
                match (error, wanted.instead()) {
                    (Error::Unsupported { reason, .. }, Some(other)) => {
                        self.replace(wanted.kernel.function, reason);
                        instead.push(other);
                    }
                    (error, _) => refused.push(error),
                }
            }
            noted = instead;
        }
        refused
    }

    /// The last want of memory since somebody asked: whatever it made fail says nothing of the device.
    pub fn take_want_of_memory(&self) -> Option<Error> {
        self.want_of_memory.take()
    }

    /// Whether commands are recorded that have not run.
    pub fn is_pending(&self) -> bool {
        self.pending
    }

    /// Takes in that the device failed.
    fn failed(&mut self, error: GpuError) -> Error {
        match &error {
            GpuError::Lost(reason) => drop(self.lost.get_or_insert_with(|| reason.clone())),
            GpuError::TooLong(_) => self.pace.slow_down(),
            _ => {}
        }
        self.error(error)
    }

    /// # Errors
    /// [`Error::Device`] once the device is lost.
    pub fn alive(&self) -> Result<()> {
        match &self.lost {
            None => Ok(()),
            Some(reason) => Err(self.error(GpuError::Lost(reason.clone()))),
        }
    }

    /// The content of a region, to change while nothing is recorded.
    pub fn bytes_mut<'a>(&self, region: &'a mut Region<G>) -> &'a mut [u8] {
        assert!(!self.pending, "recorded commands would see the new content");
        // SAFETY: the region is borrowed exclusively, its buffer's other regions are not read at the same time, and no command is
        // waiting.
        let all = unsafe { self.gpu.bytes_mut(&region.buffer) };
        &mut all[region.offset..][..region.len]
    }

    /// The content of a region.
    pub fn bytes<'a>(&self, region: &'a Region<G>) -> &'a [u8] {
        &self.gpu.bytes(&region.buffer)[region.offset..][..region.len]
    }

    /// Copies `bytes` to the start of a tensor.
    pub fn write(&self, tensor: &mut Tensor<Region<G>>, bytes: &[u8]) {
        self.bytes_mut(tensor.memory_mut())[..bytes.len()].copy_from_slice(bytes);
    }

    /// The content of a tensor.
    pub fn read<'a>(&self, tensor: &'a Tensor<Region<G>>) -> &'a [u8] {
        self.bytes(tensor.memory())
    }

    /// The error of an op that the device does not compute.
    pub fn unsupported(&self, op: &'static str, reason: String) -> Error {
        Error::Unsupported { device: self.gpu.facts().backend.into(), op, reason }
    }

    /// The same error in the words of ops.
    pub fn error(&self, error: GpuError) -> Error {
        let device = self.gpu.facts().backend.to_owned();
        let error = match error {
            GpuError::OutOfMemory { bytes, purpose } => Error::OutOfMemory { device, bytes, purpose },
            GpuError::NoMemory(reason) => Error::NoMemory { device, reason },
            GpuError::Commands(reason) => Error::Commands { device, reason },
            GpuError::TooLong(reason) => Error::TooLong { device, reason },
            GpuError::Discarded(reason) => Error::Discarded { device, reason },
            error => Error::Device { device, reason: error.to_string() },
        };
        if matches!(error, Error::OutOfMemory { .. } | Error::NoMemory { .. }) {
            self.want_of_memory.set(Some(error.clone()));
        }
        error
    }
}
