//! A GPU that compiles with another's compiler and computes nothing: whether all kernels become pipelines, where none can run.

use std::ops::Range;
use std::sync::Arc;

use super::fake::{FakeBuffer, FakeGpu};
use super::faulty::rebound;
use super::{Command, Facts, Gpu, GpuError, MappedFile};

/// See the module.
pub struct CompileOnly<G: Gpu> {
    compiler: G,
    memory: FakeGpu,
    compiled: Arc<()>,
}

impl<G: Gpu> CompileOnly<G> {
    /// A device whose pipelines are `compiler`'s.
    pub fn new(compiler: G) -> Self {
        Self { compiler, memory: FakeGpu::recording(), compiled: Arc::new(()) }
    }
}

impl<G: Gpu> Gpu for CompileOnly<G> {
    type Buffer = FakeBuffer;
    type Pipeline = G::Pipeline;
    type Compiler = G::Compiler;

    fn compiler(&self) -> G::Compiler {
        self.compiler.compiler()
    }

    fn facts(&self) -> &Facts {
        self.compiler.facts()
    }

    fn allocate(&self, len: usize, purpose: &str) -> Result<FakeBuffer, GpuError> {
        self.memory.allocate(len, purpose)
    }

    fn map(&self, file: &Arc<dyn MappedFile>, part: Range<usize>) -> Result<Option<FakeBuffer>, GpuError> {
        self.memory.map(file, part)
    }

    fn bytes<'a>(&self, buffer: &'a FakeBuffer) -> &'a [u8] {
        self.memory.bytes(buffer)
    }

    unsafe fn bytes_mut<'a>(&self, buffer: &'a FakeBuffer) -> &'a mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.bytes_mut(buffer) }
    }

    fn max_threads(&self, pipeline: &G::Pipeline) -> usize {
        self.compiler.max_threads(pipeline)
    }

    fn encode(&mut self, command: &Command<'_, Self>) {
        let bindings = &rebound(command.bindings)[..command.bindings.len()];
        let &Command { threadgroups, threads, work, .. } = command;
        self.memory.encode(&Command { pipeline: &self.compiled, bindings, threadgroups, threads, work });
    }

    fn barrier(&mut self) {
        self.memory.barrier();
    }

    fn commit(&mut self) {
        self.memory.commit();
    }

    fn submit(&mut self) -> Result<(), GpuError> {
        self.memory.submit()
    }

    fn discard(&mut self) {
        self.memory.discard();
    }
}
