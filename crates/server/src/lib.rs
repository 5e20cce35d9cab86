//! The server around the engine: text, HTTP API and command line. Knows no tensor and no device.

pub mod cli;
pub mod embedding;
pub mod generation;
pub mod http;
pub mod memory;
pub mod metrics;
pub mod served;
pub mod settings;
pub mod structured;
pub mod text;
