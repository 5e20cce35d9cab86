//! The engine as a Python module: what vLLM schedules is computed by the same crates as in the program. It knows no policy, and reads of the
//! environment only the Hugging Face hub's variables.

mod download;
mod engine;
mod load;
mod log;
mod logprobs;
mod params;
mod quantization;
mod request;
mod requests;
mod step;
mod thinking;

/// See `vllm_apple/_engine.pyi` for what Python sees.
#[pyo3::pymodule]
mod _engine {
    #[pymodule_export]
    use crate::engine::{Engine, available_parallelism};
    #[pymodule_export]
    use crate::log::log_to;
    #[pymodule_export]
    use crate::params::check_params;
    #[pymodule_export]
    use crate::quantization::check_quantization;
}
