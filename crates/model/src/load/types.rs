//! The types of a loaded model's numbers: three choices, of which the user may make two.

use vllm_apple_ops::{DType, WeightFormat};

/// What the numbers of a loaded model are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelTypes {
    /// Of weight matrices. Norms and biases are always f32.
    pub weights: WeightFormat,
    /// Of activations between ops.
    pub activations: DType,
    /// Of keys and values in the cache.
    pub kv_cache: DType,
}

impl ModelTypes {
    /// All three of one type.
    pub const fn all(dtype: DType) -> Self {
        Self { weights: WeightFormat::Float(dtype), activations: dtype, kv_cache: dtype }
    }
}
