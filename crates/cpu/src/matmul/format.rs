//! How weights of floats lie in a panel and are multiplied, on every instruction set. It knows nothing of rows or blocking.

use half::{bf16, f16};

use crate::simd::{CHUNK, Element, LANES, Simd};

/// Outputs per panel.
pub(crate) const PANEL: usize = 32;

/// Vectors of a panel's outputs.
pub(crate) const VECTORS: usize = PANEL / LANES;

/// Units of a row of activations that matrices take at a time.
pub(crate) const LINE: usize = 16;

/// What a 32-bit unit of packed activations holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unit {
    /// Two consecutive bf16 elements of K.
    Bf16Pair,
    /// The same, 16 of a row together.
    Bf16Pairs16,
    /// One element of K.
    F32,
    /// Elements of K or pairs of them, group after group.
    Groups {
        /// Elements of a group.
        size: usize,
        /// The same with zeros behind them.
        padded: usize,
        elements: Elements,
        /// Whether the sum of a group's elements follows them.
        sums: bool,
    },
    /// Four elements of K as signed bytes, group after group: behind it what is added to the sum of its products, and the bytes' scale.
    Int8Groups {
        /// Whether each row's elements of a group lie together, as matrices take them.
        in_rows: bool,
        /// Elements of a group.
        size: usize,
        /// The same with zeros behind them.
        padded: usize,
        /// What codes' bytes are above their values.
        above: i32,
        /// What bytes are multiples of, as codes' values are of one.
        factor: f32,
        /// Whether the sum of a group's elements follows them.
        sums: bool,
        /// Whether the second and the third of four elements change places, as bytes of codes of 4 bits have them: [`Simd::load_codes`].
        swapped: bool,
    },
    /// Pairs of bf16, 16 of a row together, group after group of K.
    GroupsOfPairs16 {
        /// Elements of a group.
        size: usize,
        /// Of 16 pairs, with zeros behind a group's.
        blocks: usize,
        /// Whether the sum of each row's elements follows a group's, and then what fills up a line for each row.
        sums: bool,
    },
}

/// Elements of K that lie together in packed activations, whatever is around them, and a row's units of them.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub elements: usize,
    pub units: usize,
}

impl Unit {
    /// The least that can be packed by itself.
    pub(crate) fn piece(self) -> Piece {
        match self {
            Self::F32 => Piece { elements: 1, units: 1 },
            Self::Bf16Pair => Piece { elements: 2, units: 1 },
            Self::Bf16Pairs16 => Piece { elements: 2 * LINE, units: LINE },
            Self::Groups { size, padded, elements, sums } => {
                let units = if elements == Elements::Bf16Pairs { padded / 2 } else { padded };
                Piece { elements: size, units: units + usize::from(sums) }
            }
            Self::Int8Groups { size, padded, sums, .. } => {
                Piece { elements: size, units: padded / CHUNK + 2 + usize::from(sums) }
            }
            Self::GroupsOfPairs16 { size, blocks, sums } => {
                Piece { elements: size, units: (blocks + usize::from(sums)) * LINE }
            }
        }
    }
}

/// What a group's units hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    F32,
    /// With zeros for those below [`TINY`].
    F32WithoutTiny,
    Bf16Pairs,
}

/// Matrices take subnormal numbers for zeros, sums of products too. Where no element is between zero and this, no sum of products with codes'
/// values is: their least is 2^-9, and both have 8 bits of mantissa.
pub(crate) const TINY: f32 = f32::from_bits((127 - 100) << 23);

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
