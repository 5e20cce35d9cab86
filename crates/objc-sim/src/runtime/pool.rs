//! Autorelease pools. It knows no object but how to release it.
//!
//! Apple's runtime may hand a returned object over without the pool; here it always goes through it, and there must be one.

use std::cell::RefCell;
use std::ffi::c_void;

use super::object::{objc_release, objc_retain};
use super::violation;

thread_local! {
    /// Of each pool of this thread what it is to release.
    static POOLS: RefCell<Vec<Vec<*mut c_void>>> = const { RefCell::new(Vec::new()) };
}

/// Pools of this thread.
pub fn depth() -> usize {
    POOLS.with_borrow(Vec::len)
}

/// Objects that this thread's pools are to release.
pub fn pending() -> usize {
    POOLS.with_borrow(|pools| pools.iter().map(Vec::len).sum())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPush() -> *mut c_void {
    POOLS.with_borrow_mut(|pools| {
        pools.push(Vec::new());
        std::ptr::without_provenance_mut(pools.len())
    })
}

/// # Safety
/// What this thread's last [`objc_autoreleasePoolPush`] returned.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn objc_autoreleasePoolPop(pool: *mut c_void) {
    if depth() != pool.addr() {
        violation("an autorelease pool ends that is not the innermost");
    }
    // What is released may put more into the pool.
    while let Some(object) = POOLS.with_borrow_mut(|pools| pools.last_mut().and_then(Vec::pop)) {
        // SAFETY: `objc_autorelease` was given the reference.
        unsafe { objc_release(object) };
    }
    POOLS.with_borrow_mut(Vec::pop);
}

/// # Safety
/// An object whose reference is the caller's, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn objc_autorelease(object: *mut c_void) -> *mut c_void {
    if !object.is_null() && !POOLS.with_borrow_mut(|pools| pools.last_mut().map(|pool| pool.push(object)).is_some()) {
        violation("autoreleased with no pool in place: it leaks");
    }
    object
}

/// # Safety
/// As [`objc_autorelease`].
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn objc_autoreleaseReturnValue(object: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { objc_autorelease(object) }
}

/// # Safety
/// As [`objc_retain`].
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn objc_retainAutoreleasedReturnValue(object: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { objc_retain(object) }
}
