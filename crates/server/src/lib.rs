//! The server around the engine: text, HTTP API and command line. Knows no tensor and no device.

pub mod text;
