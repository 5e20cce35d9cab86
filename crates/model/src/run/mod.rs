//! A model in a backend's memory that computes steps and picks tokens. It knows no format of a file.

mod batch_check;
pub(crate) mod decoder;
pub(crate) mod loaded_model;
pub mod model_executor;
pub mod sampler;
pub(crate) mod scratch;
pub mod warm_up;
