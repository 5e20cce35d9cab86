//! A software Metal device: compiles `.metal` files with clang, runs their kernels on the CPU, and checks every memory access.
//! It knows the Metal Shading Language and its execution model, and nothing of what the kernels compute.

mod abi;
mod buffer;
mod checker;
pub mod compile;
mod device;
mod dispatch;
mod finding;
mod pipeline;
mod runtime;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use buffer::Buffer;
pub use checker::Check;
pub use checker::cache::Traffic;
pub use compile::{Binary, CompileError, Instrument, Lint, Severity, Source, compile};
pub use device::{Config, Device, Report};
pub use dispatch::{Argument, Dispatch, DispatchError, Size};
pub use finding::{Access, Finding, FindingKind, Location, Other, Place, RaceKind, ThreadId};
pub use pipeline::{Constant, LoadError, Parameter, ParameterKind, Pipeline};
pub use runtime::executor::Counts;
pub use runtime::order::Order;
