//! The shared expert of Qwen2-MoE, which every token uses behind a gate of its own.

use crate::error::ensure_tensor;
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "add_shared_expert";

/// `out[t, :] += x[t, :] / (1 + exp(-gate[t]))`, in f32.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x, out | f32 | `[>= rows, hidden_size]` |
/// | gate | f32 | `[>= rows, 1]` |
pub struct AddSharedExpert<'a, M> {
    /// Tokens.
    pub rows: usize,
    /// Output of the shared expert.
    pub x: &'a Tensor<M>,
    /// Logit of the gate.
    pub gate: &'a Tensor<M>,
    /// Output of the routed experts, added to in place.
    pub out: &'a mut Tensor<M>,
}

impl<M> AddSharedExpert<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let hidden = self.out.cols();
        ensure_tensor(NAME, "x", self.x, DType::F32, self.rows, hidden)?;
        ensure_tensor(NAME, "gate", self.gate, DType::F32, self.rows, 1)?;
        ensure_tensor(NAME, "out", self.out, DType::F32, self.rows, hidden)?;
        Ok(())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
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
