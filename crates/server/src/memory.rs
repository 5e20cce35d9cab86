//! An allocator that can be given a limit. Without one, as in the server, it is the system's; with one, as in a template
//! worker, allocations beyond it fail, which ends the process. The system's own limits do not do: macOS does not enforce
//! RLIMIT_AS. Knows no reason for a limit.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Lets the C library's allocator give freed memory back to the system, as macOS's does. To be called before there are threads.
///
/// glibc keeps up to 64 MiB of what is free at the end of each thread's heap once a large block was freed: its threshold follows
/// the largest block. A fixed threshold ends that, and blocks beyond it get pages of their own. Neither is in the way of a
/// token: the engine allocates nothing of that size in a step.
pub fn give_back_early() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for option in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: it has no preconditions but that of one thread. It fails for values out of range only.
        let is_set = unsafe { libc::mallopt(option, 1 << 20) };
        debug_assert_eq!(is_set, 1);
    }
}

/// The most bytes that may be allocated; 0: no limit, and nothing is counted.
static LIMIT: AtomicUsize = AtomicUsize::new(0);
/// Bytes allocated since there is a limit.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The largest value of `USED`.
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// What is allocated before there is a limit may be freed afterwards: this much, which is far more, keeps `USED` above 0.
const START: usize = 1 << 40;

/// Lets allocations fail from now on that would exceed `bytes`, not counting those before.
///
/// Works in programs whose global allocator is [`BoundedAllocator`]: the `vllm-apple` binary.
pub fn set_limit(bytes: usize) {
    USED.store(START, Relaxed);
    PEAK.store(START, Relaxed);
    LIMIT.store(bytes, Relaxed);
}

/// The most bytes that were allocated at once since there is a limit; 0 without.
pub fn peak() -> usize {
    PEAK.load(Relaxed).saturating_sub(START)
}

/// The system's allocator under the limit of [`set_limit`].
#[derive(Debug)]
pub struct BoundedAllocator;

/// Counts `bytes` more, unless that would exceed `limit`.
fn take(bytes: usize, limit: usize) -> bool {
    let used = USED.fetch_add(bytes, Relaxed).wrapping_add(bytes);
    if bytes > limit || used > START + limit {
        USED.fetch_sub(bytes, Relaxed);
        return false;
    }
    PEAK.fetch_max(used, Relaxed);
    true
}

/// Allocates with `allocate` if there is room for `bytes`.
fn bounded(bytes: usize, allocate: impl FnOnce() -> *mut u8) -> *mut u8 {
    let limit = LIMIT.load(Relaxed);
    if limit == 0 {
        return allocate();
    }
    if !take(bytes, limit) {
        return std::ptr::null_mut();
    }
    let memory = allocate();
    if memory.is_null() {
        give_back(bytes);
    }
    memory
}

fn give_back(bytes: usize) {
    if LIMIT.load(Relaxed) != 0 {
        USED.fetch_sub(bytes, Relaxed);
    }
}

// SAFETY: memory comes from and goes to `System` with the caller's layouts unchanged; counting touches only atomics and
// allocates nothing. A null pointer is how an allocator says that there is no memory.
unsafe impl GlobalAlloc for BoundedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for `System`.
        bounded(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        bounded(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `System` by one of the other functions, with this layout.
        unsafe { System.dealloc(memory, layout) };
        give_back(layout.size());
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks may be there at once, while the content moves.
        // SAFETY: `memory` came from `System` with this layout, and the caller vouches for `size`.
        let moved = bounded(size, || unsafe { System.realloc(memory, layout, size) });
        if !moved.is_null() {
            give_back(layout.size());
        }
        moved
    }
}
