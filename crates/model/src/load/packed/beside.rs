//! What files beside config.json say of quantised matrices where that says nothing: ModelOpt's before version 0.31, and those of AutoAWQ and
//! AutoGPTQ before transformers knew of either. vLLM reads the same.

use std::path::Path;

use super::{Found, Method, modelopt};
use crate::load::error::LoadError;
use crate::load::fields::Fields;

/// AutoAWQ's.
const AWQ: &str = "quant_config.json";
/// AutoGPTQ's, and others' for AWQ.
const GPTQ: &str = "quantize_config.json";

/// In the order in which they are looked for.
pub(crate) const FILES: [&str; 3] = [modelopt::CONFIG, AWQ, GPTQ];

impl Method {
    /// What the first file beside it says that says something, and which that is.
    pub(crate) fn read_beside(directory: &Path) -> Result<Option<(Found, &'static str)>, LoadError> {
        for name in FILES {
            let path = directory.join(name);
            if !path.exists() {
                continue;
            }
            let config = Fields::read(&path)?;
            let method = match method_of(name, &config)? {
                // Other programs have files of these names, too.
                None if name != modelopt::CONFIG => continue,
                method => method,
            };
            if let Some(found) = Self::of(&config, method)? {
                return Ok(Some((found, name)));
            }
        }
        Ok(None)
    }
}

/// The method, which most of them do not name.
fn method_of<'a>(name: &str, config: &'a Fields) -> Result<Option<&'a str>, LoadError> {
    // What vLLM takes for each must have these fields.
    let has = |fields: &[&str]| fields.iter().all(|field| config.has(field));
    Ok(match config.string("quant_method")? {
        None if has(&["zero_point"]) && (has(&["w_bit"]) || has(&["bits"])) => Some("awq"),
        None if name == GPTQ && has(&["bits", "group_size", "desc_act"]) => Some("gptq"),
        method => method,
    })
}
