//! [`SiluMul`] on a GPU.

use vllm_apple_ops::{Result, SiluMul};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, _op: SiluMul<'_, MetalBackend<G>>) -> Result<()> {
    Err(backend.missing("silu_mul"))
}
