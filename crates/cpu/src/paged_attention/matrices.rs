//! A part on machines that multiply matrices of bf16: the same three phases as with vectors, for 16 rows at a time.
//!
//! Keys and values are bf16 and lie in the cache as matrices take them, in pairs. Queries and weights are f32, and each is multiplied as
//! the sum of two bf16, which keeps 16 bits of its mantissa: a score is as exact as its own roundoffs in f32 allow to tell, and a weight is off by
//! a part in 2^17. Positions that a row does not see have a weight of 0 and add nothing to its sums, so that a row's results do not
//! depend on the others, nor on which other rows there are.

use std::mem::offset_of;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::ahead::Ahead;
use super::part::HeadCache;
use super::softmax::{Row, Weights, softmax};
use super::state::Room;
use super::{PART, ROWS, Results, State};
use crate::amx::terms::{Operands, Tiles, multiply};
use crate::isa::Isa;
use crate::simd::{Element, LANES, Simd};
use vllm_apple_ops::{DType, MAX_HEAD_DIM};

/// Rows of a tile.
const TILE: usize = 16;
/// Elements of a query that are multiplied together. Of positions it is a vector: more need not lie next to each other.
const STEP: usize = 32;
/// Columns that are computed together.
const WIDE: usize = 64;
/// Cache lines that are asked for while a block of products is under way. Keys of 16 positions are a multiple.
const RUN: usize = 16;

/// Query heads that share a key head from which on matrices are used. Fewer double the speed of prompts as well, but decodes, which then read the
/// more for what they compute, would take up to half as long again as by vectors. See docs/PERFORMANCE.md.
const SHARED: usize = 4;

/// Whether keys and values of a type and size are multiplied so, by the queries of `group` heads. Nothing about a step has a say: prompts
/// and decodes must have the same bits.
pub(super) fn fit(isa: Isa, dtype: DType, head_dim: usize, group: usize) -> bool {
    isa == Isa::AmxBf16 && dtype == DType::BF16 && head_dim.is_multiple_of(STEP) && group >= SHARED
}

/// A cache line.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([bf16; 32]);

/// A table of places in memory that only an op under way may read.
#[derive(Debug)]
struct Places(Vec<*const u8>);

// SAFETY: nothing is read through them but by the thread that has just put them there.
unsafe impl Send for Places {}
// SAFETY: as above.
unsafe impl Sync for Places {}

/// A row of weights, in two terms.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Terms {
    large: [[bf16; LANES]; PART / LANES],
    small: [[bf16; LANES]; PART / LANES],
    gap: [bf16; 32],
}

/// Keeps a row's weights, and asks for some lines of what is wanted next at each of 16.
struct Keep<'a, 'c, T> {
    terms: &'a mut Terms,
    ahead: &'a mut Ahead<'c, T>,
    lines: usize,
}

impl<S: Simd, T> Weights<S> for Keep<'_, '_, T> {
    #[inline(always)]
    fn keep(&mut self, s: S, _: &mut [f32; PART], vector: usize, weights: S::V) {
        self.ahead.ask(s, self.lines);
        s.store_bf16_terms(weights, &mut self.terms.large[vector], &mut self.terms.small[vector]);
    }
}

/// Memory of one thread, none where there is no use for it.
#[derive(Debug)]
pub(super) struct Scratch {
    /// `[rows of an item][2][head_dim]`: large terms and small ones.
    queries: Vec<Line>,
    /// `[head_dim / 32][positions / 16]`: keys of as many elements and positions.
    keys: Places,
    /// `[positions / 16][head_dim / 16]`: values.
    values: Places,
    /// `[2][8][head_dim][2]`: values of the first and the last 16 positions, if not all of these are seen.
    edges: Vec<Line>,
    scores: Vec<Row>,
    weights: Vec<Terms>,
    states: Vec<Room>,
}

impl Scratch {
    /// Memory for heads of any size.
    pub(super) fn new(isa: Isa) -> Self {
        let len = |len: usize| if isa == Isa::AmxBf16 { len } else { 0 };
        let lines = |elements: usize| vec![Line::zeroed(); len(elements / 32)];
        let places = |places: usize| Places(vec![std::ptr::null(); len(places)]);
        Self {
            queries: lines(ROWS * 2 * MAX_HEAD_DIM),
            keys: places(PART / LANES * MAX_HEAD_DIM / STEP),
            values: places(PART / LANES * MAX_HEAD_DIM / LANES),
            edges: lines(2 * LANES * MAX_HEAD_DIM),
            scores: vec![Row::zeroed(); len(TILE)],
            weights: vec![Terms::zeroed(); len(TILE)],
            states: vec![Room::default(); len(TILE)],
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
    /// Takes an item's scaled queries, at most [`ROWS`].
    ///
    /// # Safety
    /// The machine must have [`Isa::AmxBf16`].
    #[inline(always)]
    pub(super) unsafe fn new<S: Simd>(s: S, scratch: &'a mut Scratch, queries: &[Room], head_dim: usize) -> Self {
        let rows = queries.len();
        let tile = rows.div_ceil(rows.div_ceil(TILE));
        let terms = bytemuck::cast_slice_mut::<Line, [bf16; LANES]>(&mut scratch.queries);
        let vectors = head_dim / LANES;
        for (query, to) in queries.iter().zip(terms.chunks_exact_mut(2 * vectors)) {
            let (large, small) = to.split_at_mut(vectors);
            for ((x, large), small) in query.0.as_chunks().0.iter().zip(large).zip(small) {
                s.store_bf16_terms(s.load(x), large, small);
            }
        }
        // SAFETY: the caller vouches for the machine, and a tile has from 1 to 16 rows.
        Self { tiles: unsafe { Tiles::of(tile) }, scratch, rows, tile, head_dim }
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
        let vectors = all.start / LANES..all.end.div_ceil(LANES);
        self.find(cache, start, &all);
        for first in (0..self.rows).step_by(self.tile) {
            self.scores(first, &vectors, ahead);
            let rows = first..self.rows.min(first + self.tile);
            // Products of the values take some of what is left.
            let left = ahead.left().saturating_sub(vectors.len() * self.head_dim.div_ceil(WIDE) * RUN);
            let lines = left.div_ceil(rows.len() * vectors.len());
            for row in rows.clone() {
                let Scratch { weights, scores, .. } = &mut *self.scratch;
                let to = Keep { terms: &mut weights[row - first], ahead, lines };
                let (sum, max) = softmax(s, seen(row), vectors.clone(), &mut scores[row - first].floats, to);
                self.state(row - first).set_sum_and_max(sum, max);
            }
            self.values(&vectors, ahead);
            for row in rows {
                results.take(s, start / PART, row, &self.state(row - first));
            }
        }
        ahead.ask(s, usize::MAX);
    }

    /// The state of a row of the tile.
    #[inline(always)]
    fn state(&mut self, row: usize) -> State<'_> {
        State::of(&mut self.scratch.states[row].0[..State::floats(self.head_dim)])
    }

    /// Finds the keys and values of the part's positions `all`. Two vectors of keys are multiplied together at least: one without a second has itself.
    /// Next to values may be what belongs to no position and is no number, which a weight of 0 does not hide: zeros take its place.
    #[inline(always)]
    fn find<T: Element>(&mut self, cache: &HeadCache<'_, T>, start: usize, all: &Range<usize>) {
        let head_dim = self.head_dim;
        let Scratch { keys, values, edges, .. } = &mut *self.scratch;
        let (first, end) = (all.start / LANES, all.end.div_ceil(LANES));
        for vector in first / 2 * 2..end.next_multiple_of(2) {
            let from = cache.keys(start + vector.clamp(first, end - 1) * LANES).cast::<bf16>();
            for step in 0..head_dim / STEP {
                keys.0[step * (PART / LANES) + vector] = from.wrapping_add(step * STEP * LANES).cast();
            }
        }
        let columns = head_dim / LANES;
        for vector in first..end {
            let mut from = cache.values(start + vector * LANES).cast::<bf16>();
            let seen = all.start.max(vector * LANES)..all.end.min((vector + 1) * LANES);
            if seen.len() < LANES {
                // The first 16 positions and the last may both be seen in part.
                let edge = &mut bytemuck::cast_slice_mut(edges)[usize::from(seen.end == all.end) * LANES * head_dim..];
                // SAFETY: `HeadCache::values` has made sure of the block's values, which are bf16; 16 positions are in one block.
                let values = unsafe { std::slice::from_raw_parts(from, LANES * head_dim) };
                for (pair, to) in edge[..LANES * head_dim].chunks_exact_mut(2 * head_dim).enumerate() {
                    to.copy_from_slice(&values[2 * head_dim * pair..][..2 * head_dim]);
                    for at in (0..2).filter(|at| !seen.contains(&(vector * LANES + 2 * pair + at))) {
                        to.iter_mut().skip(at).step_by(2).for_each(|value| *value = bf16::ZERO);
                    }
                }
                from = edge.as_ptr();
            }
            for column in 0..columns {
                values.0[vector * columns + column] = from.wrapping_add(column * 2 * LANES).cast();
            }
        }
    }

    /// Scores of the tile that begins at row `first`, for the positions of vectors of the part.
    #[inline(always)]
    fn scores<T>(&mut self, first: usize, vectors: &Range<usize>, ahead: &mut Ahead<'_, T>) {
        self.tiles.take_blocks_of(STEP / 2);
        let row = 2 * self.head_dim;
        let queries = &bytemuck::cast_slice::<Line, bf16>(&self.scratch.queries)[first * row..][..self.tile * row];
        let out = self.scratch.scores[..self.tile].as_mut_ptr().cast::<f32>();
        let mut vector = vectors.start / 2 * 2;
        while vector < vectors.end {
            let (places, fours) = runs(ahead, self.head_dim / STEP);
            let wide = vectors.end - vector >= WIDE / LANES;
            let operands = Operands {
                large: queries.as_ptr().cast(),
                small: queries[self.head_dim..].as_ptr().cast(),
                row: row * size_of::<bf16>(),
                block: STEP * size_of::<bf16>(),
                weights: self.scratch.keys.0[vector..].as_ptr(),
                next: PART / LANES * size_of::<*const u8>(),
                line: LANES * 2 * size_of::<bf16>(),
                blocks: self.head_dim / STEP,
                out: out.wrapping_add(vector * LANES),
                out_row: size_of::<Row>(),
                ahead: places.as_ptr(),
                fours,
            };
            // SAFETY: the tile's queries and rows of scores are there, and the keys of the positions.
            unsafe { multiply(&self.tiles, wide, &operands) };
            vector += if wide { WIDE / LANES } else { 2 };
        }
    }

    /// Adds up the values of the positions of vectors with the tile's weights.
    #[inline(always)]
    fn values<T>(&mut self, vectors: &Range<usize>, ahead: &mut Ahead<'_, T>) {
        self.tiles.take_blocks_of(LANES / 2);
        let columns = self.head_dim / LANES;
        let weights = &self.scratch.weights[..self.tile];
        let terms =
            |offset: usize| weights.as_ptr().wrapping_byte_add(offset + vectors.start * LANES * size_of::<bf16>());
        let out = self.scratch.states[..self.tile].as_mut_ptr().cast::<f32>();
        for at in (0..self.head_dim).step_by(WIDE) {
            let (places, fours) = runs(ahead, vectors.len());
            let operands = Operands {
                large: terms(offset_of!(Terms, large)).cast(),
                small: terms(offset_of!(Terms, small)).cast(),
                row: size_of::<Terms>(),
                block: LANES * size_of::<bf16>(),
                weights: self.scratch.values.0[vectors.start * columns + at / LANES..].as_ptr(),
                next: columns * size_of::<*const u8>(),
                line: self.head_dim * 2 * size_of::<bf16>(),
                blocks: vectors.len(),
                out: out.wrapping_add(at),
                out_row: size_of::<Room>(),
                ahead: places.as_ptr(),
                fours,
            };
            // SAFETY: the tile's weights and states are there, and the values of all positions.
            unsafe { multiply(&self.tiles, self.head_dim - at >= WIDE, &operands) };
        }
    }
}

/// What so many blocks of products, at most 16, ask for, and how many times four lines each.
#[inline(always)]
fn runs<T>(ahead: &mut Ahead<'_, T>, blocks: usize) -> ([*const u8; PART / LANES], usize) {
    let mut places = [std::ptr::null(); PART / LANES];
    let mut last = None;
    for place in &mut places[..blocks] {
        // What has been asked for costs little the second time.
        last = ahead.take(RUN).or(last);
        *place = last.unwrap_or(std::ptr::null());
    }
    (places, if last.is_some() { RUN / 4 } else { 0 })
}
