//! `MTLResidencySet`. It knows no command; nothing here ever leaves memory, so it only takes note.

use std::sync::{Mutex, MutexGuard, PoisonError};

use objc2::rc::Retained;
use objc2::runtime::{AnyObject, NSObject};
use objc2::{AnyThread, DefinedClass, Message, define_class, msg_send};

use super::machine::machine;
use super::{require, wants_pool};

/// What it keeps, and what it will from the next commit on.
#[derive(Default)]
pub(crate) struct Members {
    now: Vec<Retained<AnyObject>>,
    next: Vec<Retained<AnyObject>>,
}

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "SimResidencySet"]
    #[ivars = Mutex<Members>]
    pub(crate) struct ResidencySet;

    impl ResidencySet {
        #[unsafe(method(addAllocation:))]
        fn add(&self, allocation: &AnyObject) {
            wants_pool("addAllocation:");
            let mut members = self.lock();
            let new = !has(&members.next, allocation);
            require(new, || "an allocation is added twice".to_owned());
            members.next.push(allocation.retain());
        }

        #[unsafe(method(removeAllocation:))]
        fn remove(&self, allocation: &AnyObject) {
            wants_pool("removeAllocation:");
            let mut members = self.lock();
            require(has(&members.next, allocation), || "an allocation is removed that is no member".to_owned());
            members.next.retain(|member| !std::ptr::eq(&**member, allocation));
        }

        #[unsafe(method(commit))]
        fn commit(&self) {
            wants_pool("-[MTLResidencySet commit]");
            machine().residency_commits += 1;
            let before = {
                let mut members = self.lock();
                let next = members.next.clone();
                std::mem::replace(&mut members.now, next)
            };
            drop(before);
        }

        #[unsafe(method(requestResidency))]
        fn request(&self) {
            wants_pool("requestResidency");
            machine().residency_requests += 1;
        }
    }
);

impl ResidencySet {
    pub fn new() -> Retained<Self> {
        // SAFETY: NSObject's init takes nothing.
        unsafe { msg_send![super(Self::alloc().set_ivars(Mutex::default())), init] }
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.ivars().lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn has(members: &[Retained<AnyObject>], allocation: &AnyObject) -> bool {
    members.iter().any(|member| std::ptr::eq(&**member, allocation))
}
