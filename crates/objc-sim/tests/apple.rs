//! The tests of gpu/apple that a Mac runs, on the simulated one, with every access of the kernels checked.

extern crate objc_sim as vllm_apple_metal;

#[path = "../../metal/tests/apple/cases.rs"]
mod cases;
