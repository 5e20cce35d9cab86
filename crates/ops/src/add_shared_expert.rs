//! The shared expert of Qwen2-MoE, which every token uses behind a gate of its own.

use crate::error::ensure_tensor;
use crate::*;

/// `out[t, :] += x[t, :] / (1 + exp(-gate[t]))`, in f32.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x, out | f32 | `[>= rows, hidden_size]` |
/// | gate | f32 | `[>= rows, 1]` |
pub struct AddSharedExpert<'a, B: Backend> {
    /// Tokens.
    pub rows: usize,
    /// Output of the shared expert.
    pub x: &'a Tensor<B::Memory>,
    /// Logit of the gate.
    pub gate: &'a Tensor<B::Memory>,
    /// Output of the routed experts, added to in place.
    pub out: &'a mut Tensor<B::Memory>,
}

impl<B: Backend> AddSharedExpert<'_, B> {
    /// Checks the arguments and computes the op.
    pub fn run(self, backend: &mut B) -> Result<()> {
        const OP: &str = "add_shared_expert";
        let hidden = self.out.cols();
        ensure_tensor(OP, "x", self.x, DType::F32, self.rows, hidden)?;
        ensure_tensor(OP, "gate", self.gate, DType::F32, self.rows, 1)?;
        ensure_tensor(OP, "out", self.out, DType::F32, self.rows, hidden)?;
        backend.add_shared_expert(self)
    }
}

/// Plain loops; returns the new `out`.
pub fn reference(x: &[f32], gate: &[f32], out: &[f32]) -> Vec<f32> {
    let hidden = out.len() / gate.len();
    let sigmoid = |g: f32| 1.0 / (1.0 + (-f64::from(g)).exp());
    let sum = |(i, (&x, &o)): (usize, (&f32, &f32))| (f64::from(o) + f64::from(x) * sigmoid(gate[i / hidden])) as f32;
    x.iter().zip(out).enumerate().map(sum).collect()
}
