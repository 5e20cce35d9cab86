//! The CPU backend: kernels for every instruction set in one binary, picked at run time. It knows no model.

pub mod backend;
pub mod isa;
pub mod matmul;
pub mod memory;
pub mod pack;
pub mod roofline;
pub mod weight_memory;

#[cfg(target_arch = "x86_64")]
mod amx;
mod kv_layout;
mod rows;
mod simd;

mod add_rms_norm;
mod add_shared_expert;
mod embedding;
mod gated_activation;
mod gather_rows;
mod moe_combine;
mod paged_attention;
mod permute_columns;
mod qk_norm;
mod rms_norm;
mod rope;
mod rope_kv_write;
mod sample;
mod topk_softmax;

pub use backend::CpuBackend;
pub use isa::Isa;
