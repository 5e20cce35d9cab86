//! A part on machines that multiply matrices of bf16: the same three phases as with vectors, for 16 rows at a time.
//!
//! Keys and values are bf16 and lie in the cache as matrices take them, in pairs. Queries and weights are f32, and each is multiplied as
//! the sum of two bf16, which keeps 16 bits of its mantissa: a score is as exact as its own roundoffs in f32 allow to tell, and a weight is off by
//! a part in 2^17. Positions that a row does not see have a weight of 0 and add nothing to its sums, so that a row's results do not
//! depend on the others, nor on which other rows there are.

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
use crate::simd::{Cache, Element, LANES, Simd};
use vllm_apple_ops::{DType, MAX_HEAD_DIM};

/// Rows of a tile.
const TILE: usize = 16;
/// Elements of a query that are multiplied together, or positions of values.
const STEP: usize = 32;
/// Vectors of 16 positions in as many positions.
const STEP_VECTORS: usize = STEP / LANES;
/// Most steps of a query, or of a part.
const MAX_STEPS: usize = if MAX_HEAD_DIM > PART { MAX_HEAD_DIM } else { PART } / STEP;
/// Columns that are computed together.
const WIDE: usize = 64;

/// Query heads that share a key head from which on matrices are used. Fewer double the speed of prompts as well, but decodes, which then read the
/// more for what they compute, would take up to half as long again as by vectors. See docs/CPU.md.
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

/// Keeps a row's weights in place of the scores, of 32 positions the large terms and then the small ones, and asks for some lines of what is
/// wanted next at each step.
struct Keep {
    ahead: [*const u8; MAX_STEPS],
    lines: usize,
}

impl<S: Simd> Weights<S, STEP_VECTORS> for Keep {
    #[inline(always)]
    fn keep(&mut self, s: S, scores: &mut [f32; PART], vector: usize, weights: [S::V; STEP_VECTORS]) {
        let step = vector / STEP_VECTORS;
        for line in 0..self.lines {
            s.prefetch(Cache::Second, self.ahead[step].wrapping_add(line * size_of::<Line>()));
        }
        let terms = &mut bytemuck::cast_slice_mut::<f32, [bf16; STEP]>(scores)[2 * step..][..2];
        let [large, small] = terms else { unreachable!("two of two") };
        s.store_bf16_terms(weights, large, small);
    }
}

/// Memory of one thread, none where there is no use for it.
#[derive(Debug)]
pub(super) struct Scratch {
    /// `[rows of an item][2][head_dim]`: large terms and small ones.
    queries: Vec<Line>,
    /// `[head_dim / 32][positions / 16]`: keys of as many elements and positions.
    keys: Places,
    /// `[positions / 32][head_dim / 16]`: values of as many positions and elements.
    values: Places,
    /// `[positions / 2][head_dim][2]`: values of 32 positions that do not lie next to each other, or are not all seen.
    laid_out: Vec<Line>,
    /// Scores, then weights.
    scores: Vec<Row>,
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
            values: places(PART / STEP * MAX_HEAD_DIM / LANES),
            laid_out: lines(PART * MAX_HEAD_DIM),
            scores: vec![Row::zeroed(); len(TILE)],
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
        let steps = head_dim / STEP;
        for (query, to) in queries.iter().zip(scratch.queries.chunks_exact_mut(2 * steps)) {
            let (large, small) = to.split_at_mut(steps);
            let vectors = query.0.as_chunks().0.as_chunks::<STEP_VECTORS>().0;
            for ((x, large), small) in vectors.iter().zip(large).zip(small) {
                s.store_bf16_terms([s.load(&x[0]), s.load(&x[1])], &mut large.0, &mut small.0);
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
        let steps = all.start / STEP..all.end.div_ceil(STEP);
        let vectors = steps.start * STEP_VECTORS..steps.end * STEP_VECTORS;
        self.find(cache, start, &all);
        for first in (0..self.rows).step_by(self.tile) {
            let rows = first..self.rows.min(first + self.tile);
            // A tile spreads what it asks for over its scores, its weights and its values: processors have few places for lines on their way, and compute
            // nothing while they wait for one.
            let tiles = (self.rows - first).div_ceil(self.tile);
            self.scores(first, &vectors, ahead, ahead.left() / tiles / 4);
            let lines = ahead.share(ahead.left() / tiles / 3, rows.len() * steps.len());
            for row in rows.clone() {
                let (places, lines) = places(ahead, steps.clone(), lines);
                let scores = &mut self.scratch.scores[row - first].floats;
                let (sum, max) = softmax(s, seen(row), vectors.clone(), scores, Keep { ahead: places, lines });
                self.state(row - first).set_sum_and_max(sum, max);
            }
            self.values(&steps, ahead, ahead.left() / tiles);
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
    #[inline(always)]
    fn find<T: Element>(&mut self, cache: &HeadCache<'_, T>, start: usize, all: &Range<usize>) {
        let head_dim = self.head_dim;
        let Scratch { keys, values, laid_out, .. } = &mut *self.scratch;
        let (first, end) = (all.start / LANES, all.end.div_ceil(LANES));
        for vector in first / STEP_VECTORS * STEP_VECTORS..end.next_multiple_of(STEP_VECTORS) {
            let from = cache.keys(start + vector.clamp(first, end - 1) * LANES).cast::<bf16>();
            for step in 0..head_dim / STEP {
                keys.0[step * (PART / LANES) + vector] = from.wrapping_add(step * STEP * LANES).cast();
            }
        }
        let columns = head_dim / LANES;
        let step_values = bytemuck::cast_slice_mut::<Line, bf16>(laid_out).chunks_exact_mut(STEP * head_dim);
        let steps = all.start / STEP..all.end.div_ceil(STEP);
        for (step, to) in steps.clone().zip(step_values.skip(steps.start)) {
            let positions = step * STEP..(step + 1) * STEP;
            let seen = all.start.max(positions.start)..all.end.min(positions.end);
            let from = if seen == positions && cache.layout.block_size.is_multiple_of(STEP) {
                cache.values(start + positions.start).cast()
            } else {
                lay_out(cache, start, positions, &seen, to);
                to.as_ptr()
            };
            for column in 0..columns {
                values.0[step * columns + column] = from.wrapping_add(column * 2 * LANES).cast();
            }
        }
    }

    /// Scores of the tile that begins at row `first`, for the positions of vectors of the part. Asks for about `lines` of what is wanted next.
    #[inline(always)]
    fn scores<T>(&mut self, first: usize, vectors: &Range<usize>, ahead: &mut Ahead<'_, T>, lines: usize) {
        let row = 2 * self.head_dim;
        let queries = &bytemuck::cast_slice::<Line, bf16>(&self.scratch.queries)[first * row..][..self.tile * row];
        let out = self.scratch.scores[..self.tile].as_mut_ptr().cast::<f32>();
        let lines = ahead.share(lines, (vectors.len() * LANES).div_ceil(WIDE) * (self.head_dim / STEP));
        let mut vector = vectors.start;
        while vector < vectors.end {
            let (places, lines) = places(ahead, 0..self.head_dim / STEP, lines);
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
                fours: lines / 4,
            };
            // SAFETY: the tile's queries and rows of scores are there, and the keys of the positions.
            unsafe { multiply(&self.tiles, wide, &operands) };
            vector += if wide { WIDE / LANES } else { STEP_VECTORS };
        }
    }

    /// Adds up the values of steps of positions with the tile's weights. Asks for about `lines` of what is wanted next.
    #[inline(always)]
    fn values<T>(&mut self, steps: &Range<usize>, ahead: &mut Ahead<'_, T>, lines: usize) {
        let columns = self.head_dim / LANES;
        let weights = bytemuck::cast_slice::<Row, Line>(&self.scratch.scores[..self.tile])[2 * steps.start..].as_ptr();
        let out = self.scratch.states[..self.tile].as_mut_ptr().cast::<f32>();
        let lines = ahead.share(lines, self.head_dim.div_ceil(WIDE) * steps.len());
        for at in (0..self.head_dim).step_by(WIDE) {
            let (places, lines) = places(ahead, 0..steps.len(), lines);
            let operands = Operands {
                large: weights.cast(),
                small: weights.wrapping_add(1).cast(),
                row: size_of::<Row>(),
                block: 2 * size_of::<Line>(),
                weights: self.scratch.values.0[steps.start * columns + at / LANES..].as_ptr(),
                next: columns * size_of::<*const u8>(),
                line: self.head_dim * 2 * size_of::<bf16>(),
                blocks: steps.len(),
                out: out.wrapping_add(at),
                out_row: size_of::<Room>(),
                ahead: places.as_ptr(),
                fours: lines / 4,
            };
            // SAFETY: the tile's weights and states are there, and the values of all positions.
            unsafe { multiply(&self.tiles, self.head_dim - at >= WIDE, &operands) };
        }
    }
}

/// Copies the values of positions of the part that begins at `start`. Next to those that are seen may be what belongs to no position and is no number,
/// which a weight of 0 does not hide: zeros take its place.
#[inline(always)]
fn lay_out<T>(cache: &HeadCache<'_, T>, start: usize, positions: Range<usize>, seen: &Range<usize>, to: &mut [bf16]) {
    let head_dim = cache.layout.head_dim;
    for (first, to) in positions.step_by(LANES).zip(to.chunks_exact_mut(LANES * head_dim)) {
        let seen = seen.start.max(first)..seen.end.min(first + LANES);
        if seen.is_empty() {
            to.fill(bf16::ZERO);
            continue;
        }
        // SAFETY: `HeadCache::values` has made sure of the block's values, which are bf16; 16 positions are in one block.
        to.copy_from_slice(unsafe { std::slice::from_raw_parts(cache.values(start + first).cast(), LANES * head_dim) });
        for position in (first..first + LANES).filter(|position| !seen.contains(position)) {
            let at = position - first;
            to[at / 2 * 2 * head_dim..][..2 * head_dim]
                .iter_mut()
                .skip(at % 2)
                .step_by(2)
                .for_each(|value| *value = bf16::ZERO);
        }
    }
}

/// What is to be asked for at each of some steps: places, and how many cache lines there.
#[inline(always)]
fn places<T>(ahead: &mut Ahead<'_, T>, steps: Range<usize>, lines: usize) -> ([*const u8; MAX_STEPS], usize) {
    let mut places = [std::ptr::null(); MAX_STEPS];
    let mut last = None;
    for place in &mut places[steps] {
        // What has been asked for costs little the second time.
        last = ahead.take(lines).or(last);
        *place = last.unwrap_or(std::ptr::null());
    }
    (places, if last.is_some() { lines } else { 0 })
}
