//! The functions that a kernel calls, as the C table that libraries are bound to. It knows which dispatch runs on this host
//! thread, and hands everything to its executor.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;

use super::executor::Executor;
use crate::abi::{MslHost, MslResolver, MslSite, MslThread};
use crate::pipeline::Constants;

/// What every library is bound to.
pub static HOST: MslHost = MslHost {
    thread,
    simd_operation,
    matrix_product,
    simdgroup_barrier,
    threadgroup_barrier,
    threadgroup_variable,
    function_constant,
    access,
    division_by_zero,
    index_out_of_range,
};

/// Whether an address is in the table, which kernels read when they call the host.
pub fn owns(address: usize) -> bool {
    address.wrapping_sub(std::ptr::from_ref(&HOST) as usize) < size_of::<MslHost>()
}

thread_local! {
    static EXECUTOR: Cell<*const Executor> = const { Cell::new(std::ptr::null()) };
    static LOADING: Cell<*const Constants> = const { Cell::new(std::ptr::null()) };
}

/// While it lives, kernels on this host thread call this executor.
pub struct Entered<'a>(PhantomData<&'a Executor>);

/// Makes kernels on this host thread call `executor`.
pub fn enter(executor: &Executor) -> Entered<'_> {
    let outer = EXECUTOR.replace(executor);
    assert!(outer.is_null(), "a kernel does not dispatch");
    Entered(PhantomData)
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        EXECUTOR.set(std::ptr::null());
    }
}

/// Answers a library's questions for constants while `load` runs.
pub fn with_constants<R>(constants: &Constants, load: impl FnOnce() -> R) -> R {
    LOADING.set(constants);
    let result = load();
    LOADING.set(std::ptr::null());
    result
}

#[inline(always)]
fn executor<'a>() -> &'a Executor {
    let executor = EXECUTOR.get();
    assert!(!executor.is_null(), "only kernels of a dispatch that runs call the host");
    // SAFETY: `Entered` borrows the executor for as long as the pointer is set.
    unsafe { &*executor }
}

unsafe extern "C" fn thread() -> *const MslThread {
    executor().running_thread()
}

unsafe extern "C" fn simd_operation(site: *const MslSite, record: *mut c_void, resolve: MslResolver) {
    // SAFETY: kernel code passes a valid site, a record of its own and the resolver for it.
    unsafe { executor().simd_operation(*site, record, Some(resolve)) };
}

unsafe extern "C" fn matrix_product() {
    executor().matrix_product();
}

unsafe extern "C" fn simdgroup_barrier(site: *const MslSite, flags: u32) {
    // SAFETY: kernel code passes a valid site. The record of a barrier is its flags, which nobody takes for an address.
    unsafe { executor().simd_operation(*site, std::ptr::without_provenance_mut(flags as usize), None) };
}

unsafe extern "C" fn threadgroup_barrier(site: *const MslSite, flags: u32) {
    // SAFETY: kernel code passes a valid site.
    unsafe { executor().threadgroup_barrier(*site, flags) };
}

unsafe extern "C" fn threadgroup_variable(
    site: *const MslSite,
    key: *const c_void,
    size: usize,
    align: usize,
    name: *const c_char,
) -> *mut c_void {
    // SAFETY: kernel code passes a valid site and a name that is null or a string.
    unsafe { executor().threadgroup_variable(&*site, key as usize, size, align, name).cast() }
}

unsafe extern "C" fn function_constant(index: u32, out: *mut c_void, size: usize) -> bool {
    // SAFETY: the constants outlive `with_constants`, which resets the pointer.
    let constants = match unsafe { LOADING.get().as_ref() } {
        Some(loading) => loading,
        None => match executor().constants() {
            Some(constants) => constants,
            None => return false,
        },
    };
    let Some(bytes) = constants.read(index, size) else { return false };
    // SAFETY: `out` has room for `size` bytes, which is how many there are.
    unsafe { out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    true
}

unsafe extern "C" fn access(address: *const c_void, size: usize, kind: u32, pc: *const c_void) {
    let executor = EXECUTOR.get();
    if !executor.is_null() {
        // SAFETY: as in `executor`. Outside of a dispatch, while it is bound, a library accesses only what is its own.
        unsafe { (*executor).access(address as usize, size, kind, pc as usize) };
    }
}

unsafe extern "C" fn division_by_zero(pc: *const c_void) {
    let executor = EXECUTOR.get();
    if !executor.is_null() {
        // SAFETY: as in `executor`. A library's own variables may divide while it is bound.
        unsafe { (*executor).division_by_zero(pc as usize) };
    }
}

unsafe extern "C" fn index_out_of_range(array: *const c_char, index: i64, pc: *const c_void) {
    let executor = EXECUTOR.get();
    if !executor.is_null() {
        // SAFETY: as in `executor`, and clang describes types with strings.
        unsafe { (*executor).index_out_of_range(CStr::from_ptr(array), index, pc as usize) };
    }
}
