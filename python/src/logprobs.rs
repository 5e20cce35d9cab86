//! Log-probabilities as vLLM takes them: tables of equal rows, as bytes. It computes none.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use vllm_apple_executor::Sample;

/// In a row the token itself, then the alternatives, best first. What a row does not have is its token once more, impossible.
#[derive(Default)]
pub struct Table {
    width: usize,
    tokens: Vec<i32>,
    logprobs: Vec<f32>,
    ranks: Vec<i32>,
}

impl Table {
    pub fn new(num_alternatives: usize) -> Self {
        Self { width: num_alternatives + 1, ..Self::default() }
    }

    pub fn push(&mut self, sample: Option<&Sample>) {
        let end = self.tokens.len() + self.width;
        self.ranks.push(0);
        if let Some(Sample { token_id, logprobs: Some(scores) }) = sample {
            let row = [(*token_id, scores.logprob)].into_iter().chain(scores.top.iter().copied());
            for (token, logprob) in row.take(self.width) {
                self.tokens.push(token as i32);
                self.logprobs.push(logprob);
            }
            *self.ranks.last_mut().expect("pushed above") = scores.rank as i32;
        }
        let token = sample.map_or(0, |sample| sample.token_id as i32);
        self.tokens.resize(end, token);
        self.logprobs.resize(end, f32::NEG_INFINITY);
    }
}

/// `(width, int32 tokens, float32 log-probabilities, int32 ranks)`.
impl<'py> IntoPyObject<'py> for Table {
    type Target = pyo3::types::PyTuple;
    type Output = Bound<'py, Self::Target>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let tokens = PyBytes::new(py, bytemuck::cast_slice(&self.tokens));
        let logprobs = PyBytes::new(py, bytemuck::cast_slice(&self.logprobs));
        let ranks = PyBytes::new(py, bytemuck::cast_slice(&self.ranks));
        (self.width, tokens, logprobs, ranks).into_pyobject(py)
    }
}
