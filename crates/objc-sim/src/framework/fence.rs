//! `MTLFence`. It knows no command.

use objc2::rc::Retained;
use objc2::runtime::NSObject;
use objc2::{AnyThread, define_class, msg_send};

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "SimFence"]
    #[ivars = ()]
    pub(crate) struct Fence;
);

impl Fence {
    pub fn new() -> Retained<Self> {
        // SAFETY: NSObject's init takes nothing.
        unsafe { msg_send![super(Self::alloc().set_ivars(())), init] }
    }

    pub fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}
