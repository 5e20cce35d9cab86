//! A GPU that fails when a test says so. It knows when, and neither what is computed nor what should follow.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use vllm_apple_ops::Traffic;

use super::{Binding, Command, Compiler, Constant, Facts, Gpu, GpuError, Kernel, MappedFile};

/// A GPU with [`Faults`].
pub struct FaultyGpu<G: Gpu> {
    inner: G,
    faults: Faults,
}

/// What a device is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Memory.
    Allocate,
    /// A kernel to compile.
    Compile,
    /// Commands to run.
    Submit,
}

/// The faults to come; a clone is another handle of the same list.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<Vec<Fault>>>);

#[derive(Debug)]
struct Fault {
    request: Request,
    /// Requests of this kind that succeed before.
    after: usize,
    error: GpuError,
    /// What is asked for is done, and fails then.
    is_done: bool,
}

impl Faults {
    /// Of the requests of this kind that come from now on, the one after the first `after` fails with `error`.
    pub fn fail(&self, request: Request, after: usize, error: GpuError) {
        self.push(Fault { request, after, error, is_done: false });
    }

    /// The same, of commands that have run, or partly run, when they fail: what they wrote is there.
    pub fn fail_behind(&self, after: usize, error: GpuError) {
        self.push(Fault { request: Request::Submit, after, error, is_done: true });
    }

    fn push(&self, fault: Fault) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    /// Faults that have not come yet.
    pub fn left(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn check(&self, request: Request) -> Result<(), GpuError> {
        self.due(request).map_or(Ok(()), |fault| Err(fault.error))
    }

    fn due(&self, request: Request) -> Option<Fault> {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = faults.iter().position(|fault| fault.request == request && fault.after == 0);
        faults
            .iter_mut()
            .filter(|fault| fault.request == request && fault.after > 0)
            .for_each(|fault| fault.after -= 1);
        due.map(|i| faults.remove(i))
    }
}

impl<G: Gpu> FaultyGpu<G> {
    /// `inner`, which fails as `faults` says.
    pub fn new(inner: G, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

/// A compiler with [`Faults`].
pub struct FaultyCompiler<C> {
    inner: C,
    faults: Faults,
}

impl<C: Compiler> Compiler for FaultyCompiler<C> {
    type Pipeline = C::Pipeline;

    fn pipeline(&self, kernel: &Kernel, constants: &[Constant], threads: usize) -> Result<C::Pipeline, GpuError> {
        self.faults.check(Request::Compile)?;
        self.inner.pipeline(kernel, constants, threads)
    }
}

impl<G: Gpu> Gpu for FaultyGpu<G> {
    type Buffer = G::Buffer;
    type Pipeline = G::Pipeline;
    type Compiler = FaultyCompiler<G::Compiler>;

    fn compiler(&self) -> Self::Compiler {
        FaultyCompiler { inner: self.inner.compiler(), faults: self.faults.clone() }
    }

    fn facts(&self) -> &Facts {
        self.inner.facts()
    }

    fn allocate(&self, len: usize, purpose: &str) -> Result<G::Buffer, GpuError> {
        self.faults.check(Request::Allocate)?;
        self.inner.allocate(len, purpose)
    }

    fn map(&self, file: &Arc<dyn MappedFile>, part: Range<usize>) -> Result<Option<G::Buffer>, GpuError> {
        self.inner.map(file, part)
    }

    fn bytes<'a>(&self, buffer: &'a G::Buffer) -> &'a [u8] {
        self.inner.bytes(buffer)
    }

    unsafe fn bytes_mut<'a>(&self, buffer: &'a G::Buffer) -> &'a mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { self.inner.bytes_mut(buffer) }
    }

    fn max_threads(&self, pipeline: &G::Pipeline) -> usize {
        self.inner.max_threads(pipeline)
    }

    fn encode(&mut self, command: &Command<'_, Self>) {
        let bindings = &rebound(command.bindings)[..command.bindings.len()];
        let &Command { pipeline, threadgroups, threads, work, .. } = command;
        self.inner.encode(&Command { pipeline, bindings, threadgroups, threads, work });
    }

    fn barrier(&mut self) {
        self.inner.barrier();
    }

    fn commit(&mut self) {
        self.inner.commit();
    }

    fn submit(&mut self) -> Result<(), GpuError> {
        // What failed commands leave behind is anything. Here it is what was there before, but for what was committed, or what the
        // device has computed: whoever takes it for a result is wrong.
        match self.faults.due(Request::Submit) {
            None => self.inner.submit(),
            Some(Fault { error, is_done: true, .. }) => self.inner.submit().and(Err(error)),
            Some(Fault { error, .. }) => {
                self.inner.discard();
                Err(error)
            }
        }
    }

    fn discard(&mut self) {
        self.inner.discard();
    }

    fn take_traffic(&mut self) -> Option<Traffic> {
        self.inner.take_traffic()
    }
}

/// Bindings of one device as those of another with the same buffers: at most as many as Metal has slots.
pub(super) fn rebound<'a, From: Gpu, To: Gpu<Buffer = From::Buffer>>(
    bindings: &[Binding<'a, From>],
) -> [Binding<'a, To>; 31] {
    let mut rebound = [const { Binding::Bytes(&[]) }; 31];
    for (to, from) in rebound.iter_mut().zip(bindings) {
        *to = match *from {
            Binding::Buffer { buffer, offset, len } => Binding::Buffer { buffer, offset, len },
            Binding::Bytes(bytes) => Binding::Bytes(bytes),
        };
    }
    rebound
}
