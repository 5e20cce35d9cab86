//! [`Matmul`] on a GPU.

use vllm_apple_ops::{Matmul, Result};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, _op: &Matmul<'_, MetalBackend<G>>) -> Result<()> {
    Err(backend.missing("matmul"))
}
