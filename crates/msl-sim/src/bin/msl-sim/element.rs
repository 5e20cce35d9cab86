//! Elements of buffers: Metal's scalar types as bytes. It knows how numbers are encoded, and not what for.

use half::{bf16, f16};
use serde::Deserialize;

/// A scalar type of Metal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Type {
    Float,
    Half,
    Bfloat,
    Char,
    Uchar,
    Short,
    Ushort,
    Int,
    Uint,
    Long,
    Ulong,
}

impl Type {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::Char | Self::Uchar => 1,
            Self::Half | Self::Bfloat | Self::Short | Self::Ushort => 2,
            Self::Float | Self::Int | Self::Uint => 4,
            Self::Long | Self::Ulong => 8,
        }
    }

    fn is_integer(self) -> bool {
        !matches!(self, Self::Float | Self::Half | Self::Bfloat)
    }

    /// Appends a number, rounded to this type.
    pub fn encode(self, value: f64, bytes: &mut Vec<u8>) {
        match self {
            Self::Float => bytes.extend((value as f32).to_ne_bytes()),
            Self::Half => bytes.extend(f16::from_f64(value).to_ne_bytes()),
            Self::Bfloat => bytes.extend(bf16::from_f64(value).to_ne_bytes()),
            Self::Char => bytes.extend((value as i8).to_ne_bytes()),
            Self::Uchar => bytes.push(value as u8),
            Self::Short => bytes.extend((value as i16).to_ne_bytes()),
            Self::Ushort => bytes.extend((value as u16).to_ne_bytes()),
            Self::Int => bytes.extend((value as i32).to_ne_bytes()),
            Self::Uint => bytes.extend((value as u32).to_ne_bytes()),
            Self::Long => bytes.extend((value as i64).to_ne_bytes()),
            Self::Ulong => bytes.extend((value as u64).to_ne_bytes()),
        }
    }

    /// An element, for people.
    pub fn decode(self, bytes: &[u8]) -> String {
        fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
            bytes.try_into().expect("as many bytes as the type has")
        }
        match self {
            Self::Float => f32::from_ne_bytes(array(bytes)).to_string(),
            Self::Half => f16::from_ne_bytes(array(bytes)).to_string(),
            Self::Bfloat => bf16::from_ne_bytes(array(bytes)).to_string(),
            Self::Char => i8::from_ne_bytes(array(bytes)).to_string(),
            Self::Uchar => bytes[0].to_string(),
            Self::Short => i16::from_ne_bytes(array(bytes)).to_string(),
            Self::Ushort => u16::from_ne_bytes(array(bytes)).to_string(),
            Self::Int => i32::from_ne_bytes(array(bytes)).to_string(),
            Self::Uint => u32::from_ne_bytes(array(bytes)).to_string(),
            Self::Long => i64::from_ne_bytes(array(bytes)).to_string(),
            Self::Ulong => u64::from_ne_bytes(array(bytes)).to_string(),
        }
    }

    /// Appends `count` numbers: between -1 and 1, for integers any bits; the same ones for the same `seed`.
    pub fn random(self, count: usize, seed: u64, bytes: &mut Vec<u8>) {
        let mut state = seed;
        for _ in 0..count {
            // splitmix64
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            let z = z ^ (z >> 31);
            match self.is_integer() {
                true => bytes.extend(&z.to_ne_bytes()[..self.size()]),
                false => self.encode((z >> 11) as f64 / (1u64 << 52) as f64 - 1.0, bytes),
            }
        }
    }
}
