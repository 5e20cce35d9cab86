//! The CPU backend: kernels for every instruction set in one binary, picked at run time. It knows no model.

pub mod isa;
pub mod limits;
pub mod matmul;
pub mod pack;
pub mod pool;
