//! Whether a model is computed as it should be on a device, and how fast: sections of a report, each of which runs the model in its own way.
//! It knows no text, no command line and no form of a report.

pub mod answers;
pub mod checked;
#[cfg(test)]
mod faults;
pub mod host_ops;
mod host_weight;
mod models;
pub mod pinned;
pub mod reference;
pub mod report;
pub mod sections;
pub mod size;
pub mod speed;
mod steps;
pub mod subject;

pub use host_ops::HostOps;
pub use pinned::Pinned;
pub use report::{Line, Outcome, Plot, Report, Section, Series};
pub use sections::{Progress, Settings};
pub use subject::{Failure, Prompt, Subject, VerifyError, Wish};
