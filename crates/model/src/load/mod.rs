//! What a checkpoint is: where it comes from, what its files say, and its weights. It knows no step.

pub mod checkpoint;
pub mod config;
pub mod error;
pub(crate) mod families;
pub(crate) mod fields;
pub mod file;
pub mod generation_config;
pub mod gguf;
pub mod hub;
pub mod json;
mod map_fault;
pub(crate) mod mapped_file;
pub(crate) mod matrix;
pub(crate) mod packed;
pub mod pooler;
mod preflight;
pub(crate) mod quantization_option;
pub(crate) mod quantize;
pub mod rope;
pub(crate) mod survey;
pub(crate) mod types;
pub(crate) mod weights;
mod write_quantized;
