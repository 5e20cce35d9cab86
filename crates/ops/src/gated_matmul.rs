//! The first half of a gated MLP: the product with gate and up, and the activation, which devices may compute at once.

use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "gated_matmul";

/// [`Matmul`] into `gate_up`, and [`GatedActivation`] of that into `out`, to the bit. What `gate_up` holds afterwards is not defined.
pub struct GatedMatmul<'a, M, W> {
    /// Tokens.
    pub rows: usize,
    /// Activations.
    pub x: &'a Tensor<M>,
    /// Gates, then ups.
    pub weight: &'a Weight<W>,
    /// Added last.
    pub bias: Option<&'a Tensor<M>>,
    /// What gates go through.
    pub activation: Activation,
    /// Room for the product.
    pub gate_up: &'a mut Tensor<M>,
    /// Activations.
    pub out: &'a mut Tensor<M>,
}

impl<M, W> GatedMatmul<'_, M, W> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&mut self) -> Result<()> {
        let Self { rows, x, weight, bias, activation, ref mut gate_up, ref mut out } = *self;
        Matmul { rows, x, weight, bias, out: gate_up }.check()?;
        GatedActivation { rows, activation, gate_up, out }.check()
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M, Packed = W>>(mut self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.gated_matmul(self)
    }

    /// Computes the two ops one after the other.
    ///
    /// # Errors
    /// As theirs.
    pub fn apart<B: Backend<Memory = M, Packed = W>>(self, backend: &mut B) -> Result<()> {
        let Self { rows, x, weight, bias, activation, gate_up, out } = self;
        Matmul { rows, x, weight, bias, out: &mut *gate_up }.run(backend)?;
        GatedActivation { rows, activation, gate_up, out }.run(backend)
    }
}
