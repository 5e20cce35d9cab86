//! Waits for command buffers, but not forever. It knows no step.

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
    /// Command buffers that have neither run nor failed.
    waiting: Mutex<usize>,
    changed: Condvar,
}

// SAFETY: the block can be called, copied and freed on any thread: its reference count is atomic, and all that it holds is a `Signal`.
unsafe impl Send for Completion {}

impl Completion {
    pub fn new() -> Self {
        let signal = Arc::new(Signal::default());
        let raised = signal.clone();
        let handler = RcBlock::new(move |_: NonNull<CommandBuffer>| raised.change(|waiting| *waiting -= 1));
        Self { signal, handler }
    }

    /// Commits the commands.
    pub fn commit(&mut self, buffer: &CommandBuffer) {
        self.signal.change(|waiting| *waiting += 1);
        // SAFETY: the pointer is to a block of the right signature, which Metal copies and may call on any thread.
        unsafe { buffer.addCompletedHandler(RcBlock::as_ptr(&self.handler)) };
        buffer.commit();
    }

    /// Waits until at most so many of those that are committed are left. False if none has run or failed for as long as `patience`; they still
    /// may, so this must not be used again.
    pub fn wait(&mut self, most: usize, patience: Duration) -> bool {
        let mut waiting = self.signal.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while *waiting > most {
            let before = *waiting;
            let waited = self.signal.changed.wait_timeout_while(waiting, patience, |waiting| *waiting == before);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                return false;
            }
            waiting = now;
        }
        true
    }
}

impl Signal {
    fn change(&self, change: impl FnOnce(&mut usize)) {
        change(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }
}
