//! The Metal backend on the software device: conformance, what planted faults do to it, and what its kernels and its host promise.

#[path = "../common/decoder.rs"]
mod decoder;

mod attention_invariance;
mod barriers;
mod codes;
mod conformance;
mod costs;
mod head_sizes;
mod host;
mod kernel_headers;
mod matmul;
mod mutations;
mod norms;
mod pace;
mod sampling;
