//! How weights of floats lie in a panel and are multiplied, on every instruction set. It knows nothing of rows or blocking.

use half::{bf16, f16};

use crate::simd::{Element, LANES, Simd};

/// Outputs per panel.
pub(crate) const PANEL: usize = 32;

/// What a 32-bit unit of packed activations holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Two consecutive bf16 elements of K.
    Bf16Pair,
    /// The same, 16 of a row together.
    Bf16Pairs16,
    /// One element of K.
    F32,
    /// The same, group after group of K.
    Groups {
        /// Of a group.
        elements: usize,
        /// The same with zeros behind them.
        padded: usize,
        /// Whether the sum of a group's elements follows them.
        sums: bool,
    },
}

/// A float type of weights.
pub(crate) trait Format {
    /// Elements of K per step: one that is widened to f32, or a pair for the bf16 dot product.
    const ELEMENTS: usize;
    /// Bytes of a panel per step.
    const STEP_BYTES: usize;

    /// Weights of 16 outputs for unit `unit` of a step.
    ///
    /// # Safety
    /// `step` is where the step's weights of vector 0 of the panel begin, and `vector` is one of the panel.
    unsafe fn weights<S: Simd>(s: S, step: *const u8, vector: usize, unit: usize) -> S::V;

    /// `sum + weights * x`.
    #[inline(always)]
    fn accumulate<S: Simd>(s: S, sum: S::V, weights: S::V, x: S::V) -> S::V {
        s.mul_add(weights, x, sum)
    }
}

/// What a format is multiplied with on an instruction set.
pub(crate) const fn unit<S: Simd, F: Format>() -> Unit {
    if F::ELEMENTS == 2 && S::BF16_DOT { Unit::Bf16Pair } else { Unit::F32 }
}

/// Units of activation per step and row.
pub(crate) const fn units<S: Simd, F: Format>() -> usize {
    if S::BF16_DOT { 1 } else { F::ELEMENTS }
}

macro_rules! widened {
    ($type:ty) => {
        impl Format for $type {
            const ELEMENTS: usize = 1;
            const STEP_BYTES: usize = PANEL * size_of::<$type>();

            #[inline(always)]
            unsafe fn weights<S: Simd>(s: S, step: *const u8, vector: usize, _unit: usize) -> S::V {
                // SAFETY: the caller vouches for the vector's 16 elements, and panels are aligned for them.
                <$type>::load(s, unsafe { &*step.cast::<[$type; LANES]>().add(vector) })
            }
        }
    };
}

widened!(f16);
widened!(f32);

/// Multiplied by the dot product instruction where the machine has it, else widened to f32, first the even and then the odd
/// element.
impl Format for bf16 {
    const ELEMENTS: usize = 2;
    const STEP_BYTES: usize = PANEL * size_of::<[Self; 2]>();

    #[inline(always)]
    unsafe fn weights<S: Simd>(s: S, step: *const u8, vector: usize, unit: usize) -> S::V {
        // SAFETY: the caller vouches for the vector's 16 pairs, and panels are aligned for them.
        let pairs = unsafe { &*step.cast::<[[Self; 2]; LANES]>().add(vector) };
        match unit {
            _ if S::BF16_DOT => s.load(bytemuck::cast_ref(pairs)),
            0 => s.load_bf16_even(pairs),
            _ => s.load_bf16_odd(pairs),
        }
    }

    #[inline(always)]
    fn accumulate<S: Simd>(s: S, sum: S::V, weights: S::V, x: S::V) -> S::V {
        if S::BF16_DOT { s.dot_bf16(sum, weights, x) } else { s.mul_add(weights, x, sum) }
    }
}
