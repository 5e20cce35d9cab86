//! The limit of what this process may map (`ulimit -v`). Knows no memory.

use std::mem::MaybeUninit;

/// Bytes, if there is a limit.
pub(crate) fn limit() -> Option<u64> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: fills `limit` if it returns 0.
    if unsafe { libc::getrlimit(libc::RLIMIT_AS, limit.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: it has been filled.
    let most = unsafe { limit.assume_init() }.rlim_cur;
    (most != libc::RLIM_INFINITY).then_some(most)
}
