//! The Metal backend: a kernel per op, run on Apple's GPUs or on the software Metal device. It knows no model.

pub mod backend;
pub mod gpu;
pub mod options;
pub mod roofline;

mod fallback;
mod kv_layout;
mod ops;
mod recorder;
mod weight;

pub use backend::MetalBackend;
pub use options::MetalOptions;
pub use recorder::region::Region;
pub use weight::PackedWeight;
