//! A tile's outputs while the sums of its groups, which matrices make, are added up: from where they are and back, with the bias. It knows no code.

use crate::matmul::format::VECTORS;
use crate::matmul::tile::{MAX_TILE_ROWS, Tile};
use crate::simd::{LANES, Simd};

/// Of each row, for the panel's outputs: sums of a group, or of all groups.
pub(super) type Sums<T> = [[[T; LANES]; VECTORS]; MAX_TILE_ROWS];

/// Writes those of the tile's rows: the outputs, or zeros.
#[inline(always)]
pub(super) fn begin(tile: &Tile<'_>, accumulators: &mut Sums<f32>) {
    for (row, to) in tile.out.iter().zip(accumulators) {
        // SAFETY: a tile has pointers to 32 outputs of each of its rows.
        *to = if tile.resume { unsafe { *row.cast() } } else { [[0.0; LANES]; VECTORS] };
    }
}

/// Writes them back, with the bias.
#[inline(always)]
pub(super) fn finish<S: Simd>(s: S, tile: &Tile<'_>, accumulators: &Sums<f32>) {
    for (from, &row) in accumulators.iter().zip(tile.out) {
        // SAFETY: as above.
        finish_row(s, tile, from.as_ptr().cast(), unsafe { &mut *row.cast() });
    }
}

/// Writes a row of 32 sums with the bias, where there is one. They may be the row itself.
#[inline(always)]
pub(super) fn finish_row<S: Simd>(s: S, tile: &Tile<'_>, from: *const f32, to: &mut [[f32; LANES]; VECTORS]) {
    for (v, to) in to.iter_mut().enumerate() {
        // SAFETY: a row of sums has 32, and so has a bias.
        let load = |from: *const f32| s.load(unsafe { &*from.add(v * LANES).cast() });
        let (sum, bias) = (load(from), tile.bias);
        s.store(if bias.is_null() { sum } else { s.add(sum, load(bias)) }, to);
    }
}
