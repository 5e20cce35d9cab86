//! The kinds of codes, and how each becomes values or pairs of bf16 in registers. It multiplies nothing.

use super::layout::Code;
use crate::simd::{CHUNK, LANES, Planes, Simd};

/// A kind of code.
pub(crate) trait Codes {
    /// Whether they are those of [`Tile::laid_out`].
    const LAID_OUT: bool = false;
    /// Of one, where there is a table.
    const BITS: u8 = 0;
    /// Of a chunk of a panel.
    const CHUNK_BYTES: usize;

    /// The values of vector `vector` of the panel for the first or the `SECOND` two elements of K of a chunk.
    ///
    /// # Safety
    /// `chunk` is where a panel's chunk begins, and `vector` is below 2.
    #[inline(always)]
    unsafe fn values<S: Simd, const SECOND: bool>(s: S, table: S::Table, chunk: *const u8, vector: usize) -> [S::V; 2] {
        // SAFETY: the caller vouches for the chunk.
        s.split_pairs(unsafe { Self::pairs::<S, SECOND>(s, table, chunk, vector) })
    }

    /// The same as pairs of bf16 in a lane's bits.
    ///
    /// # Safety
    /// As for [`Codes::values`].
    #[inline(always)]
    unsafe fn pairs<S: Simd, const SECOND: bool>(s: S, table: S::Table, chunk: *const u8, vector: usize) -> S::V {
        // SAFETY: as above.
        s.join_pairs(unsafe { Self::values::<S, SECOND>(s, table, chunk, vector) })
    }
}

/// See [`Planes`].
pub(super) struct InPlanes<const BITS: u8>;
pub(super) struct Signed;
pub(super) struct Unsigned;
pub(super) struct E4m3;

impl<const BITS: u8> Codes for InPlanes<BITS> {
    const BITS: u8 = BITS;
    const CHUNK_BYTES: usize = Code::Planes(BITS).chunk_bytes();

    #[inline(always)]
    unsafe fn values<S: Simd, const SECOND: bool>(s: S, table: S::Table, chunk: *const u8, vector: usize) -> [S::V; 2] {
        // SAFETY: the caller vouches for the chunk.
        s.look_up_values::<BITS, SECOND>(table, unsafe { Planes::new(chunk) }, vector)
    }

    #[inline(always)]
    unsafe fn pairs<S: Simd, const SECOND: bool>(s: S, table: S::Table, chunk: *const u8, vector: usize) -> S::V {
        // SAFETY: the caller vouches for the chunk.
        s.look_up::<BITS, SECOND>(table, unsafe { Planes::new(chunk) }, vector)
    }
}

macro_rules! bytes {
    ($name:ident, $type:ty, $load:ident) => {
        impl Codes for $name {
            const CHUNK_BYTES: usize = Code::$name.chunk_bytes();

            #[inline(always)]
            unsafe fn values<S: Simd, const SECOND: bool>(
                s: S,
                _: S::Table,
                chunk: *const u8,
                vector: usize,
            ) -> [S::V; 2] {
                // SAFETY: the caller vouches for the vector's part of the chunk.
                let codes = unsafe { &*chunk.cast::<[[$type; LANES]; CHUNK]>().add(vector) };
                let at = if SECOND { 2 } else { 0 };
                [s.$load(&codes[at]), s.$load(&codes[at + 1])]
            }
        }
    };
}

bytes!(Signed, i8, load_i8);
bytes!(Unsigned, u8, load_u8);
bytes!(E4m3, u8, load_e4m3);
