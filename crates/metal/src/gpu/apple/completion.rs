//! Waits for a command buffer, but not forever. It knows no step.

use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use block2::RcBlock;
use objc2::runtime::ProtocolObject;
use objc2_metal::MTLCommandBuffer;

type CommandBuffer = ProtocolObject<dyn MTLCommandBuffer>;

/// What a command buffer calls when it has run or failed. Made once: steps allocate nothing for it.
pub(super) struct Completion {
    signal: Arc<Signal>,
    handler: RcBlock<dyn Fn(NonNull<CommandBuffer>)>,
}

#[derive(Default)]
struct Signal {
    done: Mutex<bool>,
    changed: Condvar,
}

// SAFETY: the block can be called, copied and freed on any thread: its reference count is atomic, and all that it holds is a `Signal`.
unsafe impl Send for Completion {}

impl Completion {
    pub fn new() -> Self {
        let signal = Arc::new(Signal::default());
        let raised = signal.clone();
        let handler = RcBlock::new(move |_: NonNull<CommandBuffer>| raised.set(true));
        Self { signal, handler }
    }

    /// Commits the commands. False if they have neither run nor failed after `patience`; they still may, so this must not be used again.
    pub fn commit_and_wait(&mut self, buffer: &CommandBuffer, patience: Duration) -> bool {
        self.signal.set(false);
        // SAFETY: the pointer is to a block of the right signature, which Metal copies and may call on any thread.
        unsafe { buffer.addCompletedHandler(RcBlock::as_ptr(&self.handler)) };
        buffer.commit();
        let done = self.signal.done.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.signal.changed.wait_timeout_while(done, patience, |done| !*done);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Signal {
    fn set(&self, done: bool) {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = done;
        self.changed.notify_one();
    }
}
