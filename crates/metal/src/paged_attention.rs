//! [`PagedAttention`] on a GPU.

use vllm_apple_ops::{PagedAttention, Result, StepSize};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;

/// Bytes of `Slot::AttentionPartials` that a step needs at most.
pub(crate) fn scratch_bytes(_step: &StepSize) -> usize {
    0
}

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, _op: &PagedAttention<'_, MetalBackend<G>>) -> Result<()> {
    Err(backend.missing("paged_attention"))
}
