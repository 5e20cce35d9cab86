//! The arithmetic of one part: the rows of an item against at most [`PART`] positions of one key head.
//!
//! Three phases: scores (16 positions in lanes, head elements in ascending order), weights (`exp(score - max)`, summed 16
//! positions at a time and then across lanes), weighted values (16 head elements in lanes, positions in ascending order). The
//! rows of a tile share the loads of keys and values; each has accumulators of its own, so its result does not depend on the
//! others. Keys and values are widened to f32 and queries are not rounded. Rounding them would let a bf16 dot product compute
//! the scores up to twice as fast, which is at most a quarter of the whole, for scores that are as coarse as PyTorch's.

use std::ops::Range;

use bytemuck::Zeroable;

use super::softmax::{InPlace, Row, softmax, vector_mut};
use super::state::Room;
use super::{PART, ROWS, State};
use crate::kv_layout::KvLayout;
use crate::simd::{Cache, Element, LANES, Simd, load_again, load_one};

/// Most rows of a tile on any machine.
const MAX_TILE: usize = 6;
/// Positions that meet all of several tiles of rows while they are in the first-level cache.
const NEAR: usize = 64;

/// Most rows of a tile: what the registers hold.
#[inline(always)]
const fn max_tile<S: Simd>() -> usize {
    if S::REGISTERS >= 8 { MAX_TILE } else { 3 }
}

/// Keys and values of one request and key head.
pub(super) struct HeadCache<'a, T> {
    /// The layer's keys, with slack behind.
    pub keys: &'a [T],
    /// The layer's values, with slack behind.
    pub values: &'a [T],
    /// The request's blocks.
    pub blocks: &'a [u32],
    pub layout: KvLayout,
    pub head: usize,
}

impl<T> HeadCache<'_, T> {
    /// Keys of the 16 positions from `position` on, which is a multiple of 16: see [`KvLayout`].
    #[inline(always)]
    pub(super) fn keys(&self, position: usize) -> *const T {
        let start = self.layout.start(self.blocks[position / self.layout.block_size] as usize, self.head);
        let first = position % self.layout.block_size * self.layout.head_dim;
        self.keys[start..][..self.layout.head_block()][first..].as_ptr()
    }

    /// The values of two positions, of which `position` is the first, and those behind them in their block: see [`KvLayout`].
    #[inline(always)]
    pub(super) fn values(&self, position: usize) -> *const T {
        let start = self.layout.start(self.blocks[position / self.layout.block_size] as usize, self.head);
        let first = position % self.layout.block_size * self.layout.head_dim;
        self.values[start..][..self.layout.head_block() + LANES / 2 * self.layout.together][first..].as_ptr()
    }
}

impl<T> HeadCache<'_, T> {
    /// Cache lines of the keys, or of the values, of so many positions.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn lines(&self, positions: usize) -> usize {
        (positions * self.layout.head_dim * size_of::<T>()).div_ceil(64)
    }

    /// Where the keys from `position` on would be, if the request goes on to there: to be prefetched, never read.
    #[inline(always)]
    fn keys_ahead(&self, position: usize) -> *const T {
        let last = self.blocks.len() - 1;
        let block = self.blocks[(position / self.layout.block_size).min(last)] as usize;
        let first = position % self.layout.block_size * self.layout.head_dim;
        self.keys.as_ptr().wrapping_add(self.layout.start(block, self.head) + first)
    }
}

/// Memory of one thread.
#[derive(Debug)]
pub(super) struct PartScratch {
    /// Of an item's rows.
    weights: Vec<Row>,
    states: Vec<Room>,
}

impl Default for PartScratch {
    fn default() -> Self {
        Self { weights: vec![Row::zeroed(); ROWS], states: vec![Room::default(); ROWS] }
    }
}

impl PartScratch {
    /// The state of a row after the part.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize, head_dim: usize) -> State<'_> {
        State::of(&mut self.states[row].0[..State::floats(head_dim)])
    }
}

/// Computes the part that begins at `start` for the rows of an item, whose queries are scaled. `visible` says which of the part's positions
/// a row sees: the first row begins and the last one ends as early and late as any.
#[inline(always)]
pub(super) fn compute<S: Simd, T: Element>(
    s: S,
    cache: &HeadCache<'_, T>,
    queries: &[Room],
    start: usize,
    visible: &impl Fn(usize) -> Range<usize>,
    scratch: &mut PartScratch,
) {
    let head_dim = cache.layout.head_dim;
    let rows = queries.len();
    let tiles = rows.div_ceil(max_tile::<S>());
    let near = if tiles > 1 { NEAR } else { PART };
    let tile = |i: usize| rows * i / tiles..rows * (i + 1) / tiles;
    // Positions that any row of a tile sees, from the part's start on: what each sees begins and ends no earlier than what the one before does.
    let seen_by = |rows: &Range<usize>| {
        let (first, last) = (visible(rows.start), visible(rows.end - 1));
        first.start - start..last.end.max(start) - start
    };
    for first in (0..PART).step_by(near) {
        for (i, rows) in (0..tiles).map(tile).enumerate() {
            let seen = seen_by(&rows);
            let positions = seen.start.max(first)..seen.end.min(first + near);
            if !positions.is_empty() {
                let task = Task { cache, start, positions, tile: i, tiles };
                task.scores(s, &queries[rows.clone()], &mut scratch.weights[rows]);
            }
        }
    }
    for rows in (0..tiles).map(tile) {
        let all = seen_by(&rows);
        for row in rows {
            if all.is_empty() {
                scratch.row(row, head_dim).clear();
                continue;
            }
            let seen = visible(row);
            let seen = seen.start.max(start) - start..seen.end.max(start) - start;
            let vectors = all.start / LANES..all.end.div_ceil(LANES);
            let (sum, max) = softmax(s, seen, vectors, &mut scratch.weights[row].floats, InPlace);
            let mut state = scratch.row(row, head_dim);
            state.clear();
            state.set_sum_and_max(sum, max);
        }
    }
    for first in (0..PART).step_by(near) {
        for (i, rows) in (0..tiles).map(tile).enumerate() {
            let seen = seen_by(&rows);
            let positions = seen.start.max(first)..seen.end.min(first + near);
            if !positions.is_empty() {
                let task = Task { cache, start, positions, tile: i, tiles };
                task.values(s, &scratch.weights[rows.clone()], &mut scratch.states[rows]);
            }
        }
    }
}

/// Positions of the part that begins at `start`.
struct Task<'a, T> {
    cache: &'a HeadCache<'a, T>,
    start: usize,
    positions: Range<usize>,
    /// Which of the tiles that share the asking for what is wanted next.
    tile: usize,
    tiles: usize,
}

/// Picks the register tile for a number of rows: rows times vectors, with room for as many vectors of operands and one more, but of a set
/// with four registers. Where a sum does not fit, its way through memory is what every step waits for.
macro_rules! by_rows {
    ($S:ty, $rows:expr, $self:ident.$f:ident($($arg:expr),*)) => {
        if const { <$S>::REGISTERS >= 32 } {
            match $rows {
                1 => $self.$f::<$S, 1, 8>($($arg),*),
                2 => $self.$f::<$S, 2, 8>($($arg),*),
                3 => $self.$f::<$S, 3, 4>($($arg),*),
                4 => $self.$f::<$S, 4, 4>($($arg),*),
                5 => $self.$f::<$S, 5, 4>($($arg),*),
                _ => $self.$f::<$S, 6, 4>($($arg),*),
            }
        } else if const { <$S>::REGISTERS >= 8 } {
            match $rows {
                1 => $self.$f::<$S, 1, 2>($($arg),*),
                2 => $self.$f::<$S, 2, 2>($($arg),*),
                3 => $self.$f::<$S, 3, 1>($($arg),*),
                4 => $self.$f::<$S, 4, 1>($($arg),*),
                5 => $self.$f::<$S, 5, 1>($($arg),*),
                _ => $self.$f::<$S, 6, 1>($($arg),*),
            }
        } else {
            match $rows {
                1 => $self.$f::<$S, 1, 1>($($arg),*),
                2 => $self.$f::<$S, 2, 1>($($arg),*),
                _ => $self.$f::<$S, 3, 1>($($arg),*),
            }
        }
    };
}

/// Does something for each of `R` rows, written out: a loop over six rows of four vectors is not always unrolled, and then all their sums live
/// in memory.
macro_rules! for_rows {
    ($row:ident < $R:ident $body:block) => {
        for_rows!($row < $R $body 0 1 2 3 4 5)
    };
    ($row:ident < $R:ident $body:block $($i:literal)+) => {
        const { assert!($R <= [$($i),+].len(), "rows that are not written out") };
        $(if const { $i < $R } {
            let $row = $i;
            $body
        })+
    };
}

impl<T: Element> Task<'_, T> {
    #[inline(always)]
    fn scores<S: Simd>(&self, s: S, queries: &[Room], scores: &mut [Row]) {
        assert_eq!(queries.len(), scores.len());
        by_rows!(S, scores.len(), self.scores_tile(s, queries, scores));
    }

    /// `R` rows, `C` vectors of 16 positions at a time.
    #[inline(always)]
    fn scores_tile<S: Simd, const R: usize, const C: usize>(&self, s: S, queries: &[Room], scores: &mut [Row]) {
        let head_dim = self.cache.layout.head_dim;
        let queries: &[Room; R] = queries.try_into().expect("rows of the tile");
        let scores: &mut [Row; R] = scores.try_into().expect("rows of the tile");
        let (first, end) = (self.positions.start / LANES, self.positions.end.div_ceil(LANES));
        for vector in (first..end).step_by(C) {
            let (mut keys, mut ahead) = ([std::ptr::null(); C], [std::ptr::null(); C]);
            for c in 0..C {
                // Where fewer are left, the last is computed again and not stored.
                let position = self.start + (vector + c).min(end - 1) * LANES;
                keys[c] = self.cache.keys(position);
                // The values of the same positions are wanted next. Blocks lie anywhere, which hardware cannot foresee.
                ahead[c] = self.cache.values(position).wrapping_add(self.tile * head_dim * LANES / self.tiles);
            }
            let step = LANES.div_ceil(self.tiles);
            let mut sums = [[s.splat(0.0); C]; R];
            for d in (0..head_dim).step_by(2) {
                for ahead in &mut ahead {
                    ask(s, *ahead, step);
                    *ahead = ahead.wrapping_add(2 * step);
                }
                for which in 0..2 {
                    load_again();
                    let mut loaded = [s.splat(0.0); C];
                    for (loaded, keys) in loaded.iter_mut().zip(keys) {
                        // SAFETY: `HeadCache::keys` has made sure of the keys of 16 positions, whose size is a multiple of 8.
                        *loaded = unsafe { load_one(s, keys.add(d * LANES), LANES, which) };
                    }
                    for_rows!(row < R {
                        // SAFETY: heads have at most as many elements as there is room for.
                        let query = s.splat(unsafe { *queries[row].0.get_unchecked(d + which) });
                        for (sum, &keys) in sums[row].iter_mut().zip(&loaded) {
                            *sum = s.mul_add(query, keys, *sum);
                        }
                    });
                }
            }
            for_rows!(row < R {
                for (c, &sum) in sums[row].iter().enumerate().take(end - vector) {
                    s.store(sum, vector_mut(&mut scores[row].floats, vector + c));
                }
            });
        }
    }

    /// Adds to the values of `states`.
    #[inline(always)]
    fn values<S: Simd>(&self, s: S, weights: &[Row], states: &mut [Room]) {
        assert_eq!(weights.len(), states.len());
        by_rows!(S, weights.len(), self.values_of_rows(s, weights, states));
    }

    /// `R` rows, as many of at most `C` vectors of the head at a time as it has.
    #[inline(always)]
    fn values_of_rows<S: Simd, const R: usize, const C: usize>(&self, s: S, weights: &[Row], states: &mut [Room]) {
        let vectors = self.cache.layout.head_dim.div_ceil(LANES);
        let mut vector = 0;
        while vector < vectors {
            let left = vectors - vector;
            let taken = match left {
                _ if left >= C => self.values_tile::<S, R, C>(s, vector, weights, states),
                4.. => self.values_tile::<S, R, 4>(s, vector, weights, states),
                2.. => self.values_tile::<S, R, 2>(s, vector, weights, states),
                _ => self.values_tile::<S, R, 1>(s, vector, weights, states),
            };
            vector += taken;
        }
    }

    /// `R` rows, `C` vectors of the head from `vector` on. Returns `C`.
    #[inline(always)]
    fn values_tile<S: Simd, const R: usize, const C: usize>(
        &self,
        s: S,
        vector: usize,
        weights: &[Row],
        states: &mut [Room],
    ) -> usize {
        let head_dim = self.cache.layout.head_dim;
        let weights: &[Row; R] = weights.try_into().expect("rows of the tile");
        let states: &mut [Room; R] = states.try_into().expect("rows of the tile");
        let mut sums = [[s.splat(0.0); C]; R];
        for_rows!(row < R {
            for (c, sum) in sums[row].iter_mut().enumerate() {
                *sum = s.load(vector_mut(&mut states[row].0, vector + c));
            }
        });
        let values = |at: usize| {
            let position = (self.start + at) & !1;
            self.cache.values(position).wrapping_add(vector * LANES * T::TOGETHER)
        };
        let step = LANES.div_ceil(self.tiles);
        let Range { start: mut at, end } = self.positions;
        if !at.is_multiple_of(2) {
            // SAFETY: the position is within the part. `HeadCache::values` has made sure of the rest of the block and half a vector (of pairs)
            // behind it, and the last vector of a head ends at most that far behind the head.
            unsafe { add_weighted(s, &mut sums, weights, at, values(at), head_dim, 1) };
            at += 1;
        }
        let pairs_end = end & !1;
        while at < pairs_end {
            let mut values = values(at);
            // The keys of the next part come after these values.
            let mut ahead = self.cache.keys_ahead((self.start + at) / LANES * LANES + PART);
            ahead = ahead.wrapping_add((vector * self.tiles + self.tile * C) * LANES * LANES / self.tiles);
            let block_end = (at + 1).next_multiple_of(LANES).min(pairs_end);
            while at < block_end {
                for c in 0..C {
                    ask(s, ahead.wrapping_add(2 * c * step), step);
                }
                ahead = ahead.wrapping_add(2 * C * step);
                // SAFETY: as above.
                unsafe {
                    add_weighted(s, &mut sums, weights, at, values, head_dim, 0);
                    add_weighted(s, &mut sums, weights, at + 1, values, head_dim, 1);
                }
                values = values.wrapping_add(2 * head_dim);
                at += 2;
            }
        }
        if at < end {
            // SAFETY: as above.
            unsafe { add_weighted(s, &mut sums, weights, at, values(at), head_dim, 0) };
        }
        for_rows!(row < R {
            for (c, &sum) in sums[row].iter().enumerate() {
                s.store(sum, vector_mut(&mut states[row].0, vector + c));
            }
        });
        C
    }
}

/// Asks for two vectors, of which the second lies `step` behind the first.
#[inline(always)]
fn ask<S: Simd, T>(s: S, at: *const T, step: usize) {
    s.prefetch(Cache::Second, at);
    // Two of 16 bits are in one line.
    if size_of::<T>() > 2 {
        s.prefetch(Cache::Second, at.wrapping_add(step));
    }
}

/// Adds the values of position `at`, which is one of the two whose values lie at `values`, to the sums of `R` rows, weighted.
///
/// # Safety
/// `at` must be within the part, and `C` vectors of these values must be there.
#[inline(always)]
unsafe fn add_weighted<S: Simd, T: Element, const R: usize, const C: usize>(
    s: S,
    sums: &mut [[S::V; C]; R],
    weights: &[Row; R],
    at: usize,
    values: *const T,
    head_dim: usize,
    which: usize,
) {
    load_again();
    let mut loaded = [s.splat(0.0); C];
    for (c, loaded) in loaded.iter_mut().enumerate() {
        // SAFETY: the caller vouches for them.
        *loaded = unsafe { load_one(s, values.wrapping_add(c * LANES * T::TOGETHER), head_dim, which) };
    }
    for_rows!(row < R {
        // SAFETY: the caller vouches for the position.
        let weight = s.splat(unsafe { *weights[row].floats.get_unchecked(at) });
        for (sum, &values) in sums[row].iter_mut().zip(&loaded) {
            *sum = s.mul_add(weight, values, *sum);
        }
    });
}
