//! The Metal backend: a kernel per op, run on Apple's GPUs or on the software Metal device. It knows no model.

pub mod backend;
pub mod gpu;
pub mod limits;
pub mod options;

mod arena;
mod checkpoint_memory;
mod encode;
mod hazards;
mod host;
mod kv_layout;
mod memory;
mod pipelines;
mod routing;

mod add_rms_norm;
mod add_shared_expert;
mod embedding;
mod gather_rows;
mod grouped_matmul;
mod matmul;
mod moe_combine;
mod paged_attention;
mod qk_norm;
mod rms_norm;
mod rope;
mod rope_kv_write;
mod sample;
mod silu_mul;
mod topk_softmax;
mod weight;

pub use backend::MetalBackend;
pub use options::{MetalOptions, OptionError};
