//! What a weight is in a backend's memory. It knows no layout: that is the backend's own.

use crate::DType;
use std::fmt;

/// The numbers of a weight. Activations, the KV cache and a checkpoint's tensors have types of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// Every element by itself, in this float type.
    Float(DType),
}

impl WeightFormat {
    /// Every format: what checks of a device go through.
    pub const ALL: [Self; 3] = [Self::Float(DType::F32), Self::Float(DType::F16), Self::Float(DType::BF16)];

    /// Type of the activations that such a weight is multiplied by.
    pub const fn input(self) -> DType {
        match self {
            Self::Float(dtype) => dtype,
        }
    }

    /// Bytes of `rows * cols` elements, without what a backend's layout adds.
    pub const fn bytes(self, rows: usize, cols: usize) -> u128 {
        match self {
            Self::Float(dtype) => rows as u128 * cols as u128 * dtype.size() as u128,
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(dtype) => dtype.fmt(f),
        }
    }
}
