//! [`MoeCombine`] on a GPU.

use vllm_apple_ops::{MoeCombine, Result};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, _op: MoeCombine<'_, MetalBackend<G>>) -> Result<()> {
    Err(backend.missing("moe_combine"))
}
