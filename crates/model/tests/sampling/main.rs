//! The sampler: what it hands to the op `sample`, and what comes back.

#[path = "../common/mod.rs"]
mod common;

mod device_sampling;
mod on_backend;
mod sampler;
