//! Mapped checkpoints as the device's memory: each file is one buffer, and what had to be copied instead is counted. It knows no
//! names of weights.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vllm_apple_ops::{MappedFile, Result};

use crate::gpu::Gpu;
use crate::recorder::Recorder;
use crate::recorder::region::Region;

/// Why a weight is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    NoFile,
    Converted,
    Alignment,
    Parts,
    Files,
    Device,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoFile => "not from a mapped file",
            Self::Converted => "converted to another type",
            Self::Alignment => "not aligned to 8 bytes in the file",
            Self::Parts => "made of more than three tensors",
            Self::Files => "experts spread over files",
            Self::Device => "the device cannot use the file's memory",
        })
    }
}

/// The files in use.
pub(crate) struct CheckpointMemory<G: Gpu> {
    state: Mutex<State<G>>,
}

struct State<G: Gpu> {
    /// By the file's address.
    buffers: HashMap<usize, Mapped<G>>,
    /// Bytes used in place, then bytes copied for each reason, since the last report.
    bytes: BTreeMap<Option<Why>, usize>,
}

struct Mapped<G: Gpu> {
    region: Option<Region<G>>,
    /// Keeps the memory mapped, and its address taken.
    _file: Arc<dyn MappedFile>,
}

impl<G: Gpu> CheckpointMemory<G> {
    pub fn new() -> Self {
        Self { state: Mutex::new(State { buffers: HashMap::new(), bytes: BTreeMap::new() }) }
    }

    /// All of the file; `None` if this device cannot use it in place.
    pub fn buffer(&self, recorder: &Recorder<G>, file: &Arc<dyn MappedFile>) -> Result<Option<Region<G>>> {
        let mut state = self.lock();
        let key = Arc::as_ptr(file).cast::<()>().addr();
        if let Some(mapped) = state.buffers.get(&key) {
            return Ok(mapped.region.clone());
        }
        let buffer = recorder.gpu.map(file).map_err(|e| recorder.error(e))?;
        let region = buffer.map(|buffer| Region::whole(buffer, file.bytes().len()));
        state.buffers.insert(key, Mapped { region: region.clone(), _file: file.clone() });
        Ok(region)
    }

    /// Takes in a part of a weight that is used in place, or copied for a reason.
    pub fn count(&self, bytes: usize, copied: Option<Why>) {
        *self.lock().bytes.entry(copied).or_default() += bytes;
    }

    /// Whether weights lie in the files' own memory.
    pub fn in_use(&self) -> bool {
        self.lock().buffers.values().any(|mapped| mapped.region.is_some())
    }

    /// What was loaded since the last call, for people.
    pub fn report(&self) -> Option<String> {
        let bytes = std::mem::take(&mut self.lock().bytes);
        let line = |(why, bytes): (&Option<Why>, &usize)| match why {
            None => format!("{bytes} bytes used in place"),
            Some(why) => format!("{bytes} bytes copied ({why})"),
        };
        (!bytes.is_empty()).then(|| bytes.iter().map(line).collect::<Vec<_>>().join(", "))
    }

    fn lock(&self) -> MutexGuard<'_, State<G>> {
        // Every change is one insertion: a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
