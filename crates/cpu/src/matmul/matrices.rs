//! The tile kernel for bf16 on machines that multiply matrices: 32 rows of activations against a panel of 32 outputs, in four registers of
//! 16x16 sums. It knows nothing of threads or blocking.
//!
//! A sum is one chain over K in a register of matrices, whatever the number of rows, and rows have no part in each other's: results
//! depend on no other row, and cutting K in two changes nothing, as with vectors.

use crate::matmul::format::Unit;
use crate::matmul::plan::TileRows;
use crate::matmul::tile::Needs;

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::Matrices;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use none::Matrices;

/// Rows and pairs of bf16 of a matrix.
const SIDE: usize = 16;

/// What the callers of the kernel must know.
pub(crate) const NEEDS: Needs = Needs {
    rows: TileRows { most: 2 * SIDE, multiple: SIDE },
    unit: Unit::Bf16Pairs16,
    units_per_step: 1,
    steps_together: SIDE,
    // A matrix has 16 rows, though only one of them may be a row of the tile.
    spare_units: (SIDE - 1) * SIDE,
};

#[cfg(target_arch = "x86_64")]
mod amx {
    use super::SIDE;
    use crate::amx::{Operands, Sums, Tiles, multiply, spin};
    use crate::matmul::tile::{Prefetch, Tile};
    use crate::simd::{Kernel, LANES, Simd};

    /// Bytes of 16 steps of a panel.
    const BLOCK_BYTES: usize = SIDE * 128;

    /// This thread's registers of matrices.
    pub(crate) struct Matrices(Tiles);

    impl Matrices {
        /// # Safety
        /// The machine must have [`Isa::AmxBf16`](crate::Isa::AmxBf16).
        pub(crate) unsafe fn begin() -> Self {
            // SAFETY: the caller vouches for it.
            Self(unsafe { Tiles::configure() })
        }

        /// The kernel for a tile, whose pointers and rows the caller of [`TileKernel::run`](crate::matmul::tile::TileKernel::run) vouches
        /// for.
        pub(crate) fn multiply<'a>(&'a self, tile: &'a Tile<'a>) -> Multiply<'a> {
            Multiply { tiles: &self.0, tile }
        }

        /// Multiplies in registers only; returns how many operations that were.
        pub(crate) fn spin(&self, rounds: usize) -> usize {
            // A round takes 64 cycles where one of vectors takes some six.
            spin(&self.0, rounds / 8)
        }
    }

    pub(crate) struct Multiply<'a> {
        tiles: &'a Tiles,
        tile: &'a Tile<'a>,
    }

    impl Kernel for Multiply<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let tile = self.tile;
            let rows = tile.out.len();
            // SAFETY: a tile has pointers to 32 outputs of each of its rows, and a bias is as long.
            let out = |row: usize, v: usize| unsafe { &mut *tile.out[row].add(v * LANES).cast::<[f32; LANES]>() };
            let mut sums = Sums([[[[0.0; SIDE]; SIDE]; 2]; 2]);
            if tile.resume {
                for row in 0..rows {
                    for v in 0..2 {
                        sums.0[row / SIDE][v][row % SIDE] = *out(row, v);
                    }
                }
            }
            let (blocks, rest) = (tile.steps / SIDE, tile.steps % SIDE);
            let mut operands = Operands {
                x: tile.x,
                x_block: rows * SIDE * size_of::<u32>(),
                weights: tile.weights,
                blocks,
                prefetch: tile.prefetch.from,
                lines_per_block: (tile.prefetch.bytes_per_step * SIDE).div_ceil(64),
            };
            if blocks > 0 {
                // SAFETY: a tile has `steps` steps of weights and of activations, and spare units behind them.
                unsafe { multiply(self.tiles, &mut sums, rows > SIDE, &operands) };
            }
            if rest > 0 {
                // What follows the panel may be anything, and must not be multiplied even with zeros.
                let mut last = [0u8; BLOCK_BYTES];
                let from = tile.weights.wrapping_add(blocks * BLOCK_BYTES);
                let bytes = rest * (BLOCK_BYTES / SIDE);
                // SAFETY: as above.
                last[..bytes].copy_from_slice(unsafe { std::slice::from_raw_parts(from, bytes) });
                operands = Operands {
                    x: tile.x.wrapping_add(blocks * rows * SIDE),
                    weights: last.as_ptr(),
                    blocks: 1,
                    prefetch: Prefetch::NOTHING.from,
                    lines_per_block: 0,
                    ..operands
                };
                // SAFETY: as above; activations are there for whole blocks.
                unsafe { multiply(self.tiles, &mut sums, rows > SIDE, &operands) };
            }
            for row in 0..rows {
                for v in 0..2 {
                    let mut sum = s.load(&sums.0[row / SIDE][v][row % SIDE]);
                    if !tile.bias.is_null() {
                        // SAFETY: as above.
                        sum = s.add(sum, s.load(unsafe { &*tile.bias.add(v * LANES).cast() }));
                    }
                    s.store(sum, out(row, v));
                }
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod none {
    use crate::matmul::tile::Tile;
    use crate::simd::{Kernel, Simd};

    const NONE: &str = "no instruction set of this architecture multiplies matrices";

    /// There are none on this architecture: nobody begins.
    pub(crate) struct Matrices(());

    impl Matrices {
        pub(crate) unsafe fn begin() -> Self {
            unreachable!("{NONE}")
        }

        pub(crate) fn multiply<'a>(&self, _: &'a Tile<'a>) -> Multiply {
            Multiply
        }

        pub(crate) fn spin(&self, _: usize) -> usize {
            unreachable!("{NONE}")
        }
    }

    pub(crate) struct Multiply;

    impl Kernel for Multiply {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, _: S) {
            unreachable!("{NONE}")
        }
    }
}
