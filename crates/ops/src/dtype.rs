//! Element types of tensors and their conversion on the host. It knows no arithmetic.

use half::{bf16, f16};
use std::fmt;
use std::str::FromStr;

/// Type of a tensor's elements, little-endian in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// Token ids, positions, block ids, expert ids.
    U32,
}

impl DType {
    /// The float types, in which weights, activations and the KV cache may be.
    pub const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }

    /// The type's name in PyTorch and vLLM.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::U32 => "uint32",
        }
    }

    /// Unit roundoff: half the distance from 1 to the next larger number. The base of tolerances.
    pub const fn epsilon(self) -> f32 {
        match self {
            DType::F32 => f32::EPSILON / 2.0,
            DType::F16 => 1.0 / 2048.0,
            DType::BF16 => 1.0 / 256.0,
            DType::U32 => 0.0,
        }
    }

    /// Rounds `x` to this float type and back, to nearest even.
    pub fn round(self, x: f32) -> f32 {
        match self {
            DType::F32 | DType::U32 => x,
            DType::F16 => f16::from_f32(x).to_f32(),
            DType::BF16 => bf16::from_f32(x).to_f32(),
        }
    }

    /// Encodes floats as bytes of this float type, rounding to nearest even.
    ///
    /// # Panics
    /// For [`DType::U32`].
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            DType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            DType::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
            DType::U32 => panic!("u32 is not a float type"),
        }
    }

    /// Decodes bytes of this float type.
    ///
    /// # Panics
    /// For [`DType::U32`].
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let mut values = Vec::new();
        self.decode_into(bytes, &mut values);
        values
    }

    /// The same, behind what `values` holds.
    ///
    /// # Panics
    /// For [`DType::U32`].
    pub fn decode_into(self, bytes: &[u8], values: &mut Vec<f32>) {
        let pair = |b: &[u8]| [b[0], b[1]];
        match self {
            DType::F32 => values.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
            DType::F16 => values.extend(bytes.chunks_exact(2).map(|b| f16::from_le_bytes(pair(b)).to_f32())),
            DType::BF16 => values.extend(bytes.chunks_exact(2).map(|b| bf16::from_le_bytes(pair(b)).to_f32())),
            DType::U32 => panic!("u32 is not a float type"),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = UnknownDType;

    /// A float type by its name in PyTorch and vLLM.
    fn from_str(text: &str) -> Result<Self, UnknownDType> {
        match text {
            "bfloat16" => Ok(DType::BF16),
            "float16" | "half" => Ok(DType::F16),
            "float32" | "float" => Ok(DType::F32),
            _ => Err(UnknownDType(text.to_owned())),
        }
    }
}

/// The name of no float type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown type {0:?}: expected bfloat16, float16 or float32")]
pub struct UnknownDType(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for dtype in DType::FLOATS {
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
        }
        assert_eq!("half".parse(), Ok(DType::F16));
        assert!("int8".parse::<DType>().unwrap_err().to_string().contains("\"int8\": expected bfloat16"));
    }

    #[test]
    fn encode_then_decode_rounds_once() {
        for dtype in DType::FLOATS {
            let values = [0.0, 1.0, -2.5, 0.1, 1e-3, 65504.0];
            let rounded: Vec<f32> = values.iter().map(|&v| dtype.round(v)).collect();
            assert_eq!(dtype.decode(&dtype.encode(&values)), rounded);
        }
    }
}
