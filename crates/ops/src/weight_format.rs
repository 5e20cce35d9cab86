//! What a weight is in a backend's memory. It knows no layout: that is the backend's own.

use crate::{Activations, Codebook, DType, Quantised, Scales};
use std::fmt;

/// The numbers of a weight. Activations, the KV cache and a checkpoint's tensors have types of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightFormat {
    /// Every element by itself, in this float type.
    Float(DType),
    /// Every element by a code, with scales for groups of them.
    Quantised(Quantised),
}

impl WeightFormat {
    /// The formats that checks of a device go through: every float type, and quantised ones that differ in all that a format may differ
    /// in. A device may refuse some: [`crate::Backend::check_weight_format`].
    pub const CHECKED: [Self; 31] = [
        Self::Float(DType::F32),
        Self::Float(DType::F16),
        Self::Float(DType::BF16),
        Self::quantised(DType::BF16, Codebook::INT4, 32, DType::F16, false),
        Self::quantised(DType::F16, Codebook::INT8, 32, DType::F16, false),
        Self::quantised(DType::F32, Codebook::Integer { bits: 4, zero_point: 0 }, 64, DType::BF16, true),
        Self::quantised(DType::BF16, Codebook::Integer { bits: 8, zero_point: 0 }, 20, DType::F16, true),
        Self::in_super_blocks(DType::F32, Codebook::Integer { bits: 6, zero_point: 32 }, 16, false),
        Self::quantised(DType::BF16, Codebook::E2m1, 32, DType::BF16, false),
        Self::quantised(DType::F32, Codebook::Iq4Nl, 32, DType::F32, true),
        Self::quantised(DType::BF16, Codebook::E4m3, 128, DType::F32, false),
        Self::in_super_blocks(DType::BF16, Codebook::Integer { bits: 5, zero_point: 0 }, 32, true),
        Self::quantised(DType::BF16, Codebook::Integer { bits: 3, zero_point: 4 }, 64, DType::F16, true),
        Self::with_powers_of_two(DType::BF16, Codebook::E2m1, 32),
        Self::in_super_blocks_of_nibbles(DType::BF16, Codebook::Integer { bits: 2, zero_point: 0 }, 16),
        Self::in_super_blocks_of_floats(DType::BF16, Codebook::E2m1, 16),
        Self::with_zero_points(DType::BF16, Codebook::Integer { bits: 4, zero_point: 0 }, 32, DType::F16),
        Self::with_zero_points(DType::F16, Codebook::Integer { bits: 8, zero_point: 0 }, 128, DType::BF16),
        Self::in_super_blocks(DType::BF16, Codebook::Iq3Xxs, 32, false),
        Self::in_super_blocks(DType::BF16, Codebook::Iq2, 16, false),
        Self::in_super_blocks(DType::F32, Codebook::Iq1, 32, false),
        Self::quantised(DType::F16, Codebook::Odd { bits: 1 }, 128, DType::F16, false),
        Self::quantised(DType::BF16, Codebook::INT4, 32, DType::F16, false).with(Activations::Int8),
        Self::quantised(DType::F16, Codebook::INT8, 20, DType::F16, false).with(Activations::Int8),
        Self::in_super_blocks(DType::F32, Codebook::Integer { bits: 6, zero_point: 32 }, 16, false)
            .with(Activations::Int8),
        Self::with_zero_points(DType::BF16, Codebook::Integer { bits: 8, zero_point: 0 }, 64, DType::F16)
            .with(Activations::Int8),
        Self::with_powers_of_two(DType::BF16, Codebook::E2m1, 32).with(Activations::Int8),
        Self::in_super_blocks_of_floats(DType::BF16, Codebook::E2m1, 16).with(Activations::Int8),
        Self::quantised(DType::F32, Codebook::Iq4Nl, 64, DType::F32, true).with(Activations::Int8),
        Self::in_super_blocks(DType::BF16, Codebook::Iq2, 32, false).with(Activations::Int8),
        Self::quantised(DType::BF16, Codebook::Odd { bits: 1 }, 128, DType::F16, false).with(Activations::Int8),
    ];

    const fn quantised(input: DType, codebook: Codebook, group_size: usize, scales: DType, biases: bool) -> Self {
        Self::Quantised(Quantised {
            input,
            codebook,
            group_size,
            scales: Scales::Float(scales),
            biases,
            activations: Activations::Exact,
        })
    }

    const fn in_super_blocks(input: DType, codebook: Codebook, group_size: usize, biases: bool) -> Self {
        Self::Quantised(Quantised {
            input,
            codebook,
            group_size,
            scales: Scales::SuperBlocks,
            biases,
            activations: Activations::Exact,
        })
    }

    const fn in_super_blocks_of_nibbles(input: DType, codebook: Codebook, group_size: usize) -> Self {
        let (scales, biases) = (Scales::SuperBlocksOfNibbles, true);
        Self::Quantised(Quantised { input, codebook, group_size, scales, biases, activations: Activations::Exact })
    }

    const fn in_super_blocks_of_floats(input: DType, codebook: Codebook, group_size: usize) -> Self {
        let (scales, biases) = (Scales::SuperBlocksOfFloats, false);
        Self::Quantised(Quantised { input, codebook, group_size, scales, biases, activations: Activations::Exact })
    }

    const fn with_zero_points(input: DType, codebook: Codebook, group_size: usize, scales: DType) -> Self {
        Self::Quantised(Quantised {
            input,
            codebook,
            group_size,
            scales: Scales::ZeroPoints(scales),
            biases: true,
            activations: Activations::Exact,
        })
    }

    const fn with_powers_of_two(input: DType, codebook: Codebook, group_size: usize) -> Self {
        Self::Quantised(Quantised {
            input,
            codebook,
            group_size,
            scales: Scales::PowersOfTwo,
            biases: false,
            activations: Activations::Exact,
        })
    }

    /// The same for other activations, which floats are always multiplied by as they are.
    pub const fn with(self, activations: Activations) -> Self {
        match self {
            Self::Quantised(quantised) => Self::Quantised(Quantised { activations, ..quantised }),
            Self::Float(_) => self,
        }
    }

    /// Type of the activations that such a weight is multiplied by.
    pub const fn input(self) -> DType {
        match self {
            Self::Float(dtype) => dtype,
            Self::Quantised(quantised) => quantised.input,
        }
    }

    /// What activations are multiplied as.
    pub const fn activations(self) -> Activations {
        match self {
            Self::Float(_) => Activations::Exact,
            Self::Quantised(quantised) => quantised.activations,
        }
    }

    /// Bytes of `rows` rows of `cols` elements, without what a backend's layout adds.
    pub const fn bytes(self, rows: usize, cols: usize) -> u128 {
        match self {
            Self::Float(dtype) => rows as u128 * cols as u128 * dtype.size() as u128,
            Self::Quantised(quantised) => quantised.bytes(rows, cols),
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(dtype) => dtype.fmt(f),
            Self::Quantised(quantised) => quantised.fmt(f),
        }
    }
}
