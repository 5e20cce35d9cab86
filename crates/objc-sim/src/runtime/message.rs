//! Selectors, and which method answers a message. It knows no class.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use objc2::runtime::{Bool, Imp, Sel};

use super::class::Class;
use super::object;
use super::violation;

/// # Safety
/// The name is a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn sel_registerName(name: *const c_char) -> *const c_char {
    static NAMES: OnceLock<Mutex<HashMap<CString, usize>>> = OnceLock::new();
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let mut names = NAMES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    // A selector is its name, at one address for all who ask.
    let address = match names.get(name) {
        Some(address) => *address,
        None => {
            let address = name.to_owned().into_raw().expose_provenance();
            names.insert(name.to_owned(), address);
            address
        }
    };
    std::ptr::with_exposed_provenance(address)
}

#[unsafe(no_mangle)]
extern "C" fn sel_getName(selector: *const c_char) -> *const c_char {
    selector
}

#[unsafe(no_mangle)]
extern "C" fn sel_isEqual(left: *const c_char, right: *const c_char) -> Bool {
    Bool::new(left == right)
}

/// # Safety
/// The receiver is an object or a class, not null.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn objc_msg_lookup(receiver: *const c_void, selector: Sel) -> Option<Imp> {
    // SAFETY: the caller's promise.
    let class = unsafe { object::class_of(receiver) };
    answer(class, selector)
}

#[repr(C)]
struct Super {
    receiver: *const c_void,
    class: *const Class,
}

/// # Safety
/// As C's `objc_super` demands.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn objc_msg_lookup_super(receiver: &Super, selector: Sel) -> Option<Imp> {
    // SAFETY: the caller's promise.
    unsafe { object::class_of(receiver.receiver) };
    // SAFETY: as above.
    answer(unsafe { &*receiver.class }, selector)
}

fn answer(class: &Class, selector: Sel) -> Option<Imp> {
    let Some(method) = class.find(selector) else {
        violation(format!("unrecognized selector {selector} sent to {}", class.body().name.to_string_lossy()));
        return None;
    };
    Some(method.imp)
}
