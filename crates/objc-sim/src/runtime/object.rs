//! Objects: memory, reference counts, and what `NSObject` answers. It knows no other class.
//!
//! The memory of a dead object is never used again, so that a message to it is noticed.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use objc2::runtime::{AnyObject, Imp, Sel};
use objc2::sel;

use super::class::Class;
use super::violation;

/// What comes before each object.
#[repr(C, align(16))]
struct Header {
    count: AtomicUsize,
    state: AtomicU64,
}

const ALIVE: u64 = 0x616c_6976_6521_2121;
const DEAD: u64 = 0x6465_6164_2121_2121;

/// Objects that are alive, by class.
static LIVE: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// How many objects are alive, by their class's name.
pub fn live() -> BTreeMap<String, usize> {
    let live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    live.iter().filter(|(_, count)| **count > 0).map(|(name, count)| (name.clone(), *count)).collect()
}

/// An object's references.
pub fn retain_count(object: &AnyObject) -> usize {
    // SAFETY: a reference to an object is to one of ours.
    unsafe { header(std::ptr::from_ref(object).cast()) }.count.load(Ordering::Relaxed)
}

/// # Safety
/// An object, alive or dead, not a class.
unsafe fn header<'a>(object: *const c_void) -> &'a Header {
    // SAFETY: headers come before objects, and their memory is kept.
    unsafe { &*object.cast::<Header>().sub(1) }
}

/// Whether an object may be used.
///
/// # Safety
/// As for `header`.
unsafe fn header_is_alive(object: *const c_void) -> bool {
    // SAFETY: the caller's promise.
    unsafe { header(object) }.state.load(Ordering::Acquire) == ALIVE
}

/// The class of an object, the metaclass of a class.
///
/// # Safety
/// An object or a class.
pub unsafe fn class_of(object: *const c_void) -> &'static Class {
    super::class::load();
    // SAFETY: objects and classes begin with their class.
    let class = unsafe { &**object.cast::<*const Class>() };
    let body = class.body();
    // SAFETY: no class, so an object.
    if !body.meta && !unsafe { header_is_alive(object) } {
        violation(format!("message sent to deallocated instance of {}", body.name.to_string_lossy()));
    }
    class
}

fn count(class: &Class, change: impl Fn(usize) -> usize) {
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = live.entry(class.body().name.to_string_lossy().into_owned()).or_default();
    *entry = change(*entry);
}

/// # Safety
/// A class.
unsafe extern "C-unwind" fn alloc(class: &'static Class, _: Sel) -> *mut c_void {
    let layout = Layout::from_size_align(size_of::<Header>() + class.size(), 16).expect("classes are small");
    // SAFETY: not empty.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    count(class, |live| live + 1);
    // SAFETY: room for both was allocated; 16 is the alignment of both.
    unsafe {
        memory.cast::<Header>().write(Header { count: AtomicUsize::new(1), state: AtomicU64::new(ALIVE) });
        let object = memory.add(size_of::<Header>());
        object.cast::<*const Class>().write(class);
        object.cast()
    }
}

unsafe extern "C-unwind" fn init(object: *mut c_void, _: Sel) -> *mut c_void {
    object
}

/// # Safety
/// A class.
unsafe extern "C-unwind" fn new(class: &'static Class, _: Sel) -> *mut c_void {
    // SAFETY: the caller's promise; `init` takes nothing and returns an object.
    unsafe {
        let object = alloc(class, sel!(alloc));
        let init = class.find(sel!(init)).expect("NSObject has one").imp;
        std::mem::transmute::<Imp, unsafe extern "C-unwind" fn(*mut c_void, Sel) -> *mut c_void>(init)(
            object,
            sel!(init),
        )
    }
}

/// # Safety
/// An object with no reference.
unsafe extern "C-unwind" fn dealloc(object: *mut c_void, _: Sel) {
    // SAFETY: the caller's promise.
    unsafe {
        count(class_of(object), |live| live - 1);
        header(object).state.store(DEAD, Ordering::Release);
    }
}

/// # Safety
/// Objects, or null.
unsafe extern "C-unwind" fn is_equal(left: *const c_void, _: Sel, right: *const c_void) -> objc2::runtime::Bool {
    objc2::runtime::Bool::new(left == right)
}

/// # Safety
/// An object.
unsafe extern "C-unwind" fn responds_to_selector(object: *const c_void, _: Sel, name: Sel) -> objc2::runtime::Bool {
    // SAFETY: the caller's promise.
    objc2::runtime::Bool::new(unsafe { class_of(object) }.find(name).is_some())
}

/// Makes the root class.
pub fn define_ns_object(class: &'static Class) {
    class.fill(c"NSObject", std::ptr::null());
    // SAFETY: an Imp is a pointer to any function; what it takes is said beside it.
    unsafe {
        let imp = |function: *const ()| std::mem::transmute::<*const (), Imp>(function);
        class.isa().add_method(sel!(alloc), imp(alloc as *const ()), c"@@:");
        class.isa().add_method(sel!(new), imp(new as *const ()), c"@@:");
        class.add_method(sel!(init), imp(init as *const ()), c"@@:");
        class.add_method(sel!(dealloc), imp(dealloc as *const ()), c"v@:");
        class.add_method(sel!(isEqual:), imp(is_equal as *const ()), c"C@:@");
        class.add_method(sel!(respondsToSelector:), imp(responds_to_selector as *const ()), c"C@::");
    }
}

/// # Safety
/// An object or a class, or null.
#[unsafe(no_mangle)]
unsafe extern "C" fn object_getClass(object: *const c_void) -> *const Class {
    if object.is_null() {
        return std::ptr::null();
    }
    super::class::load();
    // SAFETY: objects and classes begin with their class.
    unsafe { *object.cast::<*const Class>() }
}

/// # Safety
/// An object, a class, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn objc_retain(object: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        if !object.is_null() && !class_of(object).body().meta {
            header(object).count.fetch_add(1, Ordering::Relaxed);
        }
    }
    object
}

/// # Safety
/// As [`objc_retain`], and the reference is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn objc_release(object: *mut c_void) {
    // SAFETY: the caller's promise; `dealloc` takes nothing.
    unsafe {
        if object.is_null() || class_of(object).body().meta {
            return;
        }
        if header(object).count.fetch_sub(1, Ordering::AcqRel) == 1 {
            let dealloc = class_of(object).find(sel!(dealloc)).expect("NSObject has one").imp;
            std::mem::transmute::<Imp, unsafe extern "C-unwind" fn(*mut c_void, Sel)>(dealloc)(object, sel!(dealloc));
        }
    }
}
