//! A part of a GPU buffer: the memory of tensors.

use std::sync::atomic::{AtomicU64, Ordering};

use vllm_apple_ops::Tensor;

use crate::gpu::Gpu;

/// `len` bytes of a buffer.
pub struct Region<G: Gpu> {
    pub(crate) buffer: G::Buffer,
    /// Tells buffers apart: regions of different ids do not overlap.
    pub(crate) id: u64,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl<G: Gpu> Clone for Region<G> {
    fn clone(&self) -> Self {
        Self { buffer: self.buffer.clone(), ..*self }
    }
}

impl<G: Gpu> Region<G> {
    /// All `len` bytes of a buffer that no other region is of.
    pub(crate) fn whole(buffer: G::Buffer, len: usize) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { buffer, id: NEXT.fetch_add(1, Ordering::Relaxed), offset: 0, len }
    }

    /// `len` bytes of this region from `offset`.
    ///
    /// # Panics
    /// If they are not within it.
    pub(crate) fn slice(&self, offset: usize, len: usize) -> Self {
        assert!(offset <= self.len && len <= self.len - offset);
        Self { buffer: self.buffer.clone(), id: self.id, offset: self.offset + offset, len }
    }
}

/// A matrix of f32 from column `first` of its first row on.
pub(crate) fn from_column<G: Gpu>(matrix: &Region<G>, first: usize) -> Region<G> {
    let before = first * size_of::<f32>();
    matrix.slice(before, matrix.len - before)
}

/// The memory of `rows` rows of a tensor.
pub(crate) fn rows<G: Gpu>(tensor: &Tensor<Region<G>>, first: usize, rows: usize) -> Region<G> {
    let row = tensor.cols() * tensor.dtype().size();
    tensor.memory().slice(first * row, rows * row)
}
