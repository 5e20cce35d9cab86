//! [`Embedding`] on a GPU.

use vllm_apple_ops::{Embedding, Result};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, _op: &Embedding<'_, MetalBackend<G>>) -> Result<()> {
    Err(backend.missing("embedding"))
}
