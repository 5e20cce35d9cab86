//! [`AddRmsNorm`] on a GPU.

use vllm_apple_ops::{AddRmsNorm, Result};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, _op: AddRmsNorm<'_, MetalBackend<G>>) -> Result<()> {
    Err(backend.missing("add_rms_norm"))
}
