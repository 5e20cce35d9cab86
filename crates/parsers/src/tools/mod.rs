//! The formats, one a file.

pub mod deepseek;
pub mod glm;
pub mod harmony;
pub mod json;
pub mod mistral;
pub mod named;
pub mod python;
pub mod pythonic;
pub mod qwen_xml;
