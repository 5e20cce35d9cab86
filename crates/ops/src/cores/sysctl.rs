//! What macOS says of the machine, by name. It knows no name.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

unsafe extern "C" {
    /// Of libSystem: see sysctl(3).
    fn sysctlbyname(
        name: *const c_char,
        old: *mut c_void,
        old_len: *mut usize,
        new: *mut c_void,
        new_len: usize,
    ) -> c_int;
}

/// The longest value that is read.
const LONGEST: usize = 64;

/// The value of this name; none if there is no such name, or the value is long.
pub(super) fn value(name: &str) -> Option<Vec<u8>> {
    let name = CString::new(name).ok()?;
    let mut bytes = vec![0; LONGEST];
    let mut len = bytes.len();
    // SAFETY: the name ends with a zero, `bytes` has `len` bytes, to which nothing beyond is written, and nothing is to be set.
    let result = unsafe { sysctlbyname(name.as_ptr(), bytes.as_mut_ptr().cast(), &mut len, ptr::null_mut(), 0) };
    bytes.truncate(len);
    (result == 0).then_some(bytes)
}
