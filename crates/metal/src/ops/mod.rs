//! The ops on a GPU, one file each: kernel, constants, arguments in the order of `[[buffer(n)]]`, grid. They record into a
//! [`Recorder`](crate::recorder::Recorder) and know no backend.

pub(crate) mod scratch;

pub(crate) mod add_rms_norm;
pub(crate) mod add_shared_expert;
pub(crate) mod embedding;
pub(crate) mod gated_activation;
pub(crate) mod gated_matmul;
pub(crate) mod gather_rows;
pub(crate) mod grouped_matmul;
pub(crate) mod matmul;
pub(crate) mod moe_combine;
pub(crate) mod paged_attention;
pub(crate) mod permute_columns;
pub(crate) mod qk_norm;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod rope_kv_write;
pub(crate) mod sample;
pub(crate) mod topk_softmax;
