//! Zeros from the system, in pieces of large mappings: a huge page then holds the end of one piece and the beginning of the next, where the pages of a
//! mapping's two ends would be small ones. It knows no types.

use memmap2::{MmapMut, MmapRaw};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Address space that is mapped at once; only what is touched costs memory.
const REGION: usize = 256 << 20;
/// From here on a piece is a mapping of its own, as all are where a program cannot ask for huge pages.
const ALONE_FROM: usize = REGION / 4;
/// Where pieces begin: a multiple of a cache line, and of the smallest pages.
const PIECE: usize = 4 << 10;

/// The region that pieces are taken from, and how many of its bytes are taken.
static CURRENT: Mutex<Option<(Arc<MmapRaw>, usize)>> = Mutex::new(None);

/// Memory of its own, zeros at first, which goes back to the system with it.
pub(super) struct Piece {
    region: Arc<MmapRaw>,
    at: usize,
    len: usize,
}

impl Piece {
    /// # Errors
    /// What the system says.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        if cfg!(target_os = "linux") && len < ALONE_FROM {
            // Whoever panicked here has taken nothing.
            let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
            if current.as_ref().is_none_or(|(_, taken)| len > REGION - taken) {
                // There may be room for the piece where there is none for a region.
                *current = map(REGION).ok().map(|region| (region, 0));
            }
            if let Some((region, taken)) = &mut *current {
                let at = std::mem::replace(taken, (*taken + len).next_multiple_of(PIECE));
                return Ok(Self { region: region.clone(), at, len });
            }
        }
        Ok(Self { region: map(len)?, at: 0, len })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the region has the piece's bytes, which nobody else has.
        unsafe { std::slice::from_raw_parts(self.region.as_ptr().add(self.at), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.region.as_mut_ptr().add(self.at), self.len) }
    }
}

fn map(len: usize) -> io::Result<Arc<MmapRaw>> {
    let map = MmapMut::map_anon(len)?;
    // Fewer page-table walks; a system that refuses is only slower.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(Arc::new(map.into()))
}

#[cfg(target_os = "linux")]
impl Drop for Piece {
    /// Gives back the pages that are the piece's alone; the others go with the region.
    fn drop(&mut self) {
        /// A multiple of every system's pages.
        const PAGES: usize = 64 << 10;
        let (begin, end) = (self.at.next_multiple_of(PAGES), (self.at + self.len) / PAGES * PAGES);
        if begin < end {
            // SAFETY: nobody has these bytes any more, and no later piece gets them.
            let _ =
                unsafe { self.region.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, begin, end - begin) };
        }
    }
}
