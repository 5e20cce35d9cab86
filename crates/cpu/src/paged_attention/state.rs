//! What is known of a row's softmax after some of its positions, and how a later part is added. It knows no cache.

use crate::simd::{LANES, Simd};
use vllm_apple_ops::MAX_HEAD_DIM;
use vllm_apple_ops::exp;

/// Floats of the largest state.
pub(super) const MAX_STATE: usize = MAX_HEAD_DIM + LANES;

/// Room for any state, or for a query.
#[derive(Debug, Clone)]
#[repr(align(64))]
pub(super) struct Room(pub [f32; MAX_STATE]);

impl Default for Room {
    fn default() -> Self {
        Self([0.0; MAX_STATE])
    }
}

/// The values weighted by `exp(score - max)`, the sum of those weights, and `max`, the largest score. A sum of 0 stands for no
/// position at all.
pub(super) struct State<'a> {
    /// `head_dim` elements, in whole vectors.
    pub value: &'a mut [f32],
    /// Sum, then maximum.
    rest: &'a mut [f32; LANES],
}

impl<'a> State<'a> {
    /// Floats that a state takes.
    pub(super) fn floats(head_dim: usize) -> usize {
        head_dim.next_multiple_of(LANES) + LANES
    }

    /// The state in `floats`, of which there are [`State::floats`].
    #[inline(always)]
    pub(super) fn of(floats: &'a mut [f32]) -> Self {
        let (value, rest) = floats.split_last_chunk_mut().expect("a state has at least a vector");
        Self { value, rest }
    }

    #[inline(always)]
    pub(super) fn sum(&self) -> f32 {
        self.rest[0]
    }

    #[inline(always)]
    pub(super) fn max(&self) -> f32 {
        self.rest[1]
    }

    #[inline(always)]
    pub(super) fn set_sum_and_max(&mut self, sum: f32, max: f32) {
        self.rest[0] = sum;
        self.rest[1] = max;
    }

    /// No position yet.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.value.fill(0.0);
        self.set_sum_and_max(0.0, f32::MIN);
    }

    #[inline(always)]
    pub(super) fn set(&mut self, other: &State<'_>) {
        self.value.copy_from_slice(other.value);
        self.set_sum_and_max(other.sum(), other.max());
    }

    /// Adds the positions of `part`, which follow this state's.
    #[inline(always)]
    pub(super) fn take<S: Simd>(&mut self, s: S, part: &State<'_>) {
        if part.sum() == 0.0 {
            return;
        }
        let max = self.max().max(part.max());
        let (old, new) = (exp(self.max() - max), exp(part.max() - max));
        self.set_sum_and_max(self.sum() * old + part.sum() * new, max);
        let (old, new) = (s.splat(old), s.splat(new));
        let vectors = self.value.as_chunks_mut::<LANES>().0.iter_mut().zip(part.value.as_chunks::<LANES>().0);
        for (value, part) in vectors {
            let kept = s.mul(s.load(value), old);
            s.store(s.mul_add(s.load(part), new, kept), value);
        }
    }

    /// Adds a position that has this score and no value. To be done when all parts are taken: it is the row's, and of no part. A score that
    /// is no number makes the row none: [`exp`] of it is 0, as if there were no sink.
    #[inline(always)]
    pub(super) fn take_sink<S: Simd>(&mut self, s: S, sink: f32) {
        let max = self.max().max(sink);
        let (old, new) = (exp(self.max() - max), if sink.is_nan() { sink } else { exp(sink - max) });
        self.set_sum_and_max(self.sum() * old + new, max);
        let old = s.splat(old);
        for value in self.value.as_chunks_mut::<LANES>().0 {
            s.store(s.mul(s.load(value), old), value);
        }
    }

    /// Makes the value the weighted mean.
    #[inline(always)]
    pub(super) fn divide<S: Simd>(&mut self, s: S) {
        let sum = s.splat(self.sum());
        for value in self.value.as_chunks_mut::<LANES>().0 {
            s.store(s.div(s.load(value), sum), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::simd::{Dispatch, Kernel};

    /// Sum, largest score and first value after a sink, of weights that sum up to 3 with the largest score 1.
    struct TakeSink(f32);

    impl Kernel for TakeSink {
        type Output = [f32; 3];

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [f32; 3] {
            let mut floats = [6.0; 2 * LANES];
            let mut state = State::of(&mut floats);
            state.set_sum_and_max(3.0, 1.0);
            state.take_sink(s, self.0);
            [state.sum(), state.max(), state.value[0]]
        }
    }

    #[test]
    fn a_sink_is_a_score_without_a_value() {
        let e = exp(-1.0);
        for isa in Isa::available() {
            let take = |sink| Dispatch::new(isa).run(TakeSink(sink));
            assert_eq!(take(1.0), [4.0, 1.0, 6.0], "{isa}");
            assert_eq!(take(0.0), [3.0 + e, 1.0, 6.0], "{isa}");
            assert_eq!(take(2.0), [3.0 * e + 1.0, 2.0, 6.0 * e], "{isa}");
            assert_eq!(take(f32::NEG_INFINITY), [3.0, 1.0, 6.0], "{isa}");
            assert!(take(f32::NAN)[0].is_nan(), "{isa}");
        }
    }
}
