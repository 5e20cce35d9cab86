//! Memory of weights, which lie one after the other in few large mappings. In one of its own, all of a weight that is not a whole huge page, and most
//! often up to two pages more, would be in small ones, whose tables a processor then reads, too. It knows no weight.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::{MmapMut, MmapRaw};
use vllm_apple_ops::{Error, Result};

/// Of x86, and of Arm with pages of 4 KiB.
const HUGE_PAGE: usize = 2 << 20;
/// The most that is mapped before it is needed. What is never touched takes no memory, but some systems count it.
const MOST_AHEAD: usize = 1 << 30;
/// A line of the cache.
const ALIGNMENT: usize = 64;

/// Where the next weights go. It keeps no memory: what it gave lives without it, and is returned to the system with the last part of a mapping.
#[derive(Default)]
pub struct WeightMemory(Mutex<Region>);

/// A mapping, of which bytes from `free` on belong to nobody.
#[derive(Default)]
struct Region {
    map: Weak<MmapRaw>,
    free: usize,
}

/// A part of a mapping, nobody else's.
pub(crate) struct Part {
    map: Arc<MmapRaw>,
    at: usize,
    len: usize,
}

impl WeightMemory {
    /// `len` zeros, aligned to 64 bytes; `purpose` is named if there is not enough memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the system refuses.
    pub(crate) fn zeroed(&self, len: usize, purpose: &str) -> Result<Part> {
        let mut region = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = region.map.upgrade();
        let (map, at) = match before {
            Some(map) if map.len() - region.free >= len => (map, region.free),
            // Twice as much each time, so that there are few.
            before => before
                .and_then(|map| mapping(len.max((2 * map.len()).min(MOST_AHEAD))))
                .or_else(|| mapping(len))
                .ok_or_else(|| Error::OutOfMemory { device: "cpu".into(), bytes: len, purpose: purpose.into() })?,
        };
        let free = (at + len).next_multiple_of(ALIGNMENT).min(map.len());
        *region = Region { map: Arc::downgrade(&map), free };
        Ok(Part { map, at, len })
    }
}

/// A mapping of at least `len` bytes, and where its first huge page begins; nothing if the system refuses.
fn mapping(len: usize) -> Option<(Arc<MmapRaw>, usize)> {
    let map = MmapRaw::from(MmapMut::map_anon(len.checked_add(2 * HUGE_PAGE)?).ok()?);
    // A system that refuses is only slower.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    let free = map.as_ptr().addr().next_multiple_of(HUGE_PAGE) - map.as_ptr().addr();
    Some((Arc::new(map), free))
}

impl Part {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the part is within the mapping, which lives as long, and is written through `bytes_mut` alone.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.at), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and no two parts share a byte.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(self.at), self.len) }
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of weights", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_zeros_that_nobody_shares() {
        let memory = WeightMemory::default();
        let lengths = [0, 1, 64, 100_000, 3 << 20, 5, 2 * HUGE_PAGE, 7];
        let mut parts: Vec<Part> = lengths.map(|len| memory.zeroed(len, "a test").unwrap()).into();
        drop(memory);
        for (i, part) in parts.iter_mut().enumerate() {
            assert!(part.bytes().as_ptr().addr().is_multiple_of(ALIGNMENT));
            assert!(part.bytes().iter().all(|&byte| byte == 0));
            part.bytes_mut().fill(i as u8 + 1);
        }
        for (i, (part, len)) in parts.iter().zip(lengths).enumerate() {
            assert_eq!(part.len(), len);
            assert!(part.bytes().iter().all(|&byte| byte == i as u8 + 1), "part {i}");
        }
    }

    #[test]
    fn many_weights_take_few_mappings() {
        let memory = WeightMemory::default();
        let parts: Vec<Part> = (0..100).map(|_| memory.zeroed(5_000_000, "a test").unwrap()).collect();
        let mut maps: Vec<_> = parts.iter().map(|part| part.map.as_ptr()).collect();
        maps.dedup();
        assert!(maps.len() <= 8, "{} mappings", maps.len());
        assert!(parts[0].bytes().as_ptr().addr().is_multiple_of(HUGE_PAGE));
    }

    #[test]
    fn what_nobody_has_is_returned_and_zeros_come_again() {
        let memory = WeightMemory::default();
        let mut part = memory.zeroed(3 << 20, "a test").unwrap();
        part.bytes_mut().fill(1);
        let map = Arc::downgrade(&part.map);
        drop(part);
        assert!(map.upgrade().is_none(), "the mapping is kept");
        assert!(memory.zeroed(3 << 20, "a test").unwrap().bytes().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn too_much_memory_is_an_error() {
        let memory = WeightMemory::default();
        for len in [usize::MAX, usize::MAX / 4] {
            let error = memory.zeroed(len, "weight w").unwrap_err().to_string();
            assert!(error.contains("weight w"), "{error}");
        }
    }
}
