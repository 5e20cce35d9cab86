//! Aligned memory of zeros, in huge pages where it is large. It knows no shape.

use bytemuck::{Pod, Zeroable};
use memmap2::MmapMut;
use std::fmt;
use vllm_apple_ops::{Error, Result, Tensor};

/// From here on memory is mapped from the system: zeros that cost nothing until they are touched, and huge pages.
const MAP_FROM: usize = 1 << 20;
/// Bytes after the end that kernels may read, in whole vectors, but never use.
const SLACK: usize = 64;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

enum Lines {
    Heap(Vec<Line>),
    Mapped(MmapMut),
}

/// Bytes aligned to 64, zeros at first.
pub struct Memory {
    lines: Lines,
    len: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self { lines: Lines::Heap(Vec::new()), len: 0 }
    }
}

impl Memory {
    /// Memory of `len` zeros; `purpose` is named if there is not enough.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the system refuses.
    pub fn zeroed(len: usize, purpose: &str) -> Result<Self> {
        let refused = || Error::OutOfMemory { device: "cpu".into(), bytes: len, purpose: purpose.into() };
        let bytes = len.checked_add(SLACK).ok_or_else(refused)?;
        let lines = if bytes < MAP_FROM {
            Lines::Heap(vec![Line::zeroed(); bytes.div_ceil(size_of::<Line>())])
        } else {
            let map = MmapMut::map_anon(bytes).map_err(|_| refused())?;
            // Fewer page-table walks; a system that refuses is only slower.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            Lines::Mapped(map)
        };
        Ok(Self { lines, len })
    }

    /// The content.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.lines {
            Lines::Heap(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Lines::Mapped(map) => &map[..self.len],
        }
    }

    /// The content, to write to.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.lines {
            Lines::Heap(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Lines::Mapped(map) => &mut map[..self.len],
        }
    }

    /// The content and 64 bytes of no meaning after it.
    pub(crate) fn bytes_and_slack(&self) -> &[u8] {
        match &self.lines {
            Lines::Heap(lines) => &bytemuck::cast_slice(lines)[..self.len + SLACK],
            Lines::Mapped(map) => &map[..self.len + SLACK],
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory of {} bytes", self.len)
    }
}

/// The elements of the first `rows` rows. `T` is the tensor's type, as the op's checks have made sure.
pub(crate) fn elements<T: Pod>(tensor: &Tensor<Memory>, rows: usize) -> &[T] {
    &bytemuck::cast_slice(tensor.memory().bytes())[..rows * tensor.cols()]
}

/// As [`elements`], to write to.
pub(crate) fn elements_mut<T: Pod>(tensor: &mut Tensor<Memory>, rows: usize) -> &mut [T] {
    let len = rows * tensor.cols();
    &mut bytemuck::cast_slice_mut(tensor.memory_mut().bytes_mut())[..len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_zero() {
        for len in [0, 1, 64, 100_000, MAP_FROM, 3 * MAP_FROM + 5] {
            let memory = Memory::zeroed(len, "a test").unwrap();
            assert_eq!(memory.bytes().len(), len);
            assert_eq!(memory.bytes_and_slack().len(), len + SLACK);
            assert!(memory.bytes_and_slack().as_ptr().addr().is_multiple_of(64));
            assert!(memory.bytes_and_slack().iter().all(|&b| b == 0));
        }
    }

    #[test]
    fn too_much_memory_is_an_error() {
        let error = Memory::zeroed(usize::MAX - 3, "a test").unwrap_err().to_string();
        assert!(error.contains("a test"), "{error}");
    }
}
