//! The thinnest layer over a GPU's API: buffers, pipelines, and one list of commands per step. Nothing above it knows Metal's
//! objects; nothing in it knows an op.

#[cfg(target_os = "macos")]
pub mod apple;
#[cfg(any(target_os = "macos", test))]
mod cache_file;
#[cfg(any(test, feature = "fake"))]
pub mod compile_only;
#[cfg(any(target_os = "macos", test))]
mod diagnostics;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
#[cfg(any(test, feature = "fake"))]
pub mod faulty;
#[cfg(any(target_os = "macos", test))]
mod health;
#[cfg(any(target_os = "macos", test))]
mod heartbeat;
mod once_map;
#[cfg(any(target_os = "macos", test))]
mod residency_plan;
pub mod software;

use std::ops::Range;
use std::sync::Arc;

use vllm_apple_ops::Traffic;

/// A GPU that shares its memory with the host.
///
/// Commands are recorded with [`Gpu::encode`] and run by [`Gpu::submit`]. Commands between two [`Gpu::barrier`]s may run in any order
/// and at the same time: whoever encodes puts the barriers.
pub trait Gpu: Sized + Send + 'static {
    /// Memory that host and device both see. A clone is another handle of the same memory.
    type Buffer: Clone + Send + Sync + 'static;
    /// A kernel, compiled for its constants.
    type Pipeline: Send + Sync + 'static;
    /// See [`Gpu::compiler`].
    type Compiler: Compiler<Pipeline = Self::Pipeline>;

    /// What makes pipelines for this device, on any thread.
    fn compiler(&self) -> Self::Compiler;

    /// What the device is and can do.
    fn facts(&self) -> &Facts;

    /// Memory of `len` zeros, `len > 0`. `purpose` is for people.
    fn allocate(&self, len: usize, purpose: &str) -> Result<Self::Buffer, GpuError>;

    /// A part of the memory that the host has mapped from a file, from a multiple of [`PAGE`] on and at most [`Facts::max_buffer`] long
    /// in whole pages, used in place and only read; `None` if this device cannot.
    fn map(&self, file: &Arc<dyn MappedFile>, part: Range<usize>) -> Result<Option<Self::Buffer>, GpuError>;

    /// The content as of the last [`Gpu::submit`].
    fn bytes<'a>(&self, buffer: &'a Self::Buffer) -> &'a [u8];

    /// The content, to change between steps.
    ///
    /// # Safety
    /// No other slice of this buffer's memory may be alive, and no recorded command may be waiting to use it.
    #[allow(clippy::mut_from_ref)] // Handles share their memory: exclusiveness is the caller's promise.
    unsafe fn bytes_mut<'a>(&self, buffer: &'a Self::Buffer) -> &'a mut [u8];

    /// Most threads that a threadgroup of this pipeline may have; more would be dropped silently by real hardware.
    fn max_threads(&self, pipeline: &Self::Pipeline) -> usize;

    /// Records a command. Errors are those of [`Gpu::submit`].
    fn encode(&mut self, command: &Command<'_, Self>);

    /// Commands recorded later see everything that those recorded earlier wrote.
    fn barrier(&mut self);

    /// Lets the device begin with the recorded commands, in one piece. Commands recorded later see everything that they write.
    fn commit(&mut self);

    /// Runs all commands since the last call, committed or not, and waits.
    ///
    /// # Errors
    /// The device's, with its own words: nothing that the commands were to write may be trusted.
    fn submit(&mut self) -> Result<(), GpuError>;

    /// What the device has moved since the last call, if it counts.
    fn take_traffic(&mut self) -> Option<Traffic> {
        None
    }

    /// Forgets the recorded commands, and waits for those that are committed: an op behind them could not be encoded, or only the encoding is measured.
    fn discard(&mut self);
}

/// Makes pipelines, several at the same time.
pub trait Compiler: Send + Sync + 'static {
    /// See [`Gpu::Pipeline`].
    type Pipeline: Send + Sync + 'static;

    /// Compiles a kernel for these constants and threadgroups of so many threads: with fewer, each may use more registers. Takes
    /// milliseconds or more: not for use within a step.
    fn pipeline(&self, kernel: &Kernel, constants: &[Constant], threads: usize) -> Result<Self::Pipeline, GpuError>;

    /// Keeps what was compiled for the next start of the program, where the device can.
    fn keep(&self) {}
}

/// A file in the host's memory, page-aligned.
pub use vllm_apple_ops::MappedFile;

/// Pages of macOS on Apple silicon, in bytes: its MMU is set up for no other size.
pub const PAGE: usize = 16384;

/// What a device is.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// `metal` or `software-metal`.
    pub backend: &'static str,
    /// The device's own name.
    pub name: String,
    /// Bytes of memory, which device and host share.
    pub memory: u64,
    /// Bytes that the device recommends to use at most (`recommendedMaxWorkingSetSize`).
    pub max_working_set: u64,
    /// Longest single buffer, in bytes.
    pub max_buffer: u64,
    /// Whether it computes with bfloat16 itself; M1 and M2 emulate it.
    pub native_bf16: bool,
    /// GPU families and whatever else tells devices apart, for people.
    pub families: Vec<String>,
}

impl Facts {
    /// Bytes that are best kept within the device's reach together: the system may keep a set of buffers as a whole or not at all. A single
    /// weight may be longer.
    pub fn most_in_a_set(&self) -> u64 {
        const SETS: u64 = 20;
        self.max_working_set / SETS
    }
}

/// Bytes of this machine's memory.
fn host_memory() -> Result<u64, GpuError> {
    let unknown = |error| GpuError::Unavailable(format!("the size of the memory cannot be read: {error}"));
    let mut system = sysinfo::System::new().map_err(unknown)?;
    system.refresh_memory();
    Ok(system.total_memory())
}

/// A kernel function in Metal source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Name of the file, for messages; one library is compiled per file.
    pub file: &'static str,
    /// Its text without the common part, see [`COMMON`].
    pub source: &'static str,
    /// The function, or the `host_name` of an instantiation.
    pub function: &'static str,
}

impl Kernel {
    /// The text to compile: the common part and the file's own, each with its own line numbers in diagnostics.
    pub fn text(&self) -> String {
        format!("#line 1 \"common.metal\"\n{COMMON}\n#line 1 \"{}\"\n{}", self.file, self.source)
    }
}

/// What every kernel file begins with. Run-time compilation cannot include files.
pub const COMMON: &str = include_str!("../../kernels/common.metal");

/// Value of `[[function_constant(index)]]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constant {
    /// Index in the source.
    pub index: u32,
    /// Value, of the type that the source declares.
    pub value: Value,
}

/// Value of a constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// `uint`
    U32(u32),
    /// `bool`
    Bool(bool),
    /// `float`
    F32(f32),
}

/// One dispatch. All threadgroups are full: kernels guard ragged edges themselves.
pub struct Command<'a, G: Gpu> {
    /// What runs.
    pub pipeline: &'a G::Pipeline,
    /// `[[buffer(i)]]` is `bindings[i]`.
    pub bindings: &'a [Binding<'a, G>],
    /// Threadgroups in x, y, z; none may be 0.
    pub threadgroups: [usize; 3],
    /// Threads in each, in one dimension.
    pub threads: usize,
    /// What they must do: for devices that keep time.
    pub work: Work,
}

/// What a dispatch must do at least.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Work {
    /// Multiplications and additions.
    pub flops: f64,
    /// Bytes read and written, each once.
    pub bytes: f64,
}

impl Work {
    /// So many times that.
    pub fn times(self, factor: f64) -> Self {
        Self { flops: factor * self.flops, bytes: factor * self.bytes }
    }

    /// Of rows that each move so many bytes.
    pub fn bytes(rows: usize, row_bytes: usize) -> Self {
        Self { flops: 0.0, bytes: rows as f64 * row_bytes as f64 }
    }
}

/// What a kernel's buffer argument is.
pub enum Binding<'a, G: Gpu> {
    /// `len` bytes of a buffer from `offset`.
    Buffer {
        /// The buffer.
        buffer: &'a G::Buffer,
        /// Where the argument begins.
        offset: usize,
        /// How long it is: a kernel that goes beyond is wrong.
        len: usize,
    },
    /// A small struct, copied when the command is recorded.
    Bytes(&'a [u8]),
}

/// What a device can do wrong.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GpuError {
    /// This machine has no device that can run the kernels.
    #[error("no device: {0}")]
    Unavailable(String),
    /// There is not enough memory.
    #[error("no memory for {bytes} bytes ({purpose})")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// What they were for.
        purpose: String,
    },
    /// A kernel does not compile for this device.
    #[error("{function} of {file} does not compile: {reason}")]
    Compile {
        /// File of the kernel.
        file: String,
        /// The function.
        function: String,
        /// The compiler's words.
        reason: String,
    },
    /// A kernel was not compiled, for no reason of its own: the system's compiler did not answer. The next time it may.
    #[error("{function} of {file} was not compiled: {reason}")]
    NotCompiled {
        /// File of the kernel.
        file: String,
        /// The function.
        function: String,
        /// The system's words.
        reason: String,
    },
    /// Submitted commands failed; the device may be used again.
    #[error("commands failed: {0}")]
    Commands(String),
    /// The system ended submitted commands because they ran for too long; the device may be used again.
    #[error("commands were ended: {0}")]
    TooLong(String),
    /// The system discarded submitted commands because of others that it had to end, or because it had no memory for them at the time; the
    /// device may be used again.
    #[error("commands were discarded: {0}")]
    Discarded(String),
    /// There was no memory for submitted commands, not even a while later; the device may be used again.
    #[error("there was no memory for commands: {0}")]
    NoMemory(String),
    /// The device is lost or does not answer.
    #[error("the device is lost: {0}")]
    Lost(String),
}
