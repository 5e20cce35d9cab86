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

/// Where a row's weights go, of `N` vectors at a time. A method and no closure, which need not be compiled for the instruction set of its caller.
pub(super) trait Weights<S: Simd, const N: usize> {
    /// Keeps the weights of `vector` and those after it, of whose scores nothing is needed any more. Must be `#[inline(always)]`.
    fn keep(&mut self, s: S, scores: &mut [f32; PART], vector: usize, weights: [S::V; N]);
}

/// In place of the scores.
pub(super) struct InPlace;

impl<S: Simd> Weights<S, 1> for InPlace {
    #[inline(always)]
    fn keep(&mut self, s: S, scores: &mut [f32; PART], vector: usize, [weights]: [S::V; 1]) {
        s.store(weights, vector_mut(scores, vector));
    }
}

/// Turns the scores of a row that sees `seen` of a part into weights, `exp(score - max)`: their sum, 16 positions at a time and then
/// across lanes, and the largest score. `to` keeps those of each of `vectors`, whose ends are multiples of `N`: zeros where the row does not see. A score
/// that is no number, or infinite, makes the sum none: [`Simd::exp`] of it would be 0, as if the row did not see its position.
#[inline(always)]
pub(super) fn softmax<S: Simd, const N: usize>(
    s: S,
    seen: Range<usize>,
    vectors: Range<usize>,
    row: &mut [f32; PART],
    mut to: impl Weights<S, N>,
) -> (f32, f32) {
    let zeros = [s.splat(0.0); N];
    if seen.is_empty() {
        for vector in vectors.step_by(N) {
            to.keep(s, row, vector, zeros);
        }
        return (0.0, f32::MIN);
    }
    let (first, end) = (seen.start / (N * LANES) * N, seen.end.div_ceil(N * LANES) * N);
    // No weight, also where no score that is seen is finite.
    row[first * LANES..seen.start].fill(f32::NEG_INFINITY);
    row[seen.end..end * LANES].fill(f32::NEG_INFINITY);
    let (least, zero) = (s.splat(f32::MIN), s.splat(0.0));
    let (mut max, mut no_numbers) = (least, zero);
    for vector in first..end {
        let scores = s.load(vector_mut(row, vector));
        max = s.max(scores, max);
        no_numbers = s.mul_add(s.max(least, scores), zero, no_numbers);
    }
    let max = s.max_lane(max);
    for vector in (vectors.start..first).step_by(N) {
        to.keep(s, row, vector, zeros);
    }
    let mut sum = s.splat(0.0);
    for vector in (first..end).step_by(N) {
        let mut weights = zeros;
        for (i, weights) in weights.iter_mut().enumerate() {
            *weights = s.exp(s.sub(s.load(vector_mut(row, vector + i)), s.splat(max)));
            sum = s.add(sum, *weights);
        }
        to.keep(s, row, vector, weights);
    }
    for vector in (end..vectors.end).step_by(N) {
        to.keep(s, row, vector, zeros);
    }
    (s.sum(s.add(sum, no_numbers)), max)
}

/// Vector `index` of a row.
#[inline(always)]
pub(super) fn vector_mut(row: &mut [f32], index: usize) -> &mut [f32; LANES] {
    (&mut row[index * LANES..][..LANES]).try_into().expect("16 elements")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::simd::{Dispatch, Kernel};

    /// Weights of a row that sees some of 32 positions, and their sum.
    struct Weigh(Range<usize>, [f32; PART]);

    impl Kernel for Weigh {
        type Output = ([f32; PART], f32);

        #[inline(always)]
        fn run<S: Simd>(mut self, s: S) -> Self::Output {
            let (sum, _) = softmax(s, self.0, 0..2, &mut self.1, InPlace);
            (self.1, sum)
        }
    }

    #[test]
    fn positions_that_are_not_seen_have_no_weight() {
        for isa in Isa::available() {
            for (score, weight) in [(2.0, 1.0), (f32::NAN, 0.0), (f32::NEG_INFINITY, 0.0)] {
                let mut scores = [5.0; PART];
                scores[3..20].fill(score);
                let (weights, sum) = Dispatch::new(isa).run(Weigh(3..20, scores));
                assert!(sum == 17.0 * weight || sum.is_nan() && score.is_nan(), "{isa}, {score}: {sum}");
                let want: Vec<f32> = (0..32).map(|i| if (3..20).contains(&i) { weight } else { 0.0 }).collect();
                assert_eq!(weights[..32], want, "{isa}, {score}");
            }
        }
    }

    #[test]
    fn a_score_that_is_no_number_makes_the_sum_none() {
        for isa in Isa::available() {
            for (at, score, is_seen) in
                [(3, f32::NAN, true), (19, f32::INFINITY, true), (2, f32::NAN, false), (20, f32::INFINITY, false)]
            {
                let mut scores = [5.0; PART];
                scores[at] = score;
                let (_, sum) = Dispatch::new(isa).run(Weigh(3..20, scores));
                assert_eq!(sum.is_nan(), is_seen, "{isa}, {score} at {at}");
                assert!(is_seen || sum == 17.0, "{isa}, {score} at {at}: {sum}");
            }
        }
    }
}
