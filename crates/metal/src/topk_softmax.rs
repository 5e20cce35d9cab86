//! [`TopkSoftmax`] on a GPU.

use vllm_apple_ops::{Result, TopkSoftmax};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, _op: TopkSoftmax<'_, MetalBackend<G>>) -> Result<()> {
    Err(backend.missing("topk_softmax"))
}
