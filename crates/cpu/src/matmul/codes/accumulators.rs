//! A tile's outputs while its groups are added up: from where they are and back, with the bias. It knows no code.

use crate::matmul::tile::Tile;
use crate::simd::{LANES, Simd};

/// Sums of a tile's rows for some vectors of the panel's outputs.
pub(super) type Accumulators<const ROWS: usize, const VECTORS: usize> = [[[f32; LANES]; VECTORS]; ROWS];

/// Those of a tile from vector `first` on, in the first-level cache, where the outputs themselves may fall into few of its sets.
#[inline(always)]
pub(super) fn begin<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    tile: &Tile<'_>,
    first: usize,
) -> Accumulators<ROWS, VECTORS> {
    let mut accumulators = [[[0.0; LANES]; VECTORS]; ROWS];
    if tile.resume {
        for (row, to) in accumulators.iter_mut().enumerate() {
            for (v, to) in to.iter_mut().enumerate() {
                // SAFETY: a tile has `ROWS` pointers to the panel's outputs, of whole vectors.
                let from = unsafe { &*tile.out.row(row).add((first + v) * LANES).cast() };
                s.store(s.load(from), to);
            }
        }
    }
    accumulators
}

/// Writes them back, with the bias.
#[inline(always)]
pub(super) fn finish<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    tile: &Tile<'_>,
    first: usize,
    accumulators: &Accumulators<ROWS, VECTORS>,
) {
    for (row, from) in accumulators.iter().enumerate() {
        for (v, from) in from.iter().enumerate() {
            let mut sum = s.load(from);
            if !tile.bias.is_null() {
                // SAFETY: a bias that is not null has the panel's length.
                sum = s.add(sum, s.load(unsafe { &*tile.bias.add((first + v) * LANES).cast() }));
            }
            // SAFETY: as above.
            s.store(sum, unsafe { &mut *tile.out.row(row).add((first + v) * LANES).cast() });
        }
    }
}
