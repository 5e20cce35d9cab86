//! The software Metal device as a [`Gpu`]: compiles kernels with clang and runs them on the CPU. It knows no op.
//!
//! Commands are kept in vectors that are reused, and run by [`Gpu::submit`]. A device that checks runs the commands between two
//! barriers last to first and takes them to run at the same time; what its checker finds makes the submit fail.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use msl_sim::{Argument, Binary, Check, Config, Counts, Device, Dispatch, Instrument, Order, Pipeline, Size, Source};
use vllm_apple_ops::Traffic;

use super::once_map::OnceMap;
use super::{Binding, Command, Compiler, Constant, Facts, Gpu, GpuError, Kernel, MappedFile, Value, host_memory};

/// See the module.
pub struct SoftwareGpu {
    facts: Facts,
    device: Device,
    check: Check,
    /// What submitted commands have done and, if accesses are counted, moved.
    counts: Counts,
    moved: msl_sim::Traffic,
    commands: Vec<Recorded>,
    /// Bindings of all commands, one command's after the other's.
    bindings: Vec<Bound>,
    /// Copied bytes of all bindings.
    bytes: Vec<u8>,
    /// Indices of the commands that barriers come before.
    barriers: Vec<usize>,
    /// What came of the commands that are committed.
    committed: Result<(), GpuError>,
    edit: Option<Edit>,
    refusal: Option<Refusal>,
}

/// Pipelines that a device is to refuse, by function and constants, for tests.
pub type Refusal = fn(&str, &[Constant]) -> bool;

/// A change of the kernels' text, for tests that break a kernel on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Edit {
    /// What is replaced where it occurs; it may occur once in a library at most.
    pub find: &'static str,
    /// What comes in its place.
    pub replace: &'static str,
    /// Only kernels of this float type, by the end of their names, are compiled of those that there is one of for each: it takes a third of
    /// the time.
    pub only: Option<&'static str>,
}

impl Edit {
    /// Of the kernels of all types.
    #[must_use]
    pub fn new(find: &'static str, replace: &'static str) -> Self {
        Self { find, replace, only: None }
    }

    fn of(self, text: &str, file: &str) -> String {
        let Self { find, replace, only } = self;
        assert!(text.matches(find).count() <= 1, "{find:?} occurs more than once in {file}");
        let is_other = |line: &str| {
            let types = ["_f32\"", "_f16\"", "_bf16\""];
            let has = |end: &&str| line.starts_with("INSTANTIATE") && line.contains(*end);
            only.is_some_and(|only| {
                types.iter().find(|end| has(end)).is_some_and(|end| end.trim_end_matches('"') != only)
            })
        };
        let lines = text.replace(find, replace);
        lines.lines().filter(|line| !is_other(line)).flat_map(|line| [line, "\n"]).collect()
    }
}

/// Memory of the host, its own or a file's.
#[derive(Clone)]
pub struct SoftwareBuffer {
    buffer: msl_sim::Buffer,
    /// Keeps the mapping alive.
    _file: Option<Arc<dyn MappedFile>>,
}

struct Recorded {
    pipeline: Arc<Pipeline>,
    threadgroups: [usize; 3],
    threads: usize,
    /// How many bindings come before and with this command.
    bindings_end: usize,
}

enum Bound {
    Buffer { buffer: SoftwareBuffer, offset: usize, len: usize },
    Bytes { start: usize, end: usize },
}

impl Bound {
    fn argument<'a>(&'a self, bytes: &'a [u8]) -> Argument<'a> {
        match *self {
            Self::Buffer { ref buffer, offset, len } => {
                Argument::Buffer { buffer: &buffer.buffer, offset, len: Some(len) }
            }
            Self::Bytes { start, end } => Argument::Bytes(&bytes[start..end]),
        }
    }
}

impl SoftwareGpu {
    /// A device that runs as fast as it can, on all threads.
    ///
    /// # Errors
    /// [`GpuError::Unavailable`] if there is no clang, with what to install.
    pub fn fast() -> Result<Self, GpuError> {
        let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self::new(Config { threads, ..Config::default() })
    }

    /// A device that checks every access to memory, every barrier and every simdgroup operation.
    ///
    /// # Errors
    /// As [`SoftwareGpu::fast`].
    pub fn checked() -> Result<Self, GpuError> {
        Self::new(Config { check: Check::Full, order: Order::Reverse, ..Config::default() })
    }

    /// A device that counts the bytes that kernels move, and checks nothing.
    ///
    /// # Errors
    /// As [`SoftwareGpu::fast`].
    pub fn counting() -> Result<Self, GpuError> {
        Self::new(Config { check: Check::Traffic, ..Config::default() })
    }

    fn new(config: Config) -> Result<Self, GpuError> {
        let unavailable = |reason: String| GpuError::Unavailable(format!("the software Metal device: {reason}"));
        let probe = Source { name: "probe.metal", text: "kernel void probe() {}", include_dirs: &[], defines: &[] };
        msl_sim::compile(&probe, Instrument::None).map_err(|e| unavailable(e.to_string()))?;
        let memory = host_memory()?;
        let facts = Facts {
            backend: "software-metal",
            name: format!("msl-sim, {} host threads", config.threads),
            memory,
            max_working_set: memory,
            max_buffer: memory,
            native_bf16: true,
            families: vec!["software".to_owned()],
        };
        let check = config.check;
        let device = Device::new(config).map_err(|e| unavailable(e.to_string()))?;
        Ok(Self {
            facts,
            device,
            check,
            counts: Counts::default(),
            moved: msl_sim::Traffic::default(),
            commands: Vec::new(),
            bindings: Vec::new(),
            bytes: Vec::new(),
            barriers: Vec::new(),
            committed: Ok(()),
            edit: None,
            refusal: None,
        })
    }

    /// The same device with kernels that are changed.
    #[must_use]
    pub fn with_edit(self, edit: Edit) -> Self {
        Self { edit: Some(edit), ..self }
    }

    /// The same device, which refuses some pipelines.
    #[must_use]
    pub fn with_refusal(self, refusal: Refusal) -> Self {
        Self { refusal: Some(refusal), ..self }
    }

    /// What submitted commands have done since the last call and, if the device counts accesses, moved.
    pub fn take_counts(&mut self) -> (Counts, msl_sim::Traffic) {
        (std::mem::take(&mut self.counts), std::mem::take(&mut self.moved))
    }

    /// Nothing is recorded any more.
    fn forget(&mut self) {
        self.commands.clear();
        self.bindings.clear();
        self.bytes.clear();
        self.barriers.clear();
    }

    /// Runs the recorded commands `first..end`, between which no barrier is.
    fn run_group(&mut self, first: usize, end: usize) -> Result<(), GpuError> {
        let last_first = self.check == Check::Full;
        self.device.begin_group();
        let result = (0..end - first).try_for_each(|i| self.run(if last_first { end - 1 - i } else { first + i }));
        self.device.end_group();
        result
    }

    fn run(&mut self, index: usize) -> Result<(), GpuError> {
        let command = &self.commands[index];
        let start = if index == 0 { 0 } else { self.commands[index - 1].bindings_end };
        let bindings = &self.bindings[start..command.bindings_end];
        let arguments: Vec<_> = bindings.iter().map(|bound| bound.argument(&self.bytes)).enumerate().collect();
        let failed = |what: &dyn std::fmt::Display| GpuError::Commands(format!("{}: {what}", command.pipeline.name()));
        let size = |n: usize| u32::try_from(n).map_err(|_| failed(&format!("a grid of {n} threadgroups")));
        let [x, y, z] = command.threadgroups;
        let dispatch = Dispatch {
            arguments: &arguments,
            size: Size::Threadgroups([size(x)?, size(y)?, size(z)?]),
            threads_per_threadgroup: [size(command.threads)?, 1, 1],
        };
        let report = self.device.dispatch(&command.pipeline, &dispatch).map_err(|e| failed(&e))?;
        self.counts = self.counts.plus(report.counts);
        self.moved = self.moved.plus(report.traffic);
        match &report.findings[..] {
            [] => Ok(()),
            findings => {
                Err(GpuError::Commands(findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))
            }
        }
    }
}

/// clang, with what its libraries report.
pub struct SoftwareCompiler {
    instrument: Instrument,
    edit: Option<Edit>,
    refusal: Option<Refusal>,
}

impl Compiler for SoftwareCompiler {
    type Pipeline = Arc<Pipeline>;

    fn pipeline(&self, kernel: &Kernel, constants: &[Constant], threads: usize) -> Result<Arc<Pipeline>, GpuError> {
        let failed = |reason: String| GpuError::Compile {
            file: kernel.file.to_owned(),
            function: kernel.function.to_owned(),
            reason,
        };
        if self.refusal.is_some_and(|refuses| refuses(kernel.function, constants)) {
            return Err(failed("a test wants it refused".to_owned()));
        }
        let binary = library(kernel, self.instrument, self.edit).map_err(failed)?;
        let constants: Vec<_> = constants.iter().map(|c| (c.index, constant(c.value))).collect();
        let mut pipeline = Pipeline::new(&binary, kernel.function, &constants).map_err(|e| failed(e.to_string()))?;
        if (1..=pipeline.max_total_threads_per_threadgroup() as usize).contains(&threads) {
            pipeline.set_max_total_threads_per_threadgroup(threads as u32);
        }
        Ok(Arc::new(pipeline))
    }
}

impl Gpu for SoftwareGpu {
    type Buffer = SoftwareBuffer;
    type Pipeline = Arc<Pipeline>;
    type Compiler = SoftwareCompiler;

    fn compiler(&self) -> SoftwareCompiler {
        let instrument = if self.check == Check::Off { Instrument::None } else { Instrument::Accesses };
        SoftwareCompiler { instrument, edit: self.edit, refusal: self.refusal }
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn allocate(&self, len: usize, purpose: &str) -> Result<SoftwareBuffer, GpuError> {
        let refused = |_| GpuError::OutOfMemory { bytes: len, purpose: purpose.to_owned() };
        Ok(SoftwareBuffer { buffer: msl_sim::Buffer::new(len).map_err(refused)?, _file: None })
    }

    fn map(&self, file: &Arc<dyn MappedFile>, part: Range<usize>) -> Result<Option<SoftwareBuffer>, GpuError> {
        let bytes = &file.bytes()[part];
        // SAFETY: the file is kept alive beside the buffer, never changes, and is not for writing.
        let buffer = unsafe { msl_sim::Buffer::from_raw(bytes.as_ptr().cast_mut(), bytes.len(), false) };
        Ok(Some(SoftwareBuffer { buffer, _file: Some(file.clone()) }))
    }

    fn bytes<'a>(&self, buffer: &'a SoftwareBuffer) -> &'a [u8] {
        // SAFETY: commands run only within `submit`, and who changes memory otherwise promises that no other slice is alive.
        unsafe { buffer.buffer.bytes() }
    }

    unsafe fn bytes_mut<'a>(&self, buffer: &'a SoftwareBuffer) -> &'a mut [u8] {
        assert!(buffer.buffer.writable(), "mapped files are not for writing");
        // SAFETY: it is writable, and the caller promises that nobody else uses it.
        unsafe { buffer.buffer.bytes_mut() }
    }

    fn max_threads(&self, pipeline: &Arc<Pipeline>) -> usize {
        pipeline.max_total_threads_per_threadgroup() as usize
    }

    fn encode(&mut self, command: &Command<'_, Self>) {
        for binding in command.bindings {
            self.bindings.push(match *binding {
                Binding::Buffer { buffer, offset, len } => Bound::Buffer { buffer: buffer.clone(), offset, len },
                Binding::Bytes(bytes) => {
                    let start = self.bytes.len();
                    self.bytes.extend_from_slice(bytes);
                    Bound::Bytes { start, end: self.bytes.len() }
                }
            });
        }
        let &Command { pipeline, threadgroups, threads, .. } = command;
        let bindings_end = self.bindings.len();
        self.commands.push(Recorded { pipeline: pipeline.clone(), threadgroups, threads, bindings_end });
    }

    fn barrier(&mut self) {
        self.barriers.push(self.commands.len());
    }

    fn commit(&mut self) {
        let mut first = 0;
        self.device.begin_group();
        for i in 0..=self.barriers.len() {
            let end = self.barriers.get(i).copied().unwrap_or(self.commands.len());
            if self.committed.is_ok() {
                self.committed = self.run_group(first, end);
            }
            self.device.barrier();
            first = end;
        }
        self.device.end_group();
        self.forget();
    }

    fn submit(&mut self) -> Result<(), GpuError> {
        self.commit();
        std::mem::replace(&mut self.committed, Ok(()))
    }

    fn take_traffic(&mut self) -> Option<Traffic> {
        (self.check != Check::Off).then(|| {
            let (_, moved) = self.take_counts();
            let msl_sim::Traffic { loaded, stored, dram_read: read, dram_written: written, .. } = moved;
            Traffic { loaded, stored, read, written }
        })
    }

    fn discard(&mut self) {
        self.forget();
        self.committed = Ok(());
    }
}

fn constant(value: Value) -> msl_sim::Constant {
    match value {
        Value::U32(v) => msl_sim::Constant::U32(v),
        Value::Bool(v) => msl_sim::Constant::Bool(v),
        Value::F32(v) => msl_sim::Constant::F32(v),
    }
}

/// The library of a kernel's file, compiled once per process, however many devices there are.
fn library(kernel: &Kernel, instrument: Instrument, edit: Option<Edit>) -> Result<Binary, String> {
    type Libraries = OnceMap<(&'static str, Instrument, Option<Edit>), Result<Binary, String>>;
    static LIBRARIES: OnceLock<Libraries> = OnceLock::new();
    let mut text = kernel.text();
    // Libraries that a change leaves alone are compiled once for all changes.
    let edit = edit.filter(|edit| text.contains(edit.find));
    let libraries = LIBRARIES.get_or_init(Libraries::default);
    libraries.get(
        (kernel.source, instrument, edit),
        |_| true,
        || {
            if let Some(edit) = edit {
                text = edit.of(&text, kernel.file);
            }
            let source = Source { name: kernel.file, text: &text, include_dirs: &[], defines: &[] };
            let binary = msl_sim::compile(&source, instrument).map_err(|error| error.to_string())?;
            for lint in &binary.lints {
                tracing::warn!("{lint}");
            }
            Ok(binary)
        },
    )
}
