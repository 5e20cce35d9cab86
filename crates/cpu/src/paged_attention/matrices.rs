//! A part on machines that multiply matrices of bf16: the same three phases as with vectors, for 16 rows at a time.
//!
//! Keys and values are bf16 and are laid out in pairs, once for all rows of an item. Queries and weights are f32, and each is multiplied as
//! the sum of two bf16, which keeps 16 bits of its mantissa: a score is as exact as its own roundoffs in f32 allow to tell, and a weight is off by
//! a part in 2^17. Positions that a row does not see have a weight of 0 and add nothing to its sums, so that a row's results do not
//! depend on the others, nor on which other rows there are.

use std::mem::offset_of;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::ahead::Ahead;
use super::part::HeadCache;
use super::softmax::{Weights, softmax};
use super::state::MAX_STATE;
use super::{PART, ROWS, Results, State};
use crate::amx::terms::{Operands, Tiles, multiply};
use crate::isa::Isa;
use crate::simd::{Element, LANES, Simd};
use vllm_apple_ops::{DType, MAX_HEAD_DIM};

/// Rows of a tile.
const TILE: usize = 16;
/// Elements of a query, or positions, that are multiplied together.
const STEP: usize = 32;
/// Columns that are computed together.
const WIDE: usize = 64;
/// Bytes of a block of weights in pairs.
const BLOCK: usize = 1024;

/// Query heads that share a key head from which on decodes are as fast as by vectors: fewer rows do not win back that keys and values are laid
/// out in pairs first. See docs/PERFORMANCE.md.
const SHARED: usize = 7;

/// Whether keys and values of a type and size are multiplied so, by the queries of `group` heads. Nothing about a step has a say: prompts
/// and decodes must have the same bits.
pub(super) fn fit(isa: Isa, dtype: DType, head_dim: usize, group: usize) -> bool {
    isa == Isa::AmxBf16 && dtype == DType::BF16 && head_dim.is_multiple_of(STEP) && group >= SHARED
}

/// A cache line: 32 bf16, or 16 pairs.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([[bf16; 2]; LANES]);

/// A row of scores. The line behind them keeps the same position of many rows from meeting in one set of the cache.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Scores {
    scores: [f32; PART],
    gap: [f32; LANES],
}

/// A row of weights, in two terms.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Terms {
    large: [[bf16; LANES]; PART / LANES],
    small: [[bf16; LANES]; PART / LANES],
    gap: [bf16; 32],
}

impl<S: Simd> Weights<S> for &mut Terms {
    #[inline(always)]
    fn keep(&mut self, s: S, _: &mut [f32; PART], vector: usize, weights: S::V) {
        s.store_bf16_terms(weights, &mut self.large[vector], &mut self.small[vector]);
    }
}

/// Memory of one thread, none where there is no use for it.
#[derive(Debug)]
pub(super) struct Scratch {
    /// `[rows of an item][2][head_dim]`: large terms and small ones.
    queries: Vec<Line>,
    /// `[positions / 16][head_dim / 2]` lines: pairs of elements, positions side by side.
    keys: Vec<Line>,
    /// `[positions / 32][head_dim / 16][16]` lines: pairs of positions, elements side by side.
    values: Vec<Line>,
    scores: Vec<Scores>,
    weights: Vec<Terms>,
    states: Vec<[f32; MAX_STATE]>,
}

impl Scratch {
    /// Memory for heads of any size.
    pub(super) fn new(isa: Isa) -> Self {
        let len = |len: usize| if isa == Isa::AmxBf16 { len } else { 0 };
        let lines = |elements: usize| vec![Line::zeroed(); len(elements / STEP)];
        Self {
            queries: lines(ROWS * 2 * MAX_HEAD_DIM),
            keys: lines(PART * MAX_HEAD_DIM),
            values: lines(PART * MAX_HEAD_DIM),
            scores: vec![Scores::zeroed(); len(TILE)],
            weights: vec![Terms::zeroed(); len(TILE)],
            states: vec![[0.0; MAX_STATE]; len(TILE)],
        }
    }
}

/// An item's rows, and this thread's registers.
pub(super) struct Rows<'a> {
    tiles: Tiles,
    scratch: &'a mut Scratch,
    rows: usize,
    /// Rows of a tile; the last may have fewer, and then computes some that nobody reads.
    tile: usize,
    head_dim: usize,
}

impl<'a> Rows<'a> {
    /// Takes an item's scaled queries, `[rows][head_dim]`, at most [`ROWS`].
    ///
    /// # Safety
    /// The machine must have [`Isa::AmxBf16`].
    #[inline(always)]
    pub(super) unsafe fn new<S: Simd>(s: S, scratch: &'a mut Scratch, queries: &[f32], head_dim: usize) -> Self {
        let rows = queries.len() / head_dim;
        let tile = rows.div_ceil(rows.div_ceil(TILE));
        let terms = bytemuck::cast_slice_mut::<Line, [bf16; LANES]>(&mut scratch.queries);
        let vectors = head_dim / LANES;
        for (query, to) in queries.chunks_exact(head_dim).zip(terms.chunks_exact_mut(2 * vectors)) {
            let (large, small) = to.split_at_mut(vectors);
            for ((x, large), small) in query.as_chunks().0.iter().zip(large).zip(small) {
                s.store_bf16_terms(s.load(x), large, small);
            }
        }
        // SAFETY: the caller vouches for the machine, and a tile has from 1 to 16 rows.
        Self { tiles: unsafe { Tiles::configure(tile) }, scratch, rows, tile, head_dim }
    }

    /// Computes the part that begins at `start` and gives each row's state to `results`. `visible` says which of the part's positions a row
    /// sees: the first row begins and the last one ends as early and late as any. `ahead` is what is wanted after this part.
    #[inline(always)]
    pub(super) fn compute<S: Simd, T: Element>(
        &mut self,
        s: S,
        cache: &HeadCache<'_, T>,
        start: usize,
        visible: &impl Fn(usize) -> Range<usize>,
        ahead: &mut Ahead<'_, T>,
        results: &mut Results<'_, T>,
    ) {
        let seen = |row: usize| {
            let positions = visible(row);
            positions.start.max(start) - start..positions.end.max(start) - start
        };
        let all = seen(0).start..seen(self.rows - 1).end;
        // What a sixty-fourth of a part asks for: all of a part's shares are about as many.
        let share = 2 * cache.lines(PART) / 64;
        self.take_keys(s, cache, start, &all, ahead, share);
        let steps = all.start / STEP..all.end.div_ceil(STEP);
        let mut has_values = false;
        for first in (0..self.rows).step_by(self.tile) {
            self.scores(s, first, &all, ahead, share);
            let rows = first..self.rows.min(first + self.tile);
            for row in rows.clone() {
                ahead.ask(s, 2 * share);
                let to = &mut self.scratch.weights[row - first];
                let scores = &mut self.scratch.scores[row - first].scores;
                let vectors = steps.start * (STEP / LANES)..steps.end * (STEP / LANES);
                let (sum, max) = softmax(s, seen(row), vectors, scores, to);
                self.state(row - first).set_sum_and_max(sum, max);
            }
            if !std::mem::replace(&mut has_values, true) {
                self.take_values(s, cache, start, &all, ahead, share);
            }
            self.values(steps.clone());
            for row in rows {
                results.take(s, start / PART, row, &self.state(row - first));
            }
        }
        ahead.ask(s, usize::MAX);
    }

    /// The state of a row of the tile.
    #[inline(always)]
    fn state(&mut self, row: usize) -> State<'_> {
        State::of(&mut self.scratch.states[row][..State::floats(self.head_dim)])
    }

    /// Lays out the keys of the part's positions `all`, in whole vectors.
    #[inline(always)]
    fn take_keys<S: Simd, T: Element>(
        &mut self,
        s: S,
        cache: &HeadCache<'_, T>,
        start: usize,
        all: &Range<usize>,
        ahead: &mut Ahead<'_, T>,
        share: usize,
    ) {
        let block_size = cache.layout.block_size;
        for vector in all.start / LANES..all.end.div_ceil(LANES) {
            ahead.ask(s, share);
            let from = cache.keys(start + vector * LANES).cast::<bf16>();
            let lines = &mut self.scratch.keys[vector * self.head_dim / 2..][..self.head_dim / 2];
            for (pair, line) in lines.iter_mut().enumerate() {
                let element = |d: usize| from.wrapping_add(d * block_size).cast::<[bf16; LANES]>();
                // SAFETY: `HeadCache::keys` has made sure of a whole block of bf16 from its start; 16 positions of each element
                // are in it.
                let (first, second) = unsafe { (&*element(2 * pair), &*element(2 * pair + 1)) };
                s.pair_bf16(first, second, &mut line.0);
            }
        }
    }

    /// Lays out the values of the part's positions `all`, in whole steps with zeros at other positions.
    #[inline(always)]
    fn take_values<S: Simd, T: Element>(
        &mut self,
        s: S,
        cache: &HeadCache<'_, T>,
        start: usize,
        all: &Range<usize>,
        ahead: &mut Ahead<'_, T>,
        share: usize,
    ) {
        static NONE: [bf16; MAX_HEAD_DIM] = [bf16::ZERO; MAX_HEAD_DIM];
        let vectors = self.head_dim / LANES;
        for step in all.start / STEP..all.end.div_ceil(STEP) {
            ahead.ask(s, 2 * share);
            let lines = &mut self.scratch.values[step * vectors * LANES..][..vectors * LANES];
            for half in 0..2 {
                let first = step * STEP + half * LANES;
                let has_any = first < all.end && first + LANES > all.start;
                let from = if has_any { cache.values(start + first).cast::<bf16>() } else { NONE.as_ptr() };
                for pair in 0..LANES / 2 {
                    let [first, second] = [2 * pair, 2 * pair + 1].map(|at| {
                        let at_all = all.contains(&(first + at));
                        if at_all { from.wrapping_add(at * self.head_dim) } else { NONE.as_ptr() }
                    });
                    let to = half * LANES / 2 + pair;
                    for vector in 0..vectors {
                        let element = |row: *const bf16| row.wrapping_add(vector * LANES).cast::<[bf16; LANES]>();
                        // SAFETY: `HeadCache::values` has made sure of the block's values from `position` on, which are bf16, and a
                        // position of the part is in the same block as the 16th of it.
                        let (first, second) = unsafe { (&*element(first), &*element(second)) };
                        s.pair_bf16(first, second, &mut lines[vector * LANES + to].0);
                    }
                }
            }
        }
    }

    /// Scores of the tile that begins at row `first`, for the part's positions `all` and more that nobody reads.
    #[inline(always)]
    fn scores<S: Simd, T>(&mut self, s: S, first: usize, all: &Range<usize>, ahead: &mut Ahead<'_, T>, share: usize) {
        let row = 2 * self.head_dim;
        let queries = &bytemuck::cast_slice::<Line, bf16>(&self.scratch.queries)[first * row..][..self.tile * row];
        let out = self.scratch.scores[..self.tile].as_mut_ptr().cast::<f32>();
        for at in (all.start / WIDE * WIDE..all.end).step_by(WIDE) {
            ahead.ask(s, 2 * share);
            let keys = &self.scratch.keys[at * self.head_dim / STEP..][..WIDE * self.head_dim / STEP];
            let operands = Operands {
                large: queries.as_ptr().cast(),
                small: queries[self.head_dim..].as_ptr().cast(),
                row: row * size_of::<bf16>(),
                weights: keys.as_ptr().cast(),
                column: self.head_dim / STEP * BLOCK,
                step: BLOCK,
                blocks: self.head_dim / STEP,
                out: out.wrapping_add(at),
                out_row: size_of::<Scores>(),
            };
            // SAFETY: the tile's queries and rows of scores are there, and the keys of 64 positions.
            unsafe { multiply(&self.tiles, true, &operands) };
        }
    }

    /// Adds up the values of positions in whole steps with the tile's weights.
    #[inline(always)]
    fn values(&mut self, steps: Range<usize>) {
        let vectors = self.head_dim / LANES;
        let values = &self.scratch.values[steps.start * vectors * LANES..steps.end * vectors * LANES];
        let weights = &self.scratch.weights[..self.tile];
        let terms = |offset: usize| weights.as_ptr().wrapping_byte_add(offset + steps.start * STEP * size_of::<bf16>());
        let out = self.scratch.states[..self.tile].as_mut_ptr().cast::<f32>();
        for at in (0..self.head_dim).step_by(WIDE) {
            let operands = Operands {
                large: terms(offset_of!(Terms, large)).cast(),
                small: terms(offset_of!(Terms, small)).cast(),
                row: size_of::<Terms>(),
                weights: values[at..].as_ptr().cast(),
                column: BLOCK,
                step: vectors * BLOCK,
                blocks: steps.len(),
                out: out.wrapping_add(at),
                out_row: size_of::<[f32; MAX_STATE]>(),
            };
            // SAFETY: the tile's weights and states are there, and the values of all steps.
            unsafe { multiply(&self.tiles, self.head_dim - at >= WIDE, &operands) };
        }
    }
}
