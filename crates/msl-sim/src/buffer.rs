//! Memory that the host and kernels share. It knows who owns the bytes, and not what they mean.

use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use bytemuck::{AnyBitPattern, NoUninit};

use crate::runtime::memory::Mapping;

/// Memory that the host and kernels share. A clone is another handle of the same memory.
#[derive(Clone)]
pub struct Buffer(Arc<Inner>);

struct Inner {
    /// `None` if the memory is someone else's.
    memory: Option<Mapping>,
    ptr: *mut u8,
    len: usize,
    writable: bool,
    /// Held for writing by dispatches that may write, for reading by those that only read.
    lock: RwLock<()>,
}

// SAFETY: the memory is reached through `lock`, or by callers who promise to be alone.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Buffer {
    /// `len` zero bytes, page-aligned.
    ///
    /// # Errors
    /// The operating system's, when there is no memory.
    pub fn new(len: usize) -> io::Result<Self> {
        let memory = Mapping::new(len)?;
        let ptr = memory.as_ptr();
        Ok(Self(Arc::new(Inner { memory: Some(memory), ptr, len, writable: true, lock: RwLock::default() })))
    }

    /// A buffer that holds these elements.
    ///
    /// # Errors
    /// The operating system's, when there is no memory.
    pub fn from_slice<T: NoUninit>(elements: &[T]) -> io::Result<Self> {
        let buffer = Self::new(size_of_val(elements))?;
        buffer.write(0, elements);
        Ok(buffer)
    }

    /// Memory of someone else, such as a mapped file, used in place. A kernel that writes to it although it is not `writable` is
    /// wrong: that is a finding, and the dispatch ends there.
    ///
    /// # Safety
    /// `ptr` is valid for reads of `len` bytes, and for writes if `writable`, until the last handle is dropped; nobody changes them
    /// while a dispatch runs.
    pub unsafe fn from_raw(ptr: *mut u8, len: usize, writable: bool) -> Self {
        Self(Arc::new(Inner { memory: None, ptr, len, writable, lock: RwLock::default() }))
    }

    /// Ends writing to it: from here on it is a finding if a kernel does.
    ///
    /// # Panics
    /// If it has other handles.
    pub fn read_only(self) -> Self {
        let inner = Arc::into_inner(self.0).expect("a buffer with other handles cannot become read-only");
        Self(Arc::new(Inner { writable: false, ..inner }))
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)] // An empty buffer is nothing that anyone asks for.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether kernels may write to it.
    pub fn writable(&self) -> bool {
        self.0.writable
    }

    /// Where it begins.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.ptr
    }

    /// The elements of type `T` that fit into it, copied.
    pub fn to_vec<T: AnyBitPattern + NoUninit>(&self) -> Vec<T> {
        let _guard = self.lock_read();
        let mut elements = vec![T::zeroed(); self.len() / size_of::<T>().max(1)];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut elements);
        // SAFETY: the buffer is at least as long, and the lock keeps writers out.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(self.as_ptr(), bytes.len()) };
        elements
    }

    /// Copies elements into it, `offset` bytes from its beginning.
    ///
    /// # Panics
    /// If they do not fit, or the buffer is not writable.
    pub fn write<T: NoUninit>(&self, offset: usize, elements: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        assert!(self.writable(), "the buffer is read-only");
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len());
        assert!(fits, "{} bytes at {offset} do not fit into a buffer of {} bytes", bytes.len(), self.len());
        let _guard = self.lock_write();
        // SAFETY: checked to fit; the lock keeps others out.
        unsafe { self.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// The content in place.
    ///
    /// # Safety
    /// Nobody writes to it while the slice lives: no dispatch, no [`Buffer::write`], no [`Buffer::bytes_mut`].
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is `len` bytes long and initialised; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The content in place, to change.
    ///
    /// # Safety
    /// The buffer is writable, and nobody else touches its content while the slice lives.
    #[allow(clippy::mut_from_ref)] // Handles share their memory: exclusiveness is the caller's promise.
    pub unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: as for `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    pub(crate) fn owns_memory(&self) -> bool {
        self.0.memory.is_some()
    }

    /// Whether both are handles of the same memory.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn downgrade(&self) -> WeakBuffer {
        WeakBuffer(Arc::downgrade(&self.0))
    }

    pub(crate) fn lock_read(&self) -> RwLockReadGuard<'_, ()> {
        self.0.lock.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_write(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.lock.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer, without keeping it alive.
#[derive(Debug)]
pub(crate) struct WeakBuffer(Weak<Inner>);

impl WeakBuffer {
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() != 0
    }

    pub fn is(&self, buffer: &Buffer) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&buffer.0))
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).field("writable", &self.writable).finish_non_exhaustive()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
