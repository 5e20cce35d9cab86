//! The arithmetic of one part: a few rows against at most [`PART`] positions of one key head.
//!
//! Three phases: scores (16 positions in lanes, head elements in ascending order), weights (`exp(score - max)`, summed 16
//! positions at a time and then across lanes), weighted values (16 head elements in lanes, positions in ascending order). The
//! rows of a call share the loads of keys and values; each has accumulators of its own, so its result does not depend on the
//! others. Keys and values are widened to f32 and queries are not rounded. Rounding them would let a bf16 dot product compute
//! the scores up to twice as fast, which is at most a quarter of the whole, for scores that are as coarse as PyTorch's.

use std::ops::Range;

use super::softmax::{InPlace, softmax, vector_mut};
use super::{PART, State, state::MAX_STATE};
use crate::kv_layout::KvLayout;
use crate::simd::{Cache, Element, LANES, Simd};

/// Most rows of a call on any machine.
const MAX_ROWS: usize = 6;

/// Most rows of a call: what the registers hold.
#[inline(always)]
pub(super) const fn max_rows<S: Simd>() -> usize {
    if S::REGISTERS >= 8 { MAX_ROWS } else { 3 }
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
    /// Element 0 of the keys of the 16 positions from `position`, which is a multiple of 16; element `d` is `d * block_size`
    /// further.
    #[inline(always)]
    pub(super) fn keys(&self, position: usize) -> *const T {
        let start = self.layout.start(self.blocks[position / self.layout.block_size] as usize, self.head);
        self.keys[start..][..self.layout.head_block()][position % self.layout.block_size..].as_ptr()
    }

    /// The value at `position` and those behind it in its block.
    #[inline(always)]
    pub(super) fn values(&self, position: usize) -> *const T {
        let start = self.layout.start(self.blocks[position / self.layout.block_size] as usize, self.head);
        let first = position % self.layout.block_size * self.layout.head_dim;
        self.values[start..][..self.layout.head_block() + LANES / 2][first..].as_ptr()
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
        self.keys.as_ptr().wrapping_add(self.layout.start(block, self.head) + position % self.layout.block_size)
    }
}

/// Memory of one thread.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct PartScratch {
    /// Scores, then weights.
    weights: [[f32; PART]; MAX_ROWS],
    states: [[f32; MAX_STATE]; MAX_ROWS],
}

impl Default for PartScratch {
    fn default() -> Self {
        Self { weights: [[0.0; PART]; MAX_ROWS], states: [[0.0; MAX_STATE]; MAX_ROWS] }
    }
}

impl PartScratch {
    /// The state of a row after the part.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize, head_dim: usize) -> State<'_> {
        State::of(&mut self.states[row][..State::floats(head_dim)])
    }
}

/// Computes the part that begins at `start` for `rows` rows, at most [`max_rows`]. `queries` are `[rows][head_dim]` and scaled;
/// `visible` says which of the part's positions a row sees.
#[inline(always)]
pub(super) fn compute<S: Simd, T: Element>(
    s: S,
    cache: &HeadCache<'_, T>,
    queries: &[f32],
    start: usize,
    rows: usize,
    visible: &impl Fn(usize) -> Range<usize>,
    scratch: &mut PartScratch,
) {
    let head_dim = cache.layout.head_dim;
    let (mut from, mut to) = (usize::MAX, 0);
    for row in 0..rows {
        let seen = visible(row);
        if !seen.is_empty() {
            (from, to) = (from.min(seen.start), to.max(seen.end));
        }
    }
    if from >= to {
        for row in 0..rows {
            scratch.row(row, head_dim).clear();
        }
        return;
    }
    let task = Task { cache, start, from, to };
    task.scores(s, queries, rows, &mut scratch.weights);
    for row in 0..rows {
        let seen = visible(row);
        let seen = seen.start.max(start) - start..seen.end.max(start) - start;
        let vectors = (from - start) / LANES..(to - start).div_ceil(LANES);
        let (sum, max) = softmax(s, seen, vectors, &mut scratch.weights[row], InPlace);
        scratch.row(row, head_dim).set_sum_and_max(sum, max);
    }
    task.values(s, rows, &scratch.weights, &mut scratch.states);
}

/// A part, and the positions of it that any row sees.
struct Task<'a, T> {
    cache: &'a HeadCache<'a, T>,
    start: usize,
    from: usize,
    to: usize,
}

/// Picks the register tile for a number of rows: rows times vectors, with room for as many vectors of operands and one more. Where one sum
/// does not fit, its way through memory is what every step waits for.
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

impl<T: Element> Task<'_, T> {
    #[inline(always)]
    fn scores<S: Simd>(&self, s: S, queries: &[f32], rows: usize, scores: &mut [[f32; PART]; MAX_ROWS]) {
        assert_eq!(queries.len(), rows * self.cache.layout.head_dim);
        by_rows!(S, rows, self.scores_tile(s, queries, scores));
    }

    /// `R` rows, `C` vectors of 16 positions at a time.
    #[inline(always)]
    fn scores_tile<S: Simd, const R: usize, const C: usize>(
        &self,
        s: S,
        queries: &[f32],
        scores: &mut [[f32; PART]; MAX_ROWS],
    ) {
        let KvLayout { head_dim, block_size, .. } = self.cache.layout;
        let (first, end) = ((self.from - self.start) / LANES, (self.to - self.start).div_ceil(LANES));
        for vector in (first..end).step_by(C) {
            // Where fewer are left, the last is computed again and not stored.
            let keys: [*const T; C] =
                std::array::from_fn(|c| self.cache.keys(self.start + (vector + c).min(end - 1) * LANES));
            // The values of the same positions are wanted next. Blocks lie anywhere, which hardware cannot foresee.
            let ahead: [*const T; C] =
                std::array::from_fn(|c| self.cache.values(self.start + (vector + c).min(end - 1) * LANES));
            let mut sums = [[s.splat(0.0); C]; R];
            for d in 0..head_dim {
                for ahead in ahead {
                    s.prefetch(Cache::Second, ahead.wrapping_add(d * LANES));
                }
                // SAFETY: `HeadCache::keys` has made sure of a whole block from its start; element `d` of 16 positions is in it.
                let keys: [S::V; C] =
                    std::array::from_fn(|c| unsafe { T::load(s, &*keys[c].add(d * block_size).cast()) });
                for (r, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: there are `R * head_dim` queries.
                    let query = s.splat(unsafe { *queries.get_unchecked(r * head_dim + d) });
                    for (sum, &keys) in sums.iter_mut().zip(&keys) {
                        *sum = s.mul_add(query, keys, *sum);
                    }
                }
            }
            for (sums, scores) in sums.iter().zip(&mut *scores) {
                for (c, &sum) in sums.iter().enumerate().take(end - vector) {
                    s.store(sum, vector_mut(scores, vector + c));
                }
            }
        }
    }

    #[inline(always)]
    fn values<S: Simd>(
        &self,
        s: S,
        rows: usize,
        weights: &[[f32; PART]; MAX_ROWS],
        states: &mut [[f32; MAX_STATE]; MAX_ROWS],
    ) {
        by_rows!(S, rows, self.values_of_rows(s, weights, states));
    }

    /// `R` rows, as many of at most `C` vectors of the head at a time as it has.
    #[inline(always)]
    fn values_of_rows<S: Simd, const R: usize, const C: usize>(
        &self,
        s: S,
        weights: &[[f32; PART]; MAX_ROWS],
        states: &mut [[f32; MAX_STATE]; MAX_ROWS],
    ) {
        let vectors = self.cache.layout.head_dim.div_ceil(LANES);
        let mut vector = 0;
        while vector < vectors {
            let left = vectors - vector;
            vector += match left {
                _ if left >= C => self.values_tile::<S, R, C>(s, vector, weights, states),
                4.. => self.values_tile::<S, R, 4>(s, vector, weights, states),
                2.. => self.values_tile::<S, R, 2>(s, vector, weights, states),
                _ => self.values_tile::<S, R, 1>(s, vector, weights, states),
            };
        }
    }

    /// `R` rows, `C` vectors of the head from `vector` on. Returns `C`.
    #[inline(always)]
    fn values_tile<S: Simd, const R: usize, const C: usize>(
        &self,
        s: S,
        vector: usize,
        weights: &[[f32; PART]; MAX_ROWS],
        states: &mut [[f32; MAX_STATE]; MAX_ROWS],
    ) -> usize {
        let KvLayout { head_dim, block_size, .. } = self.cache.layout;
        let mut sums = [[s.splat(0.0); C]; R];
        let vectors = head_dim.div_ceil(LANES);
        let mut position = self.from;
        while position < self.to {
            let block_end = (position + 1).next_multiple_of(block_size).min(self.to);
            let mut values = self.cache.values(position).wrapping_add(vector * LANES);
            // The keys of the next part come after these values.
            let mut ahead = self.cache.keys_ahead(position / LANES * LANES + PART);
            for at in position - self.start..block_end - self.start {
                if at.is_multiple_of(LANES) {
                    ahead = self.cache.keys_ahead(self.start + at + PART);
                }
                for c in 0..C {
                    s.prefetch(Cache::Second, ahead.wrapping_add((at % LANES * vectors + vector + c) * block_size));
                }
                // SAFETY: `HeadCache::values` has made sure of the rest of the block and half a vector behind it, and the last
                // vector of a head ends at most that far behind the head.
                let loaded: [S::V; C] = std::array::from_fn(|c| unsafe { T::load(s, &*values.add(c * LANES).cast()) });
                for (sums, weights) in sums.iter_mut().zip(weights) {
                    // SAFETY: `at` is within the part.
                    let weight = s.splat(unsafe { *weights.get_unchecked(at) });
                    for (sum, &values) in sums.iter_mut().zip(&loaded) {
                        *sum = s.mul_add(weight, values, *sum);
                    }
                }
                values = values.wrapping_add(head_dim);
            }
            position = block_end;
        }
        for (sums, state) in sums.iter().zip(states) {
            for (c, &sum) in sums.iter().enumerate() {
                s.store(sum, vector_mut(state, vector + c));
            }
        }
        C
    }
}
