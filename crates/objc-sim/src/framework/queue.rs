//! `MTLCommandQueue`: runs command buffers on a thread of its own, in the order of their commits. It knows no command.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::NSObject;
use objc2::{AnyThread, DefinedClass, Message, define_class, msg_send};

use super::command_buffer::Flags;
use super::execution::Gpu;
use super::{CommandBuffer, Item, ResidencySet, Shared, require, wants_pool};
use crate::foundation::Text;

/// A queue on which so many command buffers have failed runs no other: seen of macOS 26.
const MOST_FAILURES: usize = 2;
/// Residency sets that a queue takes, by the documentation of `addResidencySet:`.
const MOST_SETS: usize = 32;
/// Command buffers that have not ended and that a queue has room for.
const MOST_OPEN: usize = 64;
/// `MTLCommandBufferErrorAccessRevoked`, and its words.
const IGNORED: (isize, &str) = (
    4,
    "Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)",
);

type Work = (Shared<CommandBuffer>, Vec<Item>);

pub(crate) struct Content {
    sender: Sender<Work>,
    /// Of the last command buffer that was committed.
    last: Mutex<Option<Arc<Flags>>>,
    residency: Mutex<Vec<Retained<ResidencySet>>>,
    /// A clone is held by each command buffer that has not ended.
    open: Arc<()>,
}

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "SimCommandQueue"]
    #[ivars = Content]
    pub(crate) struct Queue;

    impl Queue {
        #[unsafe(method(setLabel:))]
        fn set_label(&self, _: Option<&Text>) {}

        #[unsafe(method(addResidencySet:))]
        fn add_residency_set(&self, set: &ResidencySet) {
            wants_pool("addResidencySet:");
            let mut sets = self.ivars().residency.lock().unwrap_or_else(PoisonError::into_inner);
            require(sets.len() < MOST_SETS, || format!("a queue takes {MOST_SETS} residency sets"));
            sets.push(set.retain());
        }

        #[unsafe(method_id(commandBuffer))]
        fn command_buffer(&self) -> Option<Retained<CommandBuffer>> {
            let open = &self.ivars().open;
            require(Arc::strong_count(open) <= MOST_OPEN, || {
                format!("there are {MOST_OPEN} command buffers that have not ended: commandBuffer waits for one, perhaps forever")
            });
            Some(CommandBuffer::new(self.retain(), open.clone()))
        }
    }
);

impl Queue {
    pub fn new() -> Retained<Self> {
        let (sender, receiver) = channel::<Work>();
        let run = move || {
            let mut gpu = Gpu::new();
            let (mut silent, mut failures) = (Vec::new(), 0);
            for (commands, items) in receiver {
                autoreleasepool(|_| {
                    let run = catch_unwind(AssertUnwindSafe(|| match failures < MOST_FAILURES {
                        true => gpu.run(&commands.0, &items),
                        false => Some(Err((IGNORED.0, IGNORED.1.to_owned()))),
                    }));
                    // What goes wrong here must not leave the host waiting.
                    match run.unwrap_or_else(|_| Some(Err((1, "the simulation has panicked".to_owned())))) {
                        Some(result) => {
                            failures += usize::from(result.is_err());
                            drop(items);
                            commands.0.end(result);
                        }
                        // It keeps what it uses for as long as there is a queue.
                        None => silent.push((commands.clone(), items)),
                    }
                });
            }
        };
        std::thread::Builder::new().name("simulated GPU".to_owned()).spawn(run).expect("a thread");
        let content = Content { sender, last: Mutex::default(), residency: Mutex::default(), open: Arc::default() };
        // SAFETY: NSObject's init takes nothing.
        unsafe { msg_send![super(Self::alloc().set_ivars(content)), init] }
    }

    /// Takes over a command buffer; what is returned was committed before it.
    pub fn take(&self, commands: &CommandBuffer, flags: Arc<Flags>, items: Vec<Item>) -> Option<Arc<Flags>> {
        let mut last = self.ivars().last.lock().unwrap_or_else(PoisonError::into_inner);
        self.ivars().sender.send((Shared(commands.retain()), items)).expect("the thread ends after the queue");
        last.replace(flags)
    }
}
