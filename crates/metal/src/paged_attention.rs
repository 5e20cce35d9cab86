//! [`PagedAttention`] on a GPU.

use vllm_apple_ops::{PagedAttention, Result};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, _op: PagedAttention<'_, MetalBackend<G>>) -> Result<()> {
    Err(backend.missing("paged_attention"))
}
