//! [`QkNorm`] on a GPU.

use vllm_apple_ops::{QkNorm, Result};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, _op: QkNorm<'_, MetalBackend<G>>) -> Result<()> {
    Err(backend.missing("qk_norm"))
}
