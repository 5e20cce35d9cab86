//! The runtime: runs the threads of a threadgroup as fibers, and lets them meet at barriers and simdgroup operations. It knows
//! how kernels are executed, and neither how they were compiled nor what their memory means.

pub mod arena;
pub mod executor;
mod fiber;
pub mod grid;
pub mod host;
pub mod memory;
pub mod order;
pub mod simdgroup;
pub mod subnormals;
mod switch;

/// Lanes of a simdgroup.
pub const SIMDGROUP_SIZE: usize = 32;
/// The most threads that a threadgroup may have.
pub const MAX_THREADS: usize = 1024;
/// The most bytes of stack that a function of a kernel may need for its variables.
pub const MAX_FRAME: usize = 64 * 1024;
/// The most simdgroups that a threadgroup may have.
pub const MAX_SIMDGROUPS: usize = MAX_THREADS / SIMDGROUP_SIZE;
