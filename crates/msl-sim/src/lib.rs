//! A software Metal device: compiles `.metal` files with clang, runs their kernels on the CPU, and checks every memory access.
//! It knows the Metal Shading Language and its execution model, and nothing of what the kernels compute.

#[allow(dead_code)] // Until the checker uses the rest of it.
mod abi;
mod buffer;
pub mod compile;
mod device;
mod finding;
mod pipeline;
#[allow(dead_code)] // Likewise.
mod runtime;

pub use buffer::Buffer;
pub use compile::{Binary, CompileError, Instrument, Lint, Severity, Source, compile};
pub use device::{Argument, Config, Device, Dispatch, DispatchError, Report, Size};
pub use finding::{Finding, FindingKind, Location, ThreadId};
pub use pipeline::{Constant, LoadError, Parameter, ParameterKind, Pipeline};
pub use runtime::executor::Counts;
pub use runtime::order::Order;
