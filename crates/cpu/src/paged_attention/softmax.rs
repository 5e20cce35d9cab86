//! The weights of a row in a part. It knows no keys and no values.

use std::ops::Range;

use super::PART;
use crate::simd::{LANES, Simd};
use bytemuck::{Pod, Zeroable};

/// A row of scores, or of weights. The line behind them keeps the same position of many rows from meeting in one set of the cache.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Row {
    pub floats: [f32; PART],
    gap: [f32; LANES],
}

/// Where a row's weights go. A method and no closure, which need not be compiled for the instruction set of its caller.
pub(super) trait Weights<S: Simd> {
    /// Keeps 16 weights, of whose scores nothing is needed any more. Must be `#[inline(always)]`.
    fn keep(&mut self, s: S, scores: &mut [f32; PART], vector: usize, weights: S::V);
}

/// In place of the scores.
pub(super) struct InPlace;

impl<S: Simd> Weights<S> for InPlace {
    #[inline(always)]
    fn keep(&mut self, s: S, scores: &mut [f32; PART], vector: usize, weights: S::V) {
        s.store(weights, vector_mut(scores, vector));
    }
}

/// Turns the scores of a row that sees `seen` of a part into weights, `exp(score - max)`: their sum, 16 positions at a time and then
/// across lanes, and the largest score. `to` keeps those of each of `vectors`: zeros where the row does not see.
#[inline(always)]
pub(super) fn softmax<S: Simd>(
    s: S,
    seen: Range<usize>,
    vectors: Range<usize>,
    row: &mut [f32; PART],
    mut to: impl Weights<S>,
) -> (f32, f32) {
    if seen.is_empty() {
        for vector in vectors {
            to.keep(s, row, vector, s.splat(0.0));
        }
        return (0.0, f32::MIN);
    }
    let (first, end) = (seen.start / LANES, seen.end.div_ceil(LANES));
    row[first * LANES..seen.start].fill(f32::MIN);
    row[seen.end..end * LANES].fill(f32::MIN);
    let mut max = s.splat(f32::MIN);
    for vector in first..end {
        max = s.max(s.load(vector_mut(row, vector)), max);
    }
    let max = s.max_lane(max);
    for vector in vectors.start..first {
        to.keep(s, row, vector, s.splat(0.0));
    }
    let mut sum = s.splat(0.0);
    for vector in first..end {
        let weights = s.exp(s.sub(s.load(vector_mut(row, vector)), s.splat(max)));
        to.keep(s, row, vector, weights);
        sum = s.add(sum, weights);
    }
    for vector in end..vectors.end {
        to.keep(s, row, vector, s.splat(0.0));
    }
    (s.sum(sum), max)
}

/// Vector `index` of a row.
#[inline(always)]
pub(super) fn vector_mut(row: &mut [f32], index: usize) -> &mut [f32; LANES] {
    (&mut row[index * LANES..][..LANES]).try_into().expect("16 elements")
}
