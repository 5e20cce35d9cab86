//! The gated activation of Llama's MLP (Shazeer 2020, arXiv:2002.05202).

use crate::error::{ensure_floats, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "silu_mul";

/// `out[t, i] = silu(gate_up[t, i]) * gate_up[t, intermediate_size + i]` with `silu(x) = x / (1 + exp(-x))`, in f32, rounded
/// once to `out`'s type.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | gate_up | f32 | `[>= rows, 2 * intermediate_size]` |
/// | out | float | `[>= rows, intermediate_size]` |
pub struct SiluMul<'a, M> {
    /// Tokens, or pairs of token and expert.
    pub rows: usize,
    /// Gates, then ups, of each row.
    pub gate_up: &'a Tensor<M>,
    /// Activations.
    pub out: &'a mut Tensor<M>,
}

impl<M> SiluMul<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let cols = self.out.cols();
        ensure_tensor(NAME, "gate_up", self.gate_up, DType::F32, self.rows, 2 * cols)?;
        ensure_floats(NAME, "out", self.out, self.rows, cols)?;
        Ok(())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.silu_mul(self)
    }
}

/// Plain loops, before the rounding to `out`'s type. `gate_up` is `[rows, 2 * intermediate_size]`.
pub fn reference(gate_up: &[f32], intermediate_size: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for row in gate_up.chunks_exact(2 * intermediate_size) {
        let (gate, up) = row.split_at(intermediate_size);
        out.extend(gate.iter().zip(up).map(|(&g, &u)| {
            let (g, u) = (f64::from(g), f64::from(u));
            (g / (1.0 + (-g).exp()) * u) as f32
        }));
    }
    out
}
