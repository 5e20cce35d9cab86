//! The one form of all quantised weights: a code per element, looked up in a codebook, and a scale per group of elements along K. How
//! files spell it is their readers' business.

use crate::{Activations, DType};
use std::fmt;

/// `w[n, k] = scales[n, g] * codebook[codes[n, k]] + biases[n, g]` with `g = k / group_size`.
///
/// The CPU multiplies activations by what the codebook says, exactly: in f32, or where activations are bf16 by instructions for pairs or matrices
/// of those. It adds up a group in f32, and then `acc += scale * sum_of_products`, `acc += bias * sum_of_activations`, group after group: no
/// weight is ever rounded. A GPU multiplies by [`Quantised::value`] in f32: exact with scales of 16 bits and without biases, else rounded once. No
/// backend rounds an element to fewer bits unless it is told to ([`Activations`]), but instructions for bf16 take subnormal activations for zeros,
/// and matrices those below 2^-100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantised {
    /// Type of the activations that the weight is multiplied by.
    pub input: DType,
    /// What codes mean.
    pub codebook: Codebook,
    /// Elements of K that share a scale; the last group of a row may have fewer.
    pub group_size: usize,
    /// What scales and biases are in memory.
    pub scales: Scales,
    /// Whether groups have biases: zero points, times scales.
    pub biases: bool,
    /// What activations are multiplied as.
    pub activations: Activations,
}

impl Quantised {
    /// Groups of a row.
    pub const fn groups(self, cols: usize) -> usize {
        cols.div_ceil(self.group_size)
    }

    /// An element: one product, and with a bias one multiply-add, rounded once to f32.
    pub fn value(self, code: u8, scale: f32, bias: f32) -> f32 {
        let value = self.codebook.value(code);
        if self.biases { value.mul_add(scale, bias) } else { value * scale }
    }

    /// Whether groups can have such scales.
    pub const fn scales_fit(self) -> bool {
        let biases_fit = match self.scales {
            Scales::Float(_) | Scales::SuperBlocks => true,
            Scales::SuperBlocksOfNibbles | Scales::ZeroPoints(_) => self.biases,
            Scales::PowersOfTwo | Scales::SuperBlocksOfFloats => !self.biases,
        };
        self.scales.fit(self.group_size) && biases_fit
    }

    /// See [`crate::WeightFormat::bytes`].
    pub(crate) const fn bytes(self, rows: usize, cols: usize) -> u128 {
        let of_group = self.scales.size() + self.bias_size();
        let factors = cols.div_ceil(SUPER_BLOCK) * self.scales.factor_size() * (1 + self.biases as usize);
        let codes = (cols as u128 * self.codebook.bits() as u128).div_ceil(8);
        rows as u128 * (codes + (self.groups(cols) * of_group + factors) as u128)
    }

    /// Bytes of a group's bias.
    pub const fn bias_size(self) -> usize {
        if self.biases { self.scales.bias_size() } else { 0 }
    }
}

impl fmt::Display for Quantised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { input, codebook, group_size, scales, biases, activations } = self;
        let biases = match (biases, scales) {
            (false, _) => "",
            (true, Scales::ZeroPoints(_)) => " and zero points",
            (true, _) => " and biases",
        };
        let activations = match activations {
            Activations::Exact => "",
            Activations::Int8 => " as int8",
        };
        write!(f, "{codebook} (group_size {group_size}, {scales} scales{biases}) for {input}{activations}")
    }
}

/// Elements of K that share a factor of their scales: GGUF's `QK_K`.
pub const SUPER_BLOCK: usize = 256;

/// How the scales and biases of groups are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scales {
    /// Each in this float type.
    Float(DType),
    /// Each as a whole number from -128 to 127, times a float16 that all of [`SUPER_BLOCK`] elements share: exact in f32. Scales have a factor, and
    /// biases another.
    SuperBlocks,
    /// The same with whole numbers from 0 to 15: those of a group's scale and of its bias are the lower and the upper half of a byte.
    SuperBlocksOfNibbles,
    /// The same with floats of 8 bits, [`Codebook::E4m3`], and a float32: rounded once to f32. There are no biases.
    SuperBlocksOfFloats,
    /// Each scale in this float type; in place of the bias a whole number from 0 to 255, its zero point: the bias is what it takes from the scale's
    /// multiples, exact in f32 with scales of 16 bits.
    ZeroPoints(DType),
    /// Each as a byte, its exponent: see [`power_of_two`]. There are no biases.
    PowersOfTwo,
}

impl Scales {
    /// Bytes of a group's scale.
    pub const fn size(self) -> usize {
        match self {
            Self::Float(dtype) | Self::ZeroPoints(dtype) => dtype.size(),
            Self::SuperBlocks | Self::SuperBlocksOfNibbles | Self::SuperBlocksOfFloats | Self::PowersOfTwo => 1,
        }
    }

    /// Bytes of a group's bias, beside its scale.
    pub const fn bias_size(self) -> usize {
        match self {
            Self::SuperBlocksOfNibbles => 0,
            Self::Float(dtype) => dtype.size(),
            Self::SuperBlocks | Self::SuperBlocksOfFloats | Self::ZeroPoints(_) | Self::PowersOfTwo => 1,
        }
    }

    /// Bytes of a factor.
    pub const fn factor_size(self) -> usize {
        match self {
            Self::Float(_) | Self::ZeroPoints(_) | Self::PowersOfTwo => 0,
            Self::SuperBlocks | Self::SuperBlocksOfNibbles | Self::SuperBlocksOfFloats => self.dtype().size(),
        }
    }

    /// The type of scales, or of their factors; the smallest that holds them.
    pub const fn dtype(self) -> DType {
        match self {
            Self::Float(dtype) | Self::ZeroPoints(dtype) => dtype,
            Self::SuperBlocks | Self::SuperBlocksOfNibbles => DType::F16,
            Self::SuperBlocksOfFloats => DType::F32,
            Self::PowersOfTwo => DType::BF16,
        }
    }

    /// What is held of a scale or bias.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Self::Float(dtype) => dtype.round(value),
            _ => value,
        }
    }

    /// Whether groups of this size can have such scales.
    pub const fn fit(self, group_size: usize) -> bool {
        match self {
            Self::Float(dtype) => !matches!(dtype, DType::U32) && group_size > 0,
            Self::SuperBlocks | Self::SuperBlocksOfNibbles | Self::SuperBlocksOfFloats => {
                group_size >= 8 && SUPER_BLOCK.is_multiple_of(group_size)
            }
            Self::ZeroPoints(dtype) => !matches!(dtype, DType::U32) && group_size > 0 && group_size.is_multiple_of(8),
            Self::PowersOfTwo => group_size > 0 && group_size.is_multiple_of(8),
        }
    }
}

impl fmt::Display for Scales {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(dtype) | Self::ZeroPoints(dtype) => dtype.fmt(f),
            Self::SuperBlocks => f.write_str("int8 times float16"),
            Self::SuperBlocksOfNibbles => f.write_str("uint4 times float16"),
            Self::SuperBlocksOfFloats => f.write_str("e4m3 times float32"),
            Self::PowersOfTwo => f.write_str("e8m0"),
        }
    }
}

/// A float of 8 bits that are all the exponent's, E8M0: 2^-127 to 2^127, or no number.
pub fn power_of_two(exponent: u8) -> f32 {
    match exponent {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(exponent) << 23),
    }
}

/// The values of codes, all of them exact in bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Codebook {
    /// `code - zero_point`.
    Integer {
        /// Of a code, 1 to 8.
        bits: u8,
        /// The code of zero.
        zero_point: u8,
    },
    /// Floats of 4 bits, of which two are the exponent's and one is the fraction's: 0 to 6.
    E2m1,
    /// The odd numbers from `1 - 2^bits` to `2^bits - 1`: of 1 bit -1 and 1, of 4 bits GGUF's IQ3_S.
    Odd {
        /// Of a code, 1 to 4.
        bits: u8,
    },
    /// GGUF's 16 values of IQ4_NL and IQ4_XS, closer together around zero.
    Iq4Nl,
    /// GGUF's 8 values of IQ3_XXS, a quarter of what its tables say, and with the fourth bit their negatives.
    Iq3Xxs,
    /// GGUF's 3 values of IQ2_XXS, IQ2_XS and IQ2_S, an eighth of what its tables say, and with the third bit their negatives.
    Iq2,
    /// GGUF's IQ1_S and IQ1_M: -1, 0 and 1, and an eighth more or, with the third bit, less.
    Iq1,
    /// Floats of 8 bits, of which four are the exponent's and three are the fraction's: 0 to 480. Of those that stand for no number in files
    /// readers make none.
    E4m3,
}

/// GGUF's `kvalues_iq4nl`.
const IQ4_NL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice GGUF's values of IQ3_XXS.
const IQ3_XXS: [i8; 16] = [2, 6, 10, 14, 18, 22, 26, 31, -2, -6, -10, -14, -18, -22, -26, -31];

/// Eight times those of IQ2_XXS, IQ2_XS and IQ2_S. The fourth code has no value.
const IQ2: [i8; 8] = [8, 25, 43, 0, -8, -25, -43, 0];

/// Eight times those of IQ1_S and IQ1_M.
const IQ1: [i8; 8] = [-7, 1, 9, 0, -9, -1, 7, 0];

/// A codebook as whole numbers: `factor` makes `least` of its least value, and a number of `bits` bits more of each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WholeNumbers {
    /// A power of two.
    pub factor: f32,
    /// The least.
    pub least: f32,
    /// Of the difference.
    pub bits: u8,
}

impl Codebook {
    /// -8 to 7.
    pub const INT4: Self = Self::Integer { bits: 4, zero_point: 8 };
    /// -128 to 127.
    pub const INT8: Self = Self::Integer { bits: 8, zero_point: 128 };
    /// Those of up to 4 bits whose values are not one after the other.
    pub const TABLES: [Self; 7] =
        [Self::E2m1, Self::Odd { bits: 1 }, Self::Odd { bits: 4 }, Self::Iq4Nl, Self::Iq3Xxs, Self::Iq2, Self::Iq1];

    /// Bits of a code.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Integer { bits, .. } | Self::Odd { bits } => bits,
            Self::Iq2 | Self::Iq1 => 3,
            Self::E2m1 | Self::Iq4Nl | Self::Iq3Xxs => 4,
            Self::E4m3 => 8,
        }
    }

    /// What a code means.
    pub fn value(self, code: u8) -> f32 {
        match self {
            Self::Integer { zero_point, .. } => f32::from(code) - f32::from(zero_point),
            Self::Odd { bits } => f32::from(code) * 2.0 + 1.0 - f32::from(1u8 << bits),
            Self::E2m1 => small_float(code, 2, 1),
            Self::Iq4Nl => f32::from(IQ4_NL[usize::from(code & 15)]),
            Self::Iq3Xxs => f32::from(IQ3_XXS[usize::from(code & 15)]) / 2.0,
            Self::Iq2 => f32::from(IQ2[usize::from(code & 7)]) / 8.0,
            Self::Iq1 => f32::from(IQ1[usize::from(code & 7)]) / 8.0,
            Self::E4m3 => small_float(code, 4, 3),
        }
    }

    /// Its values as whole numbers of few bits, by which codes of different formats can be told apart no more.
    pub const fn whole_numbers(self) -> Option<WholeNumbers> {
        match self {
            Self::Integer { bits, zero_point } => Some(WholeNumbers { factor: 1.0, least: -(zero_point as f32), bits }),
            Self::Odd { bits } => {
                Some(WholeNumbers { factor: 1.0, least: 1.0 - (1u32 << bits) as f32, bits: bits + 1 })
            }
            Self::E2m1 => Some(WholeNumbers { factor: 2.0, least: -12.0, bits: 5 }),
            Self::Iq4Nl => Some(WholeNumbers { factor: 1.0, least: -127.0, bits: 8 }),
            Self::Iq3Xxs => Some(WholeNumbers { factor: 2.0, least: -31.0, bits: 6 }),
            Self::Iq2 => Some(WholeNumbers { factor: 8.0, least: -43.0, bits: 7 }),
            Self::Iq1 => Some(WholeNumbers { factor: 8.0, least: -9.0, bits: 5 }),
            Self::E4m3 => None,
        }
    }
}

/// A sign, `exponent` bits and `fraction` bits, without values that are no numbers.
fn small_float(code: u8, exponent: u32, fraction: u32) -> f32 {
    let sign = if code >> (exponent + fraction) & 1 == 1 { -1.0 } else { 1.0 };
    let bits = u32::from(code) & ((1 << (exponent + fraction)) - 1);
    let (power, rest) = (bits >> fraction, (bits & ((1 << fraction) - 1)) as f32);
    let whole = (1u32 << fraction) as f32;
    // The exponents 0 and 1 mean the same; only the second has a leading 1.
    let significand = if power == 0 { rest } else { whole + rest };
    sign * significand / whole * 2f32.powi(power.max(1) as i32 - (1 << (exponent - 1)) + 1)
}

impl fmt::Display for Codebook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The zero point in the middle is what a signed integer is.
            Self::Integer { bits, zero_point } if u32::from(*zero_point) == 1 << (bits - 1) => write!(f, "int{bits}"),
            Self::Integer { bits, zero_point: 0 } => write!(f, "uint{bits}"),
            Self::Integer { bits, zero_point } => write!(f, "uint{bits} minus {zero_point}"),
            Self::Odd { bits } => write!(f, "odd int{}", bits + 1),
            Self::E2m1 => f.write_str("e2m1"),
            Self::Iq4Nl => f.write_str("iq4_nl"),
            Self::Iq3Xxs => f.write_str("iq3_xxs"),
            Self::Iq2 => f.write_str("iq2"),
            Self::Iq1 => f.write_str("iq1"),
            Self::E4m3 => f.write_str("e4m3"),
        }
    }
}

/// A quantised `[rows, cols]` matrix of a checkpoint, however its file spells it.
#[derive(Clone, Copy)]
pub struct QuantisedTensor<'a> {
    /// Rows: `out_features` of a linear layer.
    pub rows: usize,
    /// Columns: `in_features` of a linear layer.
    pub cols: usize,
    /// Reads them.
    pub groups: &'a dyn ReadGroups,
}

/// Reads codes and scales: all that a format of files needs.
pub trait ReadGroups: Sync {
    /// Writes the codes of group `group` of a row, one per byte and as many as the group has elements; its scale and bias, 0 in formats
    /// without.
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale;

    /// The factors of the scales and of the biases of a row's super-block: only of formats that have them ([`Scales::SuperBlocks`]).
    fn factors(&self, row: usize, super_block: usize) -> Scale {
        unreachable!("super-block {super_block} of row {row} has no factors of its scales")
    }
}

/// The scale and the bias of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Factor of what the codes mean.
    pub scale: f32,
    /// Added to each.
    pub bias: f32,
}

impl Scale {
    /// The whole numbers by which `factors` give these.
    pub fn multiples(self, factors: Self) -> [i8; 2] {
        // Exact: the quotient of a product that was.
        let multiple = |value: f32, factor: f32| if factor == 0.0 { 0 } else { (value / factor) as i8 };
        [multiple(self.scale, factors.scale), multiple(self.bias, factors.bias)]
    }

    /// The same where both are from 0 to 15, in halves of a byte.
    pub fn nibbles(self, factors: Self) -> u8 {
        let [scale, bias] = self.multiples(factors).map(|multiple| multiple as u8 & 15);
        scale | bias << 4
    }

    /// The float of 8 bits by which `factors` give this scale: [`Codebook::E4m3`], the nearest one.
    pub fn float8(self, factors: Self) -> u8 {
        // The quotient of a product that was rounded is next to the float. With exponents as much lower as f32's begin lower its first bits are the
        // code, below the least exponent too.
        let bits = (self.scale / factors.scale * 2f32.powi(-120)).to_bits();
        let magnitude = ((bits & 0x7fff_ffff) + (1 << 19)) >> 20;
        if factors.scale == 0.0 { 0 } else { magnitude.min(0x7f) as u8 | (bits >> 31 << 7) as u8 }
    }

    /// The exponent of a power of two.
    pub fn exponent(self) -> u8 {
        (self.scale.to_bits() >> 23) as u8
    }

    /// The zero point that gives this bias: 0 where any does.
    pub fn zero_point(self) -> u8 {
        // Exact, as above; with scales of 32 bits the quotient of a product that was rounded.
        if self.scale == 0.0 { 0 } else { (-self.bias / self.scale).round() as u8 }
    }
}

#[cfg(test)]
mod tests;
