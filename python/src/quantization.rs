//! What config.json says of quantised weights, checked before anything is loaded. It reads no weight.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use vllm_apple_model::QuantizationOption;

/// Raises ValueError if weights are not read that are quantised as `config`, fields of a config.json, says, or not as `asked`.
#[pyfunction]
#[pyo3(signature = (config, asked=None))]
pub fn check_quantization(config: &str, asked: Option<&str>) -> PyResult<()> {
    let asked = asked.map(str::parse::<QuantizationOption>).transpose().map_err(PyValueError::new_err)?;
    vllm_apple_model::check_quantization(config.as_bytes(), asked).map_err(|e| PyValueError::new_err(e.to_string()))
}
