//! What is computed: the ops of a transformer step, one file each, with formula, arguments, checks and reference.
//! It knows no device; a [`Backend`] computes the ops, and `conformance` says what every backend must meet.

pub mod backend;
pub mod conformance;
mod cores;
pub mod dtype;
pub mod error;
mod exp;
mod kind;
pub mod kv_cache;
mod limits;
pub mod philox;
pub mod pool;
mod quantised;
pub mod step_size;
pub mod tensor;
pub mod traffic;
mod weight_format;
mod weight_source;

mod activations;
pub mod add_rms_norm;
pub mod add_shared_expert;
pub mod embedding;
pub mod gated_activation;
pub mod gated_matmul;
pub mod gather_rows;
pub mod grouped_matmul;
pub mod matmul;
pub mod moe_combine;
pub mod paged_attention;
pub mod permute_columns;
pub mod qk_norm;
pub mod rms_norm;
pub mod rope;
pub mod rope_kv_write;
pub mod sample;
pub mod topk_softmax;

pub use activations::Activations;
pub use add_rms_norm::AddRmsNorm;
pub use add_shared_expert::AddSharedExpert;
pub use backend::{Backend, DeviceInfo};
pub use dtype::{DType, UnknownDType};
pub use embedding::Embedding;
pub use error::{Error, Result};
pub use exp::exp;
pub use gated_activation::{Activation, GatedActivation};
pub use gated_matmul::GatedMatmul;
pub use gather_rows::GatherRows;
pub use grouped_matmul::GroupedMatmul;
pub use kind::Kind;
pub use kv_cache::{KvCache, KvSpec, MAX_HEAD_DIM};
pub use limits::Limits;
pub use matmul::Matmul;
pub use moe_combine::MoeCombine;
pub use paged_attention::{PagedAttention, Sequences};
pub use permute_columns::PermuteColumns;
pub use qk_norm::QkNorm;
pub use quantised::{
    Codebook, Quantised, QuantisedTensor, ReadGroups, SUPER_BLOCK, Scale, Scales, WholeNumbers, power_of_two,
};
pub use rms_norm::RmsNorm;
pub use rope::Rope;
pub use rope_kv_write::{RopeKvWrite, RopeTable};
pub use sample::Sample;
pub use step_size::{ModelSize, StepSize};
pub use tensor::{HostTensor, MappedFile, Tensor, Weight};
pub use topk_softmax::TopkSoftmax;
pub use traffic::Traffic;
pub use weight_format::WeightFormat;
pub use weight_source::{Parts, WeightSource};
