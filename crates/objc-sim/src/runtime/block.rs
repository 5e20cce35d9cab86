//! Blocks: closures that are copied to the heap, counted, and freed with what they hold. It knows no signature.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use super::violation;

/// The beginning of each block, by clang's "Block Implementation Specification".
#[repr(C)]
struct Block {
    isa: *const c_void,
    flags: AtomicI32,
    reserved: c_int,
    invoke: *const c_void,
    descriptor: *const Descriptor,
}

#[repr(C)]
struct Descriptor {
    reserved: c_ulong,
    size: c_ulong,
    /// These two, if the flags say so.
    copy: unsafe extern "C-unwind" fn(*mut c_void, *const c_void),
    dispose: unsafe extern "C-unwind" fn(*mut c_void),
}

/// Of the flags: the count of references.
const COUNT: i32 = 0xffff;
const ON_HEAP: i32 = 1 << 24;
const COPIES_AND_DISPOSES: i32 = 1 << 25;
const GLOBAL: i32 = 1 << 28;

#[unsafe(no_mangle)]
static _NSConcreteStackBlock: [usize; 32] = [0; 32];
#[unsafe(no_mangle)]
static _NSConcreteGlobalBlock: [usize; 32] = [0; 32];
static MALLOC_BLOCK: [usize; 32] = [0; 32];

/// Blocks on the heap.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// How many blocks are alive on the heap.
pub fn live() -> usize {
    LIVE.load(Ordering::Acquire)
}

/// # Safety
/// A block.
unsafe fn layout(block: &Block) -> Layout {
    // SAFETY: the caller's promise.
    let size = unsafe { (*block.descriptor).size };
    Layout::from_size_align(size as usize, 16).expect("blocks are small")
}

/// # Safety
/// A block that is alive, or null.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Block_copy(pointer: *const c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    let Some(block) = (unsafe { pointer.cast::<Block>().as_ref() }) else { return std::ptr::null_mut() };
    let flags = block.flags.load(Ordering::Relaxed);
    if flags & GLOBAL != 0 {
        return pointer.cast_mut();
    }
    if flags & ON_HEAP != 0 {
        if block.flags.fetch_add(1, Ordering::Relaxed) & COUNT == 0 {
            violation("a block is copied that is freed");
        }
        return pointer.cast_mut();
    }
    // SAFETY: a block says how long it is, and how its content is copied.
    unsafe {
        let layout = layout(block);
        let copy = alloc(layout);
        if copy.is_null() {
            handle_alloc_error(layout);
        }
        copy.copy_from_nonoverlapping(pointer.cast(), layout.size());
        let heap = &mut *copy.cast::<Block>();
        heap.isa = (&raw const MALLOC_BLOCK).cast();
        *heap.flags.get_mut() = (flags & !COUNT) | ON_HEAP | 1;
        if flags & COPIES_AND_DISPOSES != 0 {
            ((*block.descriptor).copy)(copy.cast(), pointer);
        }
        LIVE.fetch_add(1, Ordering::AcqRel);
        copy.cast()
    }
}

/// # Safety
/// A block whose reference is the caller's, or null.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Block_release(pointer: *const c_void) {
    // SAFETY: the caller's promise.
    let Some(block) = (unsafe { pointer.cast::<Block>().as_ref() }) else { return };
    let flags = block.flags.load(Ordering::Relaxed);
    if flags & ON_HEAP == 0 {
        return;
    }
    match block.flags.fetch_sub(1, Ordering::AcqRel) & COUNT {
        0 => violation("a block is released that is freed"),
        // SAFETY: nobody else has it.
        1 => unsafe {
            if flags & COPIES_AND_DISPOSES != 0 {
                ((*block.descriptor).dispose)(pointer.cast_mut());
            }
            LIVE.fetch_sub(1, Ordering::AcqRel);
            dealloc(pointer.cast_mut().cast(), layout(block));
        },
        _ => {}
    }
}
