//! Runs gpu/apple where there is no Mac: an Objective-C runtime, and classes of Foundation and Metal that answer the messages it sends,
//! compute with msl-sim, and check what Metal's API validation checks. It knows no op.

mod foundation;
mod framework;
pub mod runtime;

pub use framework::machine;

// What gpu/apple and its tests find in their crate besides `gpu`.
pub use ::metal::{MetalBackend, MetalOptions, options};

/// gpu/apple itself, from the files that are compiled on a Mac, and what it uses of its crate. The directory `gpu` is a link to theirs.
pub mod gpu {
    pub mod apple;
    mod cache_file;
    mod diagnostics;
    mod health;
    mod heartbeat;
    mod once_map;
    mod residency_plan;

    pub use ::metal::gpu::*;

    fn host_memory() -> Result<u64, GpuError> {
        Ok(16 << 30)
    }
}
