//! `MTLCommandBuffer`: from the first encoder to the end. It knows no kernel.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use block2::{Block, RcBlock};
use objc2::rc::Retained;
use objc2::runtime::NSObject;
use objc2::{AnyThread, DefinedClass, Message, define_class, msg_send};
use objc2_metal::{MTLCommandBufferStatus, MTLDispatchType};

use super::machine::{Fault, machine};
use super::{COMMAND_BUFFER_ERRORS, Encoder, Item, Queue, require, wants_pool};
use crate::foundation::Error;

type Handler = RcBlock<dyn Fn(NonNull<CommandBuffer>)>;

pub(crate) struct Content {
    queue: Retained<Queue>,
    state: Mutex<State>,
    ended: Condvar,
    flags: Arc<Flags>,
}

struct State {
    status: MTLCommandBufferStatus,
    /// An encoder has not ended.
    encoding: bool,
    items: Vec<Item>,
    handlers: Vec<Handler>,
    error: Option<Retained<Error>>,
    fault: Fault,
    fences_awaited: Vec<usize>,
    /// Until it has ended, the queue counts it.
    _slot: Option<Arc<()>>,
}

/// What the next command buffer of the queue wants to know of this one.
#[derive(Default)]
pub(crate) struct Flags {
    /// The host has waited for it: what comes later cannot overlap.
    waited: AtomicBool,
    fences_updated: Mutex<Vec<usize>>,
}

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "SimCommandBuffer"]
    #[ivars = Content]
    pub(crate) struct CommandBuffer;

    impl CommandBuffer {
        #[unsafe(method_id(computeCommandEncoderWithDispatchType:))]
        fn encoder(&self, kind: MTLDispatchType) -> Option<Retained<Encoder>> {
            {
                let mut state = self.lock();
                require(!state.encoding, || "A command encoder is already encoding to this command buffer".to_owned());
                require(state.open(), || "Command buffer has been committed already".to_owned());
                state.encoding = true;
            }
            Some(Encoder::new(self.retain(), kind))
        }

        #[unsafe(method(addCompletedHandler:))]
        fn add_completed_handler(&self, block: *mut Block<dyn Fn(NonNull<CommandBuffer>)>) {
            let mut state = self.lock();
            require(state.open(), || "Completed handler provided after commit call".to_owned());
            // SAFETY: blocks that are arguments are alive; a method that keeps one copies it.
            state.handlers.extend(unsafe { RcBlock::copy(block) });
        }

        #[unsafe(method(commit))]
        fn commit(&self) {
            wants_pool("-[MTLCommandBuffer commit]");
            let (items, awaited) = {
                let mut state = self.lock();
                require(!state.encoding, || "commit command buffer with uncommitted encoder".to_owned());
                require(state.open(), || "commit an already committed command buffer".to_owned());
                state.status = MTLCommandBufferStatus::Committed;
                state.fault = machine().faults.pop_front().unwrap_or(Fault::None);
                (std::mem::take(&mut state.items), state.fences_awaited.clone())
            };
            let Some(before) = self.ivars().queue.take(self, self.ivars().flags.clone(), items) else { return };
            let updated = before.fences_updated.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let ordered = before.waited.load(Ordering::Acquire) || awaited.iter().any(|fence| updated.contains(fence));
            require(ordered, || {
                "a command buffer may overlap with the one before it: hazards are not tracked, and no fence orders them".to_owned()
            });
        }

        #[unsafe(method(waitUntilCompleted))]
        fn wait(&self) {
            wants_pool("waitUntilCompleted");
            let mut state = self.lock();
            require(!state.open(), || "waitUntilCompleted is called on a command buffer that is not committed".to_owned());
            while state.status < MTLCommandBufferStatus::Completed {
                state = self.ivars().ended.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            self.ivars().flags.waited.store(true, Ordering::Release);
        }

        #[unsafe(method(status))]
        fn status(&self) -> MTLCommandBufferStatus {
            self.lock().status
        }

        #[unsafe(method_id(error))]
        fn error(&self) -> Option<Retained<Error>> {
            self.lock().error.clone()
        }
    }
);

impl State {
    fn open(&self) -> bool {
        self.status < MTLCommandBufferStatus::Committed
    }
}

impl CommandBuffer {
    pub fn new(queue: Retained<Queue>, open: Arc<()>) -> Retained<Self> {
        let state = State {
            status: MTLCommandBufferStatus::NotEnqueued,
            encoding: false,
            items: Vec::new(),
            handlers: Vec::new(),
            error: None,
            fault: Fault::None,
            fences_awaited: Vec::new(),
            _slot: Some(open),
        };
        let content = Content { queue, state: Mutex::new(state), ended: Condvar::new(), flags: Arc::default() };
        // SAFETY: NSObject's init takes nothing.
        unsafe { msg_send![super(Self::alloc().set_ivars(content)), init] }
    }

    /// What an encoder has recorded, when it ends.
    pub fn take(&self, items: Vec<Item>, fences_awaited: &[usize], fences_updated: &[usize]) {
        let mut state = self.lock();
        state.encoding = false;
        state.items.extend(items);
        state.fences_awaited.extend(fences_awaited);
        let flags = &self.ivars().flags;
        flags.fences_updated.lock().unwrap_or_else(PoisonError::into_inner).extend(fences_updated);
    }

    pub fn fault(&self) -> Fault {
        self.lock().fault.clone()
    }

    /// It has run or failed: handlers first, and then whoever waits, as on a Mac.
    pub fn end(&self, result: Result<(), (isize, String)>) {
        let handlers = {
            let mut state = self.lock();
            state._slot = None;
            state.error = result.err().map(|(code, words)| Error::new(COMMAND_BUFFER_ERRORS, code, &words));
            std::mem::take(&mut state.handlers)
        };
        for handler in handlers {
            handler.call((NonNull::from(self),));
        }
        let mut state = self.lock();
        state.status = match state.error {
            None => MTLCommandBufferStatus::Completed,
            Some(_) => MTLCommandBufferStatus::Error,
        };
        self.ivars().ended.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.ivars().state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
