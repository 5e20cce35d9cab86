//! The tile kernel for quantised weights and activations of 8 bits on machines that multiply matrices of bytes. It knows nothing of threads or
//! blocking.
//!
//! A group's sums are whole numbers, so they are those of vectors; scales and biases then take them into the accumulators as there.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::SIDE;
use super::accumulators::{Sums, begin, finish};
use crate::amx::{Groups, Operands, Tiles, multiply_bytes};
use crate::matmul::LINE_BYTES;
use crate::matmul::codes::CodesKernel;
use crate::matmul::codes::integers::{self, Chunk, units};
use crate::matmul::format::VECTORS;
use crate::matmul::tile::Tile;
use crate::simd::{Dispatch, Kernel, LANES, Simd};

/// Groups whose sums the accumulators take together, and blocks that are laid out together: what they need stays in the first-level cache.
const TOGETHER: usize = 4;

#[repr(C, align(64))]
struct Scratch {
    weights: [[Chunk; SIDE]; TOGETHER],
    /// Of a group each.
    sums: [Sums<i32>; TOGETHER],
    accumulators: Sums<f32>,
}

/// How a group is multiplied.
#[derive(Clone, Copy)]
struct Group {
    chunks: usize,
    /// Chunks that are multiplied at a time: the most that a matrix holds of those whose multiple a group has.
    block: usize,
    /// Units of activation of a row.
    units: usize,
}

/// One tile, whose pointers and rows the caller of [`CodesKernel::run`] vouches for.
pub(crate) struct Multiply<'a> {
    dispatch: Dispatch,
    tiles: &'a Tiles,
    kernel: &'a CodesKernel,
    tile: &'a Tile<'a>,
    group: Group,
}

impl<'a> Multiply<'a> {
    pub(crate) fn new(dispatch: Dispatch, tiles: &'a Tiles, kernel: &'a CodesKernel, tile: &'a Tile<'a>) -> Self {
        let layout = &kernel.layout;
        let chunks = layout.chunks();
        let block = (1..=SIDE).rev().find(|block| chunks.is_multiple_of(*block)).unwrap_or(1);
        Self { dispatch, tiles, kernel, tile, group: Group { chunks, block, units: units(layout) } }
    }
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
        let mut scratch = MaybeUninit::<Scratch>::uninit();
        let scratch = scratch.as_mut_ptr();
        // SAFETY: the memory is there, and of accumulators those of the tile's rows are written before they are read.
        let accumulators = unsafe { &mut (*scratch).accumulators };
        begin(tile, accumulators);
        let groups = (TOGETHER * SIDE / self.group.chunks).clamp(1, TOGETHER);
        for first in (0..tile.steps).step_by(groups) {
            let steps = first..tile.steps.min(first + groups);
            // SAFETY: the scratch is there.
            unsafe { self.sums(steps.clone(), scratch) };
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

impl Multiply<'_> {
    /// The sums of some groups: as many as fit together, or one.
    ///
    /// # Safety
    /// The scratch must be there.
    #[inline(always)]
    unsafe fn sums(&self, steps: Range<usize>, scratch: *mut Scratch) {
        let (tile, Group { chunks, block, .. }) = (self.tile, self.group);
        // SAFETY: the caller vouches for it.
        let (weights, sums) = unsafe { (&raw mut (*scratch).weights, (&raw mut (*scratch).sums).cast()) };
        if !tile.laid_out.is_null() {
            let weights = tile.laid_out.wrapping_add(steps.start * chunks * size_of::<Chunk>());
            let lines = tile.prefetch.bytes_per_step.div_ceil(LINE_BYTES * (chunks / block));
            // SAFETY: a tile's laid out weights are those of all its steps.
            unsafe { self.multiply(steps, 0..chunks, weights, sums, lines) };
            return;
        }
        let most = TOGETHER * block;
        for first in (0..chunks).step_by(most) {
            let part = first..chunks.min(first + most);
            let to = weights.cast::<u8>();
            // SAFETY: groups that are together have no more chunks than there is room for, nor has a part of one; they are multiplied when they have been
            // laid out, which asks for the next codes.
            unsafe {
                integers::lay_out(self.dispatch, self.kernel, tile.weights, steps.clone(), part.clone(), to);
                self.multiply(steps.clone(), part, to, sums, 0);
            }
        }
    }

    /// The sums of some chunks of each of some groups, whole blocks, added to those of the chunks before. Each block asks for so many lines.
    ///
    /// # Safety
    /// There must be so many chunks of weights, and room for the sums of as many groups.
    #[inline(always)]
    unsafe fn multiply(
        &self,
        steps: Range<usize>,
        wanted: Range<usize>,
        weights: *const u8,
        sums: *mut Sums<i32>,
        lines: usize,
    ) {
        let (tile, rows, Group { chunks, block, units }) = (self.tile, self.tile.rows, self.group);
        let operands = Operands {
            x: tile.x.wrapping_add(steps.start * units * rows + wanted.start).cast(),
            x_row: chunks * size_of::<u32>(),
            x_block: block * size_of::<u32>(),
            weights,
            units: block,
            blocks: wanted.len() / block,
            groups: Groups {
                count: steps.len(),
                x: (units * rows - wanted.len()) * size_of::<u32>(),
                out: size_of::<Sums<i32>>(),
            },
            out: sums.cast(),
            out_row: size_of::<[[i32; LANES]; VECTORS]>(),
            resume: wanted.start > 0,
            x_ahead: 0,
            writes: std::ptr::null(),
            writes_row: 0,
            writes_lines: 0,
            prefetch: tile.prefetch.from.wrapping_add(steps.start * tile.prefetch.bytes_per_step),
            lines_per_block: lines,
        };
        // SAFETY: a tile has activations for all chunks of its steps; the caller vouches for the rest.
        unsafe { multiply_bytes(self.tiles, rows, &operands, &mut ()) };
    }

    /// Takes the sums of `STEPS` groups from number `first` on into the accumulators.
    #[inline(always)]
    fn accumulate<S: Simd, const STEPS: usize>(
        &self,
        s: S,
        first: usize,
        sums: &[Sums<i32>; TOGETHER],
        accumulators: &mut Sums<f32>,
    ) {
        let (tile, layout, rows) = (self.tile, &self.kernel.layout, self.tile.rows);
        let Group { chunks, units, .. } = self.group;
        let mut scales = [[s.splat(0.0); VECTORS]; STEPS];
        let mut biases = scales;
        // Behind the elements of each group what all rows have, one kind after the other.
        let mut extras = [tile.x; STEPS];
        for (i, step) in (first..first + STEPS).enumerate() {
            extras[i] = tile.x.wrapping_add((step * units + chunks) * rows);
            // SAFETY: a tile begins where groups that lie together do, and has all its steps.
            unsafe {
                scales[i] = layout.scales(s, tile.weights, step, 0);
                if layout.biases {
                    biases[i] = layout.biases(s, tile.weights, step, 0, scales[i]);
                }
            }
        }
        for (row, to) in accumulators.iter_mut().take(rows).enumerate() {
            let mut results = [s.splat(0.0); VECTORS];
            for (v, result) in results.iter_mut().enumerate() {
                *result = s.load(&to[v]);
            }
            for i in 0..STEPS {
                // SAFETY: there are as many of each kind as rows.
                let extra = |kind: usize| unsafe { *extras[i].wrapping_add(kind * rows + row) };
                let (added, scale_of_x) = (s.splat_totals(extra(0).cast_signed()), s.splat(f32::from_bits(extra(1))));
                for (v, &scale) in scales[i].iter().enumerate() {
                    let total = s.totals_to_f32(s.add_totals(s.load_totals(&sums[i][row][v]), added));
                    results[v] = s.mul_add(s.mul(scale, scale_of_x), total, results[v]);
                }
                if layout.biases {
                    let sum_of_x = s.splat(f32::from_bits(extra(2)));
                    for (v, &bias) in biases[i].iter().enumerate() {
                        results[v] = s.mul_add(bias, sum_of_x, results[v]);
                    }
                }
            }
            for (v, &result) in results.iter().enumerate() {
                s.store(result, &mut to[v]);
            }
        }
    }
}
