//! What the user decides about the Metal backend. It knows no device.

use std::path::PathBuf;

/// Choices of the user. In messages a field `f` is named `metal_f`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetalOptions {
    /// Attention on the device, else on the host.
    pub attention: bool,
    /// Steps with more than one new token of a request on the device; else they are computed by the ops' reference formulas on
    /// the host, slowly. Prefill and decode may then differ in the last bits.
    pub prefill: bool,
    /// What would be computed on the host is an error, unless the two above put it there.
    pub strict: bool,
    /// Most bytes of the ops' scratch; `None` is without limit.
    pub scratch_pool: Option<usize>,
    /// Most tokens of a step. A command buffer that runs for seconds is ended by the system.
    pub max_batch_size: usize,
    /// Also take the GPU of a virtual machine, which does not say that it can run the kernels.
    pub allow_vm: bool,
    /// A directory for compiled kernels, so that the next start is faster.
    pub cache: Option<PathBuf>,
}

impl Default for MetalOptions {
    fn default() -> Self {
        Self {
            attention: true,
            prefill: true,
            strict: false,
            scratch_pool: None,
            max_batch_size: 16384,
            allow_vm: false,
            cache: None,
        }
    }
}
