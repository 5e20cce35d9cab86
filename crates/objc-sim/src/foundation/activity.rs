//! What `-[NSProcessInfo beginActivityWithOptions:reason:]` returns: an activity of the process, until it is ended.

use std::cell::Cell;

use objc2::rc::Retained;
use objc2::runtime::NSObject;
use objc2::{AnyThread, DefinedClass, define_class, msg_send};

use crate::framework::machine::machine;
use crate::runtime::violation;

/// Whether it has ended.
pub(crate) struct State(Cell<bool>);

impl Drop for State {
    fn drop(&mut self) {
        if !self.0.get() {
            violation("an activity is released that has not ended");
        }
    }
}

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "SimActivity"]
    #[ivars = State]
    pub(crate) struct Activity;
);

impl Activity {
    pub fn begin() -> Retained<Self> {
        machine().activities += 1;
        machine().activities_begun += 1;
        // SAFETY: NSObject's init takes nothing.
        unsafe { msg_send![super(Self::alloc().set_ivars(State(Cell::new(false)))), init] }
    }

    pub fn end(&self) {
        if self.ivars().0.replace(true) {
            return violation("endActivity: it has ended already");
        }
        machine().activities -= 1;
    }
}
