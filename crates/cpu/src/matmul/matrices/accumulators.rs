//! A tile's outputs while the sums of its groups, which matrices make, are added up: from where they are and back, with the bias. It knows no code.

use crate::matmul::format::VECTORS;
use crate::matmul::tile::{MAX_TILE_ROWS, Tile};
use crate::simd::{LANES, Simd};

/// Of each row, for the panel's outputs: sums of a group, or of all groups.
pub(super) type Sums<T> = [[[T; LANES]; VECTORS]; MAX_TILE_ROWS];

/// Writes those of the tile's rows: the outputs, or zeros.
#[inline(always)]
pub(super) fn begin(tile: &Tile<'_>, accumulators: &mut Sums<f32>) {
    for (row, to) in (0..tile.rows).zip(accumulators) {
        // SAFETY: a tile has pointers to 32 outputs of each of its rows.
        *to = if tile.resume { unsafe { *tile.out.row(row).cast() } } else { [[0.0; LANES]; VECTORS] };
    }
}

/// Writes them back, with the bias.
#[inline(always)]
pub(super) fn finish<S: Simd>(s: S, tile: &Tile<'_>, accumulators: &Sums<f32>) {
    for (from, row) in accumulators.iter().zip(0..tile.rows) {
        // SAFETY: as above.
        unsafe { finish_row(s, tile, from.as_ptr().cast(), tile.out.row(row)) };
    }
}

/// Writes a row of 32 sums with the bias, where there is one. They may be the row itself.
///
/// # Safety
/// Both must have as many.
#[inline(always)]
pub(super) unsafe fn finish_row<S: Simd>(s: S, tile: &Tile<'_>, from: *const f32, to: *mut f32) {
    for v in 0..VECTORS {
        // SAFETY: the caller vouches for sums, and a bias has as many.
        let load = |from: *const f32| s.load(unsafe { &*from.add(v * LANES).cast() });
        let mut sum = load(from);
        if !tile.bias.is_null() {
            sum = s.add(sum, load(tile.bias));
        }
        // SAFETY: as above, and nothing else refers to the row's sums meanwhile.
        s.store(sum, unsafe { &mut *to.add(v * LANES).cast() });
    }
}
