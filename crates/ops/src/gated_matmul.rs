//! The first half of a gated MLP: the products of gate and up, and the activation of them.

use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "gated_matmul";

/// `out = GatedActivation(Matmul(x))`, with the bits of the two.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | x | the input of the weight's format | `[>= rows, K]` |
/// | weight | any format | `[1, 2 * intermediate_size, K]`, gates before ups |
/// | bias | f32 | `[1, 2 * intermediate_size]` |
/// | gate_up | f32 | `[>= rows, 2 * intermediate_size]` |
/// | out | float | `[>= rows, intermediate_size]` |
pub struct GatedMatmul<'a, M, W> {
    /// Tokens.
    pub rows: usize,
    /// Activations.
    pub x: &'a Tensor<M>,
    /// Weight matrices of gate and up.
    pub weight: &'a Weight<W>,
    /// Added to the products.
    pub bias: Option<&'a Tensor<M>>,
    /// What gates go through.
    pub activation: Activation,
    /// Room for the products. What it holds afterwards is the backend's affair: most of these never need to leave a cache.
    pub gate_up: &'a mut Tensor<M>,
    /// Activations of the products.
    pub out: &'a mut Tensor<M>,
}

impl<M, W> GatedMatmul<'_, M, W> {
    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first argument that does not fit, and what the backend says.
    pub fn run<B: Backend<Memory = M, Packed = W>>(mut self, backend: &mut B) -> Result<()> {
        self.matmul().check()?;
        self.gated_activation().check()?;
        backend.gated_matmul(self)
    }

    /// Computes the op as the two that it is made of.
    ///
    /// # Errors
    /// What the backend says.
    pub fn run_apart<B: Backend<Memory = M, Packed = W>>(mut self, backend: &mut B) -> Result<()> {
        backend.matmul(self.matmul())?;
        backend.gated_activation(self.gated_activation())
    }

    fn matmul(&mut self) -> Matmul<'_, M, W> {
        Matmul { rows: self.rows, x: self.x, weight: self.weight, bias: self.bias, out: self.gate_up, first: 0 }
    }

    fn gated_activation(&mut self) -> GatedActivation<'_, M> {
        GatedActivation { rows: self.rows, activation: self.activation, gate_up: self.gate_up, out: self.out }
    }
}
