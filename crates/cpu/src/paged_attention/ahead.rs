//! Asks for keys and values before they are wanted, a few cache lines at a time: blocks lie anywhere in memory, which hardware cannot
//! foresee, and memory should have something to do while processors compute.

use std::ops::Range;

use super::part::HeadCache;
use crate::simd::{Cache, LANES, Simd};

/// Lines that are asked for at a time where products are under way, at least.
const FEWEST: usize = 4;

/// What a part has yet to ask for: the keys of its positions, in whole blocks, and then their values.
pub(super) struct Ahead<'a, T> {
    cache: &'a HeadCache<'a, T>,
    positions: Range<usize>,
    of_values: bool,
    /// The block's first position, where it is, and its next line.
    block: usize,
    from: *const [u8; 64],
    line: usize,
}

impl<'a, T> Ahead<'a, T> {
    /// Nothing is asked for yet.
    #[inline(always)]
    pub(super) fn new(cache: &'a HeadCache<'a, T>, positions: Range<usize>) -> Self {
        let block = positions.start / cache.layout.block_size * cache.layout.block_size;
        let mut ahead = Self { cache, positions, of_values: false, block, from: std::ptr::null(), line: 0 };
        ahead.find();
        ahead
    }

    /// Finds the block, if there is one.
    #[inline(always)]
    fn find(&mut self) {
        if self.block < self.positions.end {
            let from = if self.of_values { self.cache.values(self.block) } else { self.cache.keys(self.block) };
            self.from = from.cast();
        }
    }

    /// How many cache lines are left.
    #[inline(always)]
    pub(super) fn left(&self) -> usize {
        let block_size = self.cache.layout.block_size;
        let blocks = |from: usize| self.positions.end.saturating_sub(from).div_ceil(block_size);
        let values = if self.of_values { 0 } else { blocks(self.positions.start / block_size * block_size) };
        (blocks(self.block) + values) * self.cache.lines(block_size) - self.line
    }

    /// How many to take at each of `steps` steps for about `lines` in all: a power of two of which the keys of 16 positions are a multiple.
    #[inline(always)]
    pub(super) fn share(&self, lines: usize, steps: usize) -> usize {
        let most = 1 << self.cache.lines(LANES).trailing_zeros();
        lines.div_ceil(steps).next_power_of_two().clamp(FEWEST, most)
    }

    /// About the next `lines`, of which a block has a multiple, for somebody else to ask for, if there are any.
    #[inline(always)]
    pub(super) fn take(&mut self, lines: usize) -> Option<*const u8> {
        if self.block >= self.positions.end {
            return None;
        }
        let at = self.from.wrapping_add(self.line);
        self.line += lines;
        if self.line >= self.cache.lines(self.cache.layout.block_size) {
            self.next_block();
        }
        Some(at.cast())
    }

    #[inline(always)]
    fn next_block(&mut self) {
        let block_size = self.cache.layout.block_size;
        (self.line, self.block) = (0, self.block + block_size);
        if self.block >= self.positions.end && !self.of_values {
            self.of_values = true;
            self.block = self.positions.start / block_size * block_size;
        }
        self.find();
    }

    /// Asks for some cache lines more, if there are any.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(&mut self, s: S, mut lines: usize) {
        let block_size = self.cache.layout.block_size;
        let block_lines = self.cache.lines(block_size);
        while lines > 0 && self.block < self.positions.end {
            let end = block_lines.min(self.line.saturating_add(lines));
            for line in self.line..end {
                s.prefetch(Cache::Second, self.from.wrapping_add(line));
            }
            lines -= end - self.line;
            self.line = end;
            if end == block_lines {
                self.next_block();
            }
        }
    }
}
