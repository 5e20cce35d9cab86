//! Weights as the matmul kernels read them: rows of a checkpoint, in place where they can be. It knows no op.

use vllm_apple_ops::{DType, HostTensor, Result, Weight};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;
use crate::memory::Region;

/// A weight `[groups, rows, cols]` in row-major order.
pub struct PackedWeight<G: Gpu> {
    pub(crate) region: Region<G>,
}

/// See [`vllm_apple_ops::Backend::load_weight`].
pub(crate) fn load<G: Gpu>(
    backend: &MetalBackend<G>,
    _name: &str,
    _dtype: DType,
    _groups: usize,
    _parts: &[HostTensor<'_>],
) -> Result<Weight<PackedWeight<G>>> {
    Err(backend.missing("load_weight"))
}
