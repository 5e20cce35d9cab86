//! [`GatherRows`] on a GPU.

use vllm_apple_ops::{GatherRows, Result};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, _op: GatherRows<'_, MetalBackend<G>>) -> Result<()> {
    Err(backend.missing("gather_rows"))
}
