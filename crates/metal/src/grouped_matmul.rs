//! [`GroupedMatmul`] on a GPU.

use vllm_apple_ops::{GroupedMatmul, Result};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, _op: &GroupedMatmul<'_, MetalBackend<G>>) -> Result<()> {
    Err(backend.missing("grouped_matmul"))
}
