//! [`AddSharedExpert`] on a GPU.

use vllm_apple_ops::{AddSharedExpert, Result};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, _op: AddSharedExpert<'_, MetalBackend<G>>) -> Result<()> {
    Err(backend.missing("add_shared_expert"))
}
