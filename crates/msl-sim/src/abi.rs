//! Mirror of `shim/msl_abi.h`: what a compiled kernel library and the runtime know of each other. It knows the layout of these
//! structs and nothing of what is done with them.

use std::ffi::{c_char, c_void};

/// Buffers and threadgroup arguments that Metal has slots for.
pub const SLOTS: usize = 31;

/// `metal::mem_flags::mem_device`
pub const MEM_DEVICE: u32 = 1;
/// `metal::mem_flags::mem_threadgroup`
pub const MEM_THREADGROUP: u32 = 2;

pub const ACCESS_WRITE: u32 = 1;
pub const ACCESS_ATOMIC: u32 = 2;
/// Or-ed to an access that does not promise to be aligned to its size.
pub const ACCESS_PACKED: u32 = 4;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MslSite {
    pub file: *const c_char,
    pub line: u32,
    pub column: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct MslThread {
    pub position_in_grid: [u32; 3],
    pub position_in_threadgroup: [u32; 3],
    pub threadgroup_position_in_grid: [u32; 3],
    pub threads_per_threadgroup: [u32; 3],
    pub dispatch_threads_per_threadgroup: [u32; 3],
    pub threadgroups_per_grid: [u32; 3],
    pub threads_per_grid: [u32; 3],
    pub index_in_threadgroup: u32,
    pub index_in_simdgroup: u32,
    pub simdgroup_index_in_threadgroup: u32,
    pub simdgroups_per_threadgroup: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MslArguments {
    pub buffers: [*mut c_void; SLOTS],
    pub threadgroup: [*mut c_void; SLOTS],
}

pub type MslResolver = unsafe extern "C" fn(records: *const *mut c_void, mask: u32);

#[repr(C)]
pub struct MslHost {
    pub thread: unsafe extern "C" fn() -> *const MslThread,
    pub simd_operation: unsafe extern "C" fn(*const MslSite, *mut c_void, MslResolver),
    pub matrix_product: unsafe extern "C" fn(),
    pub simdgroup_barrier: unsafe extern "C" fn(*const MslSite, u32),
    pub threadgroup_barrier: unsafe extern "C" fn(*const MslSite, u32),
    pub threadgroup_variable:
        unsafe extern "C" fn(*const MslSite, *const c_void, usize, usize, *const c_char) -> *mut c_void,
    pub function_constant: unsafe extern "C" fn(u32, *mut c_void, usize) -> bool,
    pub access: unsafe extern "C" fn(*const c_void, usize, u32, *const c_void),
    pub division_by_zero: unsafe extern "C" fn(*const c_void),
    pub index_out_of_range: unsafe extern "C" fn(*const c_char, i64, *const c_void),
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MslParameter {
    pub name: *const c_char,
    pub kind: u32,
    pub index: u32,
    pub writable: u32,
    pub size: u32,
}

pub const PARAMETER_BUFFER: u32 = 0;
pub const PARAMETER_THREADGROUP: u32 = 1;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MslEntry {
    pub name: *const c_char,
    pub parameters: *const MslParameter,
    pub parameter_count: u32,
    pub max_threads: u32,
    pub invoke: unsafe extern "C" fn(*const MslArguments),
}

pub type MslBind = unsafe extern "C" fn(*const MslHost);
pub type MslEntries = unsafe extern "C" fn(*mut usize) -> *const MslEntry;
