//! Memory that host and GPU share: allocated, or a mapped file. It knows no tensor.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block2::RcBlock;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{MTLBuffer, MTLDevice, MTLResource, MTLResourceOptions};

use super::Device;
use super::residency::Residency;
use crate::gpu::{MappedFile, PAGE};

/// Shared by host and GPU; the host puts the barriers itself.
const OPTIONS: MTLResourceOptions = MTLResourceOptions::from_bits_retain(
    MTLResourceOptions::StorageModeShared.bits() | MTLResourceOptions::HazardTrackingModeUntracked.bits(),
);

/// A handle of a Metal buffer.
#[derive(Clone)]
pub struct AppleBuffer(Arc<Memory>);

/// Bytes of all buffers of a device.
pub(super) type Live = Arc<AtomicU64>;

struct Memory {
    metal: Retained<ProtocolObject<dyn MTLBuffer>>,
    contents: NonNull<u8>,
    len: usize,
    /// And the set that it is in.
    residency: Option<(Arc<Residency>, usize)>,
    live: Live,
}

// SAFETY: what a Metal buffer is does not change after its creation, its reference count is atomic, and `contents` is plain memory that
// lives as long as `metal`. Who may read and write that memory when is the contract of `Gpu::bytes` and `Gpu::bytes_mut`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Bytes from which on a buffer of zeros is a member of a residency set: a set that changes often was seen with Macs that restarted, and what
/// is small is soon made resident by the commands that use it.
const LARGE: usize = 16 << 20;

impl AppleBuffer {
    /// `len > 0` zeros; `None` without enough memory.
    pub(super) fn zeroed(
        device: &Device,
        len: usize,
        purpose: &str,
        residency: Option<&Arc<Residency>>,
        live: &Live,
    ) -> Option<Self> {
        // "Creates a buffer the method clears with zero values", says its documentation.
        let metal = device.newBufferWithLength_options(len, OPTIONS)?;
        metal.setLabel(Some(&NSString::from_str(purpose)));
        Some(Self::new(metal, len, residency.filter(|_| len >= LARGE), live))
    }

    /// A part of the file's own memory; `None` where Metal cannot take it in place: not at a page boundary, empty, or longer than `limit`
    /// bytes.
    pub(super) fn mapped(
        device: &Device,
        file: &Arc<dyn MappedFile>,
        part: Range<usize>,
        limit: u64,
        residency: Option<&Arc<Residency>>,
        live: &Live,
    ) -> Option<Self> {
        let bytes = &file.bytes()[part];
        let len = bytes.len();
        // Mappings are made of whole pages: what follows is more of the file, or zeros behind its end.
        let whole = len.next_multiple_of(PAGE);
        if len == 0 || whole as u64 > limit || !bytes.as_ptr().addr().is_multiple_of(PAGE) {
            return None;
        }
        let pointer: NonNull<c_void> = NonNull::from(bytes).cast();
        let owner = file.clone();
        // Metal frees the block with the buffer, which may outlive every handle of ours while commands use it; and the file with it.
        let keep = RcBlock::new(move |_: NonNull<c_void>, _: usize| {
            let _ = &owner;
        });
        // SAFETY: the pages are mapped until `owner` is dropped, which the block holds, and the kernels only read them. The block can be
        // freed on any thread: `dyn MappedFile` is `Send` and `Sync`.
        let metal = unsafe {
            device.newBufferWithBytesNoCopy_length_options_deallocator(pointer, whole, OPTIONS, Some(&keep))
        }?;
        // The GPUs of some virtual machines answer with a buffer of nothing.
        if metal.length() != whole || metal.contents() != pointer {
            return None;
        }
        metal.setLabel(Some(&NSString::from_str("a mapped file")));
        Some(Self::new(metal, len, residency, live))
    }

    fn new(
        metal: Retained<ProtocolObject<dyn MTLBuffer>>,
        len: usize,
        residency: Option<&Arc<Residency>>,
        live: &Live,
    ) -> Self {
        let residency = residency.and_then(|residency| Some((residency.clone(), residency.add(&metal)?)));
        let contents = metal.contents().cast();
        live.fetch_add(len as u64, Ordering::Relaxed);
        Self(Arc::new(Memory { metal, contents, len, residency, live: live.clone() }))
    }

    pub(super) fn metal(&self) -> &ProtocolObject<dyn MTLBuffer> {
        &self.0.metal
    }

    pub(super) fn len(&self) -> usize {
        self.0.len
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes that live as long as `self`. The device writes only while `Gpu::submit` waits; the host only through
        // `Gpu::bytes_mut`, whose caller promises that no other slice is alive.
        unsafe { std::slice::from_raw_parts(self.0.contents.as_ptr(), self.0.len) }
    }

    /// # Safety
    /// See [`crate::gpu::Gpu::bytes_mut`].
    #[allow(clippy::mut_from_ref)] // Handles share their memory: exclusiveness is the caller's promise.
    pub(super) unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.contents.as_ptr(), self.0.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.live.fetch_sub(self.len as u64, Ordering::Relaxed);
        if let Some((residency, at)) = &self.residency {
            residency.remove(&self.metal, *at);
        }
    }
}
