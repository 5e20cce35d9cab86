//! A GPU that computes nothing: real memory, and commands that are recorded and forgotten. For measuring and testing the host.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;

use super::{Binding, Command, Compiler, Constant, Facts, Gpu, GpuError, Kernel, MappedFile, PAGE, Work};

/// See the module.
pub struct FakeGpu {
    facts: Facts,
    /// Kernels compile; they do nothing.
    compiles: bool,
    recorded: Vec<Recorded>,
    bindings: Vec<(FakeBuffer, usize, usize)>,
    bytes: Vec<u8>,
    /// Commands since the device was made.
    num_commands: usize,
    num_barriers: usize,
    /// What the dispatches of each command buffer do, from [`FakeGpu::keep_work`] on.
    work: Option<Vec<Vec<Work>>>,
}

/// A command as it is kept: where its bindings and bytes end.
struct Recorded {
    _pipeline: Arc<()>,
    _bindings_end: usize,
    _bytes_end: usize,
}

/// Plain memory, or a mapped file.
#[derive(Clone)]
pub struct FakeBuffer(Arc<Memory>);

struct Memory {
    words: UnsafeCell<Box<[u128]>>,
    len: usize,
    file: Option<(Arc<dyn MappedFile>, Range<usize>)>,
}

// SAFETY: plain memory; who changes it promises to be alone, see `Gpu::bytes_mut`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl FakeGpu {
    /// A device whose kernels compile and do nothing.
    pub fn recording() -> Self {
        Self::new(true)
    }

    /// A device that compiles no kernel: all ops are computed on the host.
    pub fn without_compiler() -> Self {
        Self::new(false)
    }

    /// The same device with shorter buffers.
    pub fn with_longest_buffer(mut self, bytes: u64) -> Self {
        self.facts.max_buffer = bytes;
        self
    }

    fn new(compiles: bool) -> Self {
        let facts = Facts {
            backend: "fake-metal",
            name: "a GPU that computes nothing".to_owned(),
            memory: 1 << 40,
            max_working_set: 1 << 40,
            max_buffer: 1 << 40,
            native_bf16: true,
            families: vec!["fake".to_owned()],
        };
        let (recorded, bindings, bytes) = (Vec::new(), Vec::new(), Vec::new());
        Self { facts, compiles, recorded, bindings, bytes, num_commands: 0, num_barriers: 0, work: None }
    }

    /// Commands recorded so far, run or not.
    pub fn num_commands(&self) -> usize {
        self.num_commands
    }

    /// From now on keeps what is to be done.
    pub fn keep_work(&mut self) {
        self.work = Some(vec![Vec::new()]);
    }

    /// What the dispatches of each command buffer would have done, since [`FakeGpu::keep_work`].
    pub fn take_work(&mut self) -> Vec<Vec<Work>> {
        let mut work = self.work.take().unwrap_or_default();
        work.retain(|buffer| !buffer.is_empty());
        work
    }

    /// Barriers recorded so far.
    pub fn num_barriers(&self) -> usize {
        self.num_barriers
    }
}

/// Compiles everything to nothing, or nothing at all.
pub struct FakeCompiler {
    compiles: bool,
}

impl Compiler for FakeCompiler {
    type Pipeline = Arc<()>;

    fn pipeline(&self, kernel: &Kernel, _constants: &[Constant], _threads: usize) -> Result<Arc<()>, GpuError> {
        if self.compiles {
            return Ok(Arc::new(()));
        }
        let (file, function) = (kernel.file.to_owned(), kernel.function.to_owned());
        Err(GpuError::Compile { file, function, reason: "this device has no compiler".to_owned() })
    }
}

impl Gpu for FakeGpu {
    type Buffer = FakeBuffer;
    type Pipeline = Arc<()>;
    type Compiler = FakeCompiler;

    fn compiler(&self) -> FakeCompiler {
        FakeCompiler { compiles: self.compiles }
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn allocate(&self, len: usize, _purpose: &str) -> Result<FakeBuffer, GpuError> {
        // Zeros that cost nothing until they are touched.
        let words = vec![0u128; len.div_ceil(16)].into_boxed_slice();
        Ok(FakeBuffer(Arc::new(Memory { words: UnsafeCell::new(words), len, file: None })))
    }

    fn map(&self, file: &Arc<dyn MappedFile>, part: Range<usize>) -> Result<Option<FakeBuffer>, GpuError> {
        assert!(part.start.is_multiple_of(PAGE) && part.len().next_multiple_of(PAGE) as u64 <= self.facts.max_buffer);
        let memory = Memory { words: UnsafeCell::default(), len: part.len(), file: Some((file.clone(), part)) };
        Ok(Some(FakeBuffer(Arc::new(memory))))
    }

    fn bytes<'a>(&self, buffer: &'a FakeBuffer) -> &'a [u8] {
        if let Some((file, part)) = &buffer.0.file {
            return &file.bytes()[part.clone()];
        }
        // SAFETY: who changes the memory promises that no other slice of it is alive.
        let words: &[u128] = unsafe { &*buffer.0.words.get() };
        &bytemuck::cast_slice(words)[..buffer.0.len]
    }

    unsafe fn bytes_mut<'a>(&self, buffer: &'a FakeBuffer) -> &'a mut [u8] {
        assert!(buffer.0.file.is_none(), "mapped files are only read");
        // SAFETY: the caller promises that no other slice of it is alive.
        let words: &mut [u128] = unsafe { &mut *buffer.0.words.get() };
        &mut bytemuck::cast_slice_mut(words)[..buffer.0.len]
    }

    fn max_threads(&self, _pipeline: &Arc<()>) -> usize {
        1024
    }

    fn encode(&mut self, command: &Command<'_, Self>) {
        self.num_commands += 1;
        if let Some(buffer) = self.work.as_mut().and_then(|work| work.last_mut()) {
            buffer.push(command.work);
        }
        for binding in command.bindings {
            match binding {
                &Binding::Buffer { buffer, offset, len } => self.bindings.push((buffer.clone(), offset, len)),
                Binding::Bytes(bytes) => self.bytes.extend_from_slice(bytes),
            }
        }
        self.recorded.push(Recorded {
            _pipeline: command.pipeline.clone(),
            _bindings_end: self.bindings.len(),
            _bytes_end: self.bytes.len(),
        });
    }

    fn barrier(&mut self) {
        self.num_barriers += 1;
    }

    fn commit(&mut self) {
        self.work.iter_mut().for_each(|work| work.push(Vec::new()));
    }

    fn submit(&mut self) -> Result<(), GpuError> {
        self.commit();
        self.discard();
        Ok(())
    }

    fn discard(&mut self) {
        self.recorded.clear();
        self.bindings.clear();
        self.bytes.clear();
    }
}
