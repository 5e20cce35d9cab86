//! The tile kernel for bf16 on machines that multiply matrices: up to 32 rows of activations against a panel of 32 outputs, in four registers
//! of 16x16 sums. It reads activations where they lie and knows nothing of threads or blocking.
//!
//! A sum is one chain over K in a register of matrices, whatever the number of rows, and rows have no part in each other's: results
//! depend on no other row, and cutting K in two changes nothing, as with vectors.

#[cfg(target_arch = "x86_64")]
mod accumulators;
pub(crate) mod codes;
#[cfg(target_arch = "x86_64")]
pub(crate) mod integers;

use crate::matmul::format::Unit;
use crate::matmul::plan::TileRows;
use crate::matmul::tile::Needs;

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::Matrices;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use none::Matrices;

/// Rows of a matrix, and pairs of bf16 or fours of bytes of a row.
const SIDE: usize = 16;

/// Bytes of 16 pairs of a panel.
const BLOCK_BYTES: usize = SIDE * 128;

/// What the callers of the kernel must know.
pub(crate) const NEEDS: Needs = Needs {
    rows: TileRows { most: 2 * SIDE, multiple: SIDE },
    unit: Unit::Bf16Pairs16,
    units_per_step: 1,
    steps_together: SIDE,
    laid_out: None,
};

#[cfg(target_arch = "x86_64")]
mod amx {
    use half::bf16;
    use vllm_apple_ops::{Activation, DType};

    use super::accumulators::finish_row;
    use super::{BLOCK_BYTES, SIDE, codes, integers};
    use crate::amx::{Beside, Groups, Operands, Tiles, multiply, spin, spin_bytes};
    use crate::gated_activation::{Gate, with_gate};
    use crate::matmul::codes::{Codes, CodesKernel};
    use crate::matmul::format::PANEL;
    use crate::matmul::gated::GatedRows;
    use crate::matmul::tile::{Outputs, Prefetch, Tile};
    use crate::simd::{Dispatch, Kernel, Simd};

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

        /// The same for quantised weights.
        pub(crate) fn multiply_codes<'a, C: Codes>(
            &'a self,
            kernel: &'a CodesKernel,
            tile: &'a Tile<'a>,
        ) -> codes::Multiply<'a, C> {
            codes::Multiply::new(&self.0, kernel, tile)
        }

        /// The same with activations of 8 bits.
        pub(crate) fn multiply_bytes<'a>(
            &'a self,
            dispatch: Dispatch,
            kernel: &'a CodesKernel,
            tile: &'a Tile<'a>,
        ) -> integers::Multiply<'a> {
            integers::Multiply::new(dispatch, &self.0, kernel, tile)
        }

        /// Multiplies in registers only; returns how many operations that were.
        pub(crate) fn spin(&self, rounds: usize) -> usize {
            // A round takes 64 cycles where one of vectors takes some six.
            spin(&self.0, rounds / 8)
        }

        /// The same of bytes.
        pub(crate) fn spin_bytes(&self, rounds: usize) -> usize {
            spin_bytes(&self.0, rounds / 8)
        }
    }

    pub(crate) struct Multiply<'a> {
        tiles: &'a Tiles,
        tile: &'a Tile<'a>,
    }

    impl Kernel for Multiply<'_> {
        type Output = ();
        const DOT: bool = true;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            if const { !S::BF16_DOT } {
                unreachable!("no matrices in this instruction set");
            }
            let tile = self.tile;
            let rows = 0..tile.rows;
            if let &Outputs::Even { first, distance } = tile.out {
                match tile.shared.and_then(|shared| shared.beside) {
                    // Other types would be more copies of the loop, which nobody needs: a layer of bf16 takes bf16.
                    Some(rows) if rows.dtype == DType::BF16 => with_gate!(rows.activation, gate => {
                        self.sums(first, distance, &mut Activate { s, gate, rows });
                    }),
                    _ => self.sums(first, distance, &mut ()),
                }
                if !tile.bias.is_null() {
                    for out in rows.map(|row| tile.out.row(row)) {
                        // SAFETY: a tile has pointers to 32 outputs of each of its rows.
                        unsafe { finish_row(s, tile, out, out) };
                    }
                }
            } else {
                let mut buffer = Buffer([[0.0; PANEL]; 2 * SIDE]);
                if tile.resume {
                    for (to, row) in buffer.0.iter_mut().zip(rows.clone()) {
                        // SAFETY: a tile has pointers to 32 outputs of each of its rows.
                        *to = unsafe { *tile.out.row(row).cast() };
                    }
                }
                self.sums(buffer.0.as_mut_ptr().cast(), size_of::<[f32; PANEL]>(), &mut ());
                for (from, row) in buffer.0.iter().zip(rows) {
                    // SAFETY: as above.
                    unsafe { finish_row(s, tile, from.as_ptr().cast(), tile.out.row(row)) };
                }
            }
        }
    }

    /// A row of activations after each block.
    struct Activate<'a, S, G> {
        s: S,
        gate: G,
        rows: &'a GatedRows<'a>,
    }

    impl<S: Simd, G: Gate> Beside for Activate<'_, S, G> {
        #[inline(always)]
        fn step(&mut self) {
            if let Some(row) = self.rows.next() {
                row.activate::<S, G, bf16>(self.s, self.gate);
            }
        }
    }

    /// Sums of rows that do not lie at one distance.
    #[repr(C, align(64))]
    struct Buffer([[f32; PANEL]; 2 * SIDE]);

    impl Multiply<'_> {
        /// The sums of all rows, to `out`, where rows lie `out_row` bytes apart.
        #[inline(always)]
        fn sums(&self, out: *mut f32, out_row: usize, beside: &mut impl Beside) {
            let tile = self.tile;
            let (blocks, rest) = (tile.steps / SIDE, tile.steps % SIDE);
            let mut operands = Operands {
                x: tile.x.cast(),
                x_row: tile.x_row,
                x_block: tile.x_block,
                weights: tile.weights,
                units: SIDE,
                blocks,
                groups: Groups::ONE,
                out,
                out_row,
                resume: tile.resume,
                prefetch: tile.prefetch.from,
                lines_per_block: (tile.prefetch.bytes_per_step * SIDE).div_ceil(64),
                x_ahead: tile.shared.map_or(0, |_| tile.x_block),
                writes: tile.shared.map_or(std::ptr::null(), |shared| shared.writes),
                writes_row: tile.shared.map_or(0, |shared| shared.writes_row),
                writes_lines: tile.shared.map_or(0, |shared| shared.writes_lines),
            };
            if blocks > 0 {
                // SAFETY: a tile has `steps` steps of weights and of activations, and rows of sums.
                unsafe { multiply(self.tiles, tile.rows, &operands, beside) };
            }
            if rest > 0 {
                // What follows the panel may be anything, and must not be multiplied even with zeros.
                let mut last = [0u8; BLOCK_BYTES];
                let from = tile.weights.wrapping_add(blocks * BLOCK_BYTES);
                let bytes = rest * (BLOCK_BYTES / SIDE);
                // SAFETY: as above.
                last[..bytes].copy_from_slice(unsafe { std::slice::from_raw_parts(from, bytes) });
                operands = Operands {
                    x: operands.x.wrapping_add(blocks * tile.x_block),
                    weights: last.as_ptr(),
                    blocks: 1,
                    resume: tile.resume || blocks > 0,
                    prefetch: Prefetch::NOTHING.from,
                    lines_per_block: 0,
                    x_ahead: 0,
                    writes_lines: 0,
                    ..operands
                };
                // SAFETY: as above; activations are there for whole blocks.
                unsafe { multiply(self.tiles, tile.rows, &operands, &mut ()) };
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod none {
    use crate::matmul::codes::{Codes, CodesKernel};
    use crate::matmul::tile::Tile;
    use crate::simd::{Dispatch, Kernel, Simd};

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

        pub(crate) fn multiply_codes<C: Codes>(&self, _: &CodesKernel, _: &Tile<'_>) -> Multiply {
            Multiply
        }

        pub(crate) fn multiply_bytes(&self, _: Dispatch, _: &CodesKernel, _: &Tile<'_>) -> Multiply {
            Multiply
        }

        pub(crate) fn spin(&self, _: usize) -> usize {
            unreachable!("{NONE}")
        }

        pub(crate) fn spin_bytes(&self, _: usize) -> usize {
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
