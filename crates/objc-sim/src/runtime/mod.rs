//! An Objective-C runtime, as far as objc2 uses one: classes, messages, reference counts, autorelease pools, blocks. It knows no class but
//! `NSObject`, and is strict where Apple's is lenient: what it minds is a [`violation`].

mod block;
mod class;
mod message;
mod object;
mod pool;

use std::sync::{Mutex, PoisonError};

pub use block::live as live_blocks;
pub use object::{live, retain_count};
pub use pool::{depth as pool_depth, pending};

static VIOLATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Says what was done wrong and ends the thread's work, as Metal's API validation ends the program; kept for [`violations`], since threads
/// that nobody joins can do wrong too.
#[track_caller]
pub(crate) fn violation(what: impl Into<String>) {
    let what = what.into();
    VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner).push(what.clone());
    if !std::thread::panicking() {
        panic!("validation: {what}");
    }
}

/// What was done wrong since the last call.
pub fn violations() -> Vec<String> {
    std::mem::take(&mut *VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner))
}
