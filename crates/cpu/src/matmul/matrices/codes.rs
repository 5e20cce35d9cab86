//! The tile kernel for quantised weights on machines that multiply matrices of bf16, which holds the values of all codes. It knows nothing of
//! threads or blocking.
//!
//! The codes of 32 of K are laid out as pairs of bf16 and multiplied; a group's sums are chains in registers of matrices, from zero. Scales and
//! biases then take them into the accumulators in f32, group after group: one order whatever the number of rows.

use super::{BLOCK_BYTES, NEEDS, SIDE};
use crate::matmul::codes::Layout;
use crate::matmul::format::{LINE, Unit};
use crate::matmul::tile::{Needs, WhenLaidOut};

/// What the callers of the kernel must know.
pub(crate) fn needs(layout: &Layout) -> Needs {
    let (blocks, sums) = (blocks(layout), layout.biases);
    Needs {
        unit: Unit::GroupsOfPairs16 { size: layout.group_size, blocks, sums },
        units_per_step: units(blocks, sums),
        steps_together: layout.together(),
        laid_out: Some(WhenLaidOut { step_bytes: blocks * BLOCK_BYTES, from_tiles: 2 }),
        ..NEEDS
    }
}

/// Units of activation of a group: its lines, and another for its sum, so that lines stay lines.
fn units(blocks: usize, sums: bool) -> usize {
    (blocks + usize::from(sums)) * LINE
}

/// At least the units of a row of `k` elements in any groups of no fewer than `least`.
pub(crate) fn most_units(k: usize, least: usize, sums: bool) -> usize {
    let of_groups = |size: usize| k.div_ceil(size) * units(size.div_ceil(2 * SIDE), sums);
    // Groups of g are ceil(k / g) * ceil(g / 32) blocks, at most k/32 + k/g + g/32 + 1, of which the middle two are most at an end.
    of_groups(least) + (k.div_ceil(2 * SIDE) + 2) * LINE
}

/// Blocks of 16 pairs of a group.
fn blocks(layout: &Layout) -> usize {
    layout.group_size.div_ceil(2 * SIDE)
}

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::Multiply;

#[cfg(target_arch = "x86_64")]
mod amx {
    use std::marker::PhantomData;
    use std::mem::MaybeUninit;
    use std::ops::Range;

    use super::super::accumulators::{Sums, begin, finish};
    use super::{BLOCK_BYTES, SIDE, blocks, units};
    use crate::amx::{Groups, Operands, Tiles, multiply};
    use crate::matmul::LINE_BYTES;
    use crate::matmul::codes::lay_out::{Chunk, lay_out};
    use crate::matmul::codes::{BLOCK_CHUNKS, Codes, CodesKernel};
    use crate::matmul::format::{LINE, VECTORS};
    use crate::matmul::tile::{Prefetch, Tile};
    use crate::simd::{Kernel, LANES, Simd};

    /// Blocks that are laid out together, and groups whose sums the accumulators take together: what they need stays in the first-level cache.
    const TOGETHER: usize = 4;

    #[repr(C, align(64))]
    struct Scratch {
        weights: [[Chunk; BLOCK_CHUNKS]; TOGETHER],
        /// Of a group each.
        sums: [Sums<f32>; TOGETHER],
        accumulators: Sums<f32>,
    }

    /// One tile, whose pointers and rows the caller of [`CodesKernel::run`] vouches for.
    pub(crate) struct Multiply<'a, C> {
        tiles: &'a Tiles,
        kernel: &'a CodesKernel,
        tile: &'a Tile<'a>,
        code: PhantomData<C>,
    }

    impl<'a, C> Multiply<'a, C> {
        pub(crate) fn new(tiles: &'a Tiles, kernel: &'a CodesKernel, tile: &'a Tile<'a>) -> Self {
            Self { tiles, kernel, tile, code: PhantomData }
        }
    }

    impl<C: Codes> Kernel for Multiply<'_, C> {
        type Output = ();
        const DOT: bool = true;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            if const { !S::BF16_DOT } {
                unreachable!("no matrices in this instruction set");
            }
            let tile = self.tile;
            let mut scratch = MaybeUninit::<Scratch>::uninit();
            let scratch = scratch.as_mut_ptr();
            // SAFETY: the memory is there, and of accumulators those of the tile's rows are written before they are read.
            let accumulators = unsafe { &mut (*scratch).accumulators };
            begin(tile, accumulators);
            let groups = (TOGETHER / blocks(&self.kernel.layout)).max(1);
            for first in (0..tile.steps).step_by(groups) {
                let steps = first..tile.steps.min(first + groups);
                // SAFETY: the scratch is there.
                unsafe { self.sums(s, steps.clone(), scratch) };
                // SAFETY: so many groups' sums of the tile's rows have been written.
                let sums = unsafe { &(*scratch).sums };
                match steps.len() {
                    1 => self.accumulate::<S, 1>(s, first, sums, accumulators),
                    2 => self.accumulate::<S, 2>(s, first, sums, accumulators),
                    3 => self.accumulate::<S, 3>(s, first, sums, accumulators),
                    TOGETHER => self.accumulate::<S, TOGETHER>(s, first, sums, accumulators),
                    more => unreachable!("{more} groups together"),
                }
            }
            finish(s, tile, accumulators);
        }
    }

    impl<C: Codes> Multiply<'_, C> {
        /// The sums of some groups: as many as fit together, or one.
        ///
        /// # Safety
        /// The scratch must be there.
        #[inline(always)]
        unsafe fn sums<S: Simd>(&self, s: S, steps: Range<usize>, scratch: *mut Scratch) {
            let (tile, blocks) = (self.tile, blocks(&self.kernel.layout));
            // SAFETY: the caller vouches for it.
            let (weights, sums) = unsafe { (&raw mut (*scratch).weights, (&raw mut (*scratch).sums).cast()) };
            if !tile.laid_out.is_null() {
                let weights = tile.laid_out.wrapping_add(steps.start * blocks * BLOCK_BYTES);
                let lines = tile.prefetch.bytes_per_step.div_ceil(LINE_BYTES * blocks);
                // SAFETY: a tile's laid out weights are those of all its steps.
                unsafe { self.multiply(steps, 0..blocks, weights, sums, lines) };
                return;
            }
            for first in (0..blocks).step_by(TOGETHER) {
                let part = first..blocks.min(first + TOGETHER);
                let mut to = weights.cast::<u8>();
                for step in steps.clone() {
                    let codes = tile.weights.wrapping_add(self.kernel.layout.codes_at(step));
                    let prefetch = Prefetch {
                        from: tile.prefetch.from.wrapping_add(step * tile.prefetch.bytes_per_step),
                        ..tile.prefetch
                    };
                    let chunks = part.start * BLOCK_CHUNKS..part.end * BLOCK_CHUNKS;
                    // SAFETY: `TOGETHER` blocks fit, of which groups that are together have no more.
                    unsafe { lay_out::<S, C>(s, self.kernel, codes, prefetch, chunks, to.cast()) };
                    to = to.wrapping_add(part.len() * BLOCK_BYTES);
                }
                // SAFETY: as above; they have been laid out.
                unsafe { self.multiply(steps.clone(), part, weights.cast(), sums, 0) };
            }
        }

        /// The sums of some blocks of each of some groups, added to those of the blocks before. Each block asks for so many lines.
        ///
        /// # Safety
        /// There must be so many blocks of weights, and room for the sums of as many groups.
        #[inline(always)]
        unsafe fn multiply(
            &self,
            steps: Range<usize>,
            wanted: Range<usize>,
            weights: *const u8,
            sums: *mut Sums<f32>,
            lines: usize,
        ) {
            let (tile, rows) = (self.tile, self.tile.rows);
            let blocks = blocks(&self.kernel.layout);
            let step_units = units(blocks, self.kernel.layout.biases) * rows;
            let before = steps.start * step_units + wanted.start * LINE * rows;
            let operands = Operands {
                x: tile.x.wrapping_add(before).cast(),
                x_row: tile.x_row,
                x_block: tile.x_block,
                weights,
                units: SIDE,
                blocks: wanted.len(),
                groups: Groups {
                    count: steps.len(),
                    x: step_units * size_of::<u32>() - wanted.len() * tile.x_block,
                    out: size_of::<Sums<f32>>(),
                },
                out: sums.cast(),
                out_row: size_of::<[[f32; LANES]; VECTORS]>(),
                resume: wanted.start > 0,
                x_ahead: 0,
                writes: std::ptr::null(),
                writes_row: 0,
                writes_lines: 0,
                prefetch: tile.prefetch.from.wrapping_add(steps.start * tile.prefetch.bytes_per_step),
                lines_per_block: lines,
            };
            // SAFETY: a tile has activations for all blocks of its steps; the caller vouches for the rest.
            unsafe { multiply(self.tiles, rows, &operands, &mut ()) };
        }

        /// The sum of a group's activations of row `row`.
        #[inline(always)]
        fn activation_sum(&self, step: usize, row: usize) -> f32 {
            let (blocks, rows) = (blocks(&self.kernel.layout), self.tile.rows);
            let at = (step * units(blocks, true) + blocks * LINE) * rows + row;
            // SAFETY: where there are biases, the sums of a group's activations follow these.
            f32::from_bits(unsafe { *self.tile.x.wrapping_add(at) })
        }

        /// Takes the sums of `STEPS` groups from number `first` on into the accumulators.
        #[inline(always)]
        fn accumulate<S: Simd, const STEPS: usize>(
            &self,
            s: S,
            first: usize,
            sums: &[Sums<f32>; TOGETHER],
            accumulators: &mut Sums<f32>,
        ) {
            let layout = &self.kernel.layout;
            let rows = self.tile.rows;
            let mut scales = [[s.splat(0.0); VECTORS]; STEPS];
            for (step, scales) in (first..).zip(&mut scales) {
                // SAFETY: a tile begins where groups that lie together do, and has all its steps.
                *scales = unsafe { layout.scales(s, self.tile.weights, step, 0) };
            }
            let mut biases = scales;
            if layout.biases {
                for (step, biases) in (first..).zip(&mut biases) {
                    // SAFETY: as above.
                    *biases = unsafe { layout.biases(s, self.tile.weights, step, 0, *biases) };
                }
            }
            for v in 0..VECTORS {
                for (row, to) in accumulators.iter_mut().take(rows).enumerate() {
                    let mut sum = s.load(&to[v]);
                    for i in 0..STEPS {
                        sum = s.mul_add(scales[i][v], s.load(&sums[i][row][v]), sum);
                        if layout.biases {
                            sum = s.mul_add(biases[i][v], s.splat(self.activation_sum(first + i, row)), sum);
                        }
                    }
                    s.store(sum, &mut to[v]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_larger_groups_need_more_than_is_said() {
        for (k, least, sums) in [(1, 1, true), (40, 16, false), (640, 32, false), (1000, 32, true), (4864, 128, true)] {
            let most = most_units(k, least, sums);
            for size in least..=k.max(least) {
                let need = k.div_ceil(size) * units(size.div_ceil(2 * SIDE), sums);
                assert!(need <= most, "{k} in groups of {size}: {need} of {most}");
            }
        }
    }
}
