//! [`RopeKvWrite`] on a GPU.

use vllm_apple_ops::{Result, RopeKvWrite};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, _op: &RopeKvWrite<'_, MetalBackend<G>>) -> Result<()> {
    Err(backend.missing("rope_kv_write"))
}
