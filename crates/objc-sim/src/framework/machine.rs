//! The Mac that is simulated: what its device says of itself, how it computes, and what is to go wrong. It knows no object.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use objc2_metal::MTLGPUFamily;

/// How kernels are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speed {
    /// Every access to memory is checked, and commands between two barriers run last to first.
    Checked,
    /// Nothing is checked.
    Fast,
}

/// What happens to a command buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It runs.
    None,
    /// It ends with this code of `MTLCommandBufferErrorDomain`, and these words.
    Error(isize, String),
    /// It neither runs nor ends.
    Silence,
}

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Machine {
    /// How kernels are run, from the compilation of their library on.
    pub speed: Speed,
    /// The newest family of GPUs of Apple that its device belongs to.
    pub family: MTLGPUFamily,
    /// `maxBufferLength`
    pub max_buffer: usize,
    /// `recommendedMaxWorkingSetSize`
    pub working_set: u64,
    /// Whether it gives residency sets.
    pub residency_sets: bool,
    /// What happens to the next command buffers, in the order of their commits; those behind run.
    pub faults: VecDeque<Fault>,
    /// How often residency was requested.
    pub residency_requests: usize,
    /// How often residency sets were committed.
    pub residency_commits: usize,
    /// `shouldMaximizeConcurrentCompilation`
    pub compiles_concurrently: bool,
    /// How long it takes to write a binary archive.
    pub archive_time: Duration,
    /// Pipelines that were compiled, because no archive had them.
    pub compiled: usize,
    /// What the compiler says in place of the next libraries and pipelines.
    pub compiler_faults: VecDeque<String>,
    /// Functions that take more registers than there are, by how their names begin.
    pub refused: Option<&'static str>,
    /// Threads that a pipeline's threadgroups may have at most: shader validation lowers that.
    pub most_threads: usize,
    /// Activities that have begun and not ended: while there are any, the machine stays awake.
    pub activities: usize,
    /// All that have begun.
    pub activities_begun: usize,
}

static MACHINE: Mutex<Machine> = Mutex::new(Machine {
    speed: Speed::Checked,
    family: MTLGPUFamily::Apple8,
    max_buffer: 4 << 30,
    working_set: 8 << 30,
    residency_sets: true,
    faults: VecDeque::new(),
    residency_requests: 0,
    residency_commits: 0,
    compiles_concurrently: false,
    archive_time: Duration::ZERO,
    compiled: 0,
    compiler_faults: VecDeque::new(),
    refused: None,
    most_threads: 1024,
    activities: 0,
    activities_begun: 0,
});

/// The machine, to look at or to change. Nothing else of this crate may be called meanwhile.
pub fn machine() -> MutexGuard<'static, Machine> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}
