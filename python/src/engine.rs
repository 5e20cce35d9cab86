//! The class that vLLM's worker drives. It holds the model, and what vLLM has told of its requests; it decides nothing.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use vllm_apple_model::{KvBlock, MemoryPlan};

use crate::load::{EngineError, Loaded, Model, Options, load};
use crate::log::detached;
use crate::logprobs::Table;
use crate::requests::{Changes, NewRequest, Requests};
use crate::step::{Grammar, Outcome, Stepper};

impl From<EngineError> for PyErr {
    fn from(error: EngineError) -> Self {
        PyRuntimeError::new_err(error.to_string())
    }
}

/// Threads that this process may run at once.
#[pyfunction]
pub fn available_parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// A model in one of its two states: without a KV cache, or ready for steps; or neither, while it sleeps.
#[derive(Default)]
struct State {
    loaded: Option<Box<dyn Loaded>>,
    stepper: Option<Stepper>,
    requests: Requests,
}

/// See `_engine.pyi`.
#[pyclass(frozen)]
pub struct Engine {
    options: Options,
    device: String,
    memory_limit: Option<u64>,
    kv_block: KvBlock,
    plan: MemoryPlan,
    state: Mutex<State>,
}

/// Tokens, log-probabilities, those of prompts, and requests that failed.
type StepResult = (Vec<Vec<u32>>, Option<Table>, Vec<(String, Table)>, Vec<(String, String, bool)>);

#[pymethods]
impl Engine {
    #[new]
    fn new(py: Python<'_>, options: Options) -> PyResult<Self> {
        let options = options.resolved(py)?;
        let Model { loaded, device, memory_limit } = detached(py, || load(&options, None))??;
        let (kv_block, plan) = (loaded.kv_block(), loaded.memory_plan().clone());
        let state = Mutex::new(State { loaded: Some(loaded), ..State::default() });
        Ok(Self { options, device, memory_limit, kv_block, plan, state })
    }

    #[getter]
    fn device(&self) -> &str {
        &self.device
    }

    #[getter]
    fn memory_limit(&self) -> Option<u64> {
        self.memory_limit
    }

    #[getter]
    fn available_memory(&self) -> u64 {
        self.plan.available
    }

    #[getter]
    fn model_memory(&self) -> u64 {
        self.plan.weights + self.plan.scratch
    }

    #[getter]
    fn kv_block(&self) -> (usize, usize, usize, String, u64) {
        let KvBlock { num_layers, num_kv_heads, head_dim, dtype, bytes } = self.kv_block;
        (num_layers, num_kv_heads, head_dim, dtype.to_string(), bytes)
    }

    #[getter]
    fn executor_seconds(&self, py: Python<'_>) -> f64 {
        py.detach(|| self.state().stepper.as_ref().map_or(0.0, |stepper| stepper.executor_time().as_secs_f64()))
    }

    fn allocate(&self, py: Python<'_>, num_blocks: usize) -> PyResult<()> {
        detached(py, || {
            let mut state = self.state();
            let loaded = match state.loaded.take() {
                Some(loaded) => loaded,
                // In the memory that it had, whatever counts as free now: only the allocation itself may fail.
                None if state.stepper.is_none() => load(&self.options, Some(self.plan.available))?.loaded,
                None => return Err(EngineError::Use("the KV cache is allocated already".to_owned())),
            };
            state.stepper = Some(Stepper::new(loaded.allocate(num_blocks)?));
            Ok(())
        })??;
        Ok(())
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            let mut state = self.state();
            (state.loaded, state.stepper) = (None, None);
            state.requests.lose_blocks();
        })
    }

    fn update(&self, py: Python<'_>, finished: Vec<String>, new: Vec<NewRequest>, changes: Changes) -> PyResult<()> {
        py.detach(|| {
            let requests = &mut self.state().requests;
            requests.remove(&finished);
            for request in new {
                requests.add(request, self.plan.info.vocab_size);
            }
            requests.change(changes)
        })?;
        Ok(())
    }

    fn step(
        &self,
        py: Python<'_>,
        scheduled: Vec<(String, usize)>,
        grammar: HashMap<String, PyBackedBytes>,
    ) -> PyResult<StepResult> {
        let outcome = detached(py, || {
            let grammar: Grammar =
                grammar.into_iter().map(|(id, mask)| (id, bytemuck::pod_collect_to_vec(&mask))).collect();
            let State { stepper, requests, .. } = &mut *self.state();
            let asleep = || EngineError::Use("the engine sleeps: it has no KV cache".to_owned());
            stepper.as_mut().ok_or_else(asleep)?.step(requests, &scheduled, &grammar)
        })??;
        let Outcome { tokens, logprobs, prompt_logprobs, failed } = outcome;
        Ok((tokens, logprobs, prompt_logprobs, failed))
    }
}

impl Engine {
    /// To be called without the interpreter: a thread that holds the state may want to log. After a panic within a step, vLLM has ended.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
