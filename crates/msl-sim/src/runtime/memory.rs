//! Memory straight from the operating system: zeroed pages with slack around them, so that a kernel that misses its buffer by a
//! little does not hit the host's own memory. It knows nothing of buffers.

use std::io;
use std::ptr::NonNull;

/// Bytes of accessible memory before and after every [`Mapping`].
pub const SLACK: usize = 64 * 1024;

/// Zeroed pages with [`SLACK`] on both sides.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory that it alone owns.
unsafe impl Send for Mapping {}
// SAFETY: as above; who reads and writes through the pointer answers for the order.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes of zeros, page-aligned; pages that nobody touches cost nothing.
    pub fn new(len: usize) -> io::Result<Self> {
        let total = len
            .checked_next_multiple_of(page_size())
            .and_then(|len| len.checked_add(2 * SLACK))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh anonymous mapping touches no existing memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                total,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: NonNull::new(base.cast()).expect("a mapping is not at 0"), len: total })
    }

    /// Where the content begins.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: every mapping has slack before its content.
        unsafe { self.base.as_ptr().add(SLACK) }
    }

    /// Makes one page inaccessible, `offset` bytes (a multiple of the page size) into the content.
    pub fn guard_page(&self, offset: usize) -> io::Result<()> {
        // SAFETY: the page lies within the mapping, which the caller does not use there.
        let rc = unsafe { libc::mprotect(self.as_ptr().add(offset).cast(), page_size(), libc::PROT_NONE) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mapping made in `new`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The host's page size in bytes.
pub fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}
