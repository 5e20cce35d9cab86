//! The types of tensors in GGUF files, and what each is here. It reads none.

use std::fmt;

use vllm_apple_ops::{Codebook, DType, Scales};

use crate::load::matrix::Spelling;

/// A type that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    F32,
    F16,
    Bf16,
    Q1_0,
    Q2_0,
    Pq2_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    Iq4Nl,
    Iq4Xs,
    Tq1_0,
    Tq2_0,
    Mxfp4,
    Nvfp4,
}

/// Number, name, elements and bytes of a block.
const TYPES: [(Type, u32, &str, usize, usize); 29] = [
    (Type::F32, 0, "F32", 1, 4),
    (Type::F16, 1, "F16", 1, 2),
    (Type::Bf16, 30, "BF16", 1, 2),
    (Type::Q1_0, 41, "Q1_0", 128, 18),
    (Type::Q2_0, 42, "Q2_0", 64, 18),
    (Type::Pq2_0, 142, "PQ2_0", 128, 34),
    (Type::Q4_0, 2, "Q4_0", 32, 18),
    (Type::Q4_1, 3, "Q4_1", 32, 20),
    (Type::Q5_0, 6, "Q5_0", 32, 22),
    (Type::Q5_1, 7, "Q5_1", 32, 24),
    (Type::Q8_0, 8, "Q8_0", 32, 34),
    (Type::Q2K, 10, "Q2_K", 256, 84),
    (Type::Q3K, 11, "Q3_K", 256, 110),
    (Type::Q4K, 12, "Q4_K", 256, 144),
    (Type::Q5K, 13, "Q5_K", 256, 176),
    (Type::Q6K, 14, "Q6_K", 256, 210),
    (Type::Iq1S, 19, "IQ1_S", 256, 50),
    (Type::Iq1M, 29, "IQ1_M", 256, 56),
    (Type::Iq2Xxs, 16, "IQ2_XXS", 256, 66),
    (Type::Iq2Xs, 17, "IQ2_XS", 256, 74),
    (Type::Iq2S, 22, "IQ2_S", 256, 82),
    (Type::Iq3Xxs, 18, "IQ3_XXS", 256, 98),
    (Type::Iq3S, 21, "IQ3_S", 256, 110),
    (Type::Iq4Nl, 20, "IQ4_NL", 32, 18),
    (Type::Iq4Xs, 23, "IQ4_XS", 256, 136),
    (Type::Tq1_0, 34, "TQ1_0", 256, 54),
    (Type::Tq2_0, 35, "TQ2_0", 256, 66),
    (Type::Mxfp4, 39, "MXFP4", 32, 17),
    (Type::Nvfp4, 40, "NVFP4", 64, 36),
];

/// Types that are not read, for messages.
const OTHERS: [(u32, &str); 10] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    // Of 2024; llama.cpp has removed them.
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
];

impl Type {
    pub(crate) fn numbered(number: u32) -> Option<Self> {
        TYPES.iter().find(|(_, of, ..)| *of == number).map(|(kind, ..)| *kind)
    }

    /// The name of any type.
    pub(crate) fn name_of(number: u32) -> String {
        OTHERS.iter().find(|(of, _)| *of == number).map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
    }

    /// All names.
    pub(crate) fn names() -> String {
        TYPES.map(|(_, _, name, ..)| name).join(", ")
    }

    fn row(self) -> (u32, &'static str, usize, usize) {
        let found = TYPES.iter().find(|(kind, ..)| *kind == self);
        found.map_or((0, "", 1, 1), |&(_, number, name, elements, bytes)| (number, name, elements, bytes))
    }

    /// Elements and bytes of a block.
    pub(crate) fn block(self) -> (usize, usize) {
        let (_, _, elements, bytes) = self.row();
        (elements, bytes)
    }

    /// What floats it is of.
    pub(crate) fn float(self) -> Option<DType> {
        match self {
            Self::F32 => Some(DType::F32),
            Self::F16 => Some(DType::F16),
            Self::Bf16 => Some(DType::BF16),
            _ => None,
        }
    }

    /// How its codes are spelled.
    pub(crate) fn spelling(self) -> Option<Spelling> {
        let codebook = |bits, zero_point| Codebook::Integer { bits, zero_point };
        let (codebook, group_size, scales, biases) = match self {
            Self::F32 | Self::F16 | Self::Bf16 => return None,
            Self::Q1_0 => (Codebook::Odd { bits: 1 }, 128, Scales::Float(DType::F16), false),
            Self::Q2_0 => (codebook(2, 1), 64, Scales::Float(DType::F16), false),
            Self::Pq2_0 => (codebook(2, 1), 128, Scales::Float(DType::F16), false),
            Self::Tq1_0 | Self::Tq2_0 => (codebook(2, 1), 256, Scales::Float(DType::F16), false),
            Self::Q4_0 => (codebook(4, 8), 32, Scales::Float(DType::F16), false),
            Self::Q4_1 => (codebook(4, 0), 32, Scales::Float(DType::F16), true),
            Self::Q5_0 => (codebook(5, 16), 32, Scales::Float(DType::F16), false),
            Self::Q5_1 => (codebook(5, 0), 32, Scales::Float(DType::F16), true),
            Self::Q8_0 => (Codebook::INT8, 32, Scales::Float(DType::F16), false),
            Self::Q2K => (codebook(2, 0), 16, Scales::SuperBlocksOfNibbles, true),
            Self::Q3K => (codebook(3, 4), 16, Scales::SuperBlocks, false),
            Self::Q4K => (codebook(4, 0), 32, Scales::SuperBlocks, true),
            Self::Q5K => (codebook(5, 0), 32, Scales::SuperBlocks, true),
            Self::Q6K => (codebook(6, 32), 16, Scales::SuperBlocks, false),
            Self::Iq1S => (Codebook::Iq1, 32, Scales::SuperBlocks, false),
            Self::Iq1M => (Codebook::Iq1, 16, Scales::SuperBlocks, false),
            Self::Iq2Xxs => (Codebook::Iq2, 32, Scales::SuperBlocks, false),
            Self::Iq2Xs | Self::Iq2S => (Codebook::Iq2, 16, Scales::SuperBlocks, false),
            Self::Iq3Xxs => (Codebook::Iq3Xxs, 32, Scales::SuperBlocks, false),
            Self::Iq3S => (Codebook::Odd { bits: 4 }, 32, Scales::SuperBlocks, false),
            Self::Iq4Nl => (Codebook::Iq4Nl, 32, Scales::Float(DType::F16), false),
            Self::Iq4Xs => (Codebook::Iq4Nl, 32, Scales::SuperBlocks, false),
            Self::Mxfp4 => (Codebook::E2m1, 32, Scales::PowersOfTwo, false),
            Self::Nvfp4 => (Codebook::E2m1, 16, Scales::SuperBlocksOfFloats, false),
        };
        Some(Spelling { codebook, group_size, scales, biases })
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().1)
    }
}
