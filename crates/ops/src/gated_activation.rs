//! The gated activation of an MLP (Shazeer 2020, arXiv:2002.05202): SwiGLU, GEGLU, and gpt-oss' SwiGLU within bounds.

use crate::error::{ensure_floats, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "gated_activation";

/// What gates and ups go through. Of a gate each is `x * sigmoid(y)` with `sigmoid(y) = 1 / (1 + exp(-y))`, for a `y` of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `y = x`: SiLU, the activation of Llama.
    Silu,
    /// `y = 2 sqrt(2 / pi) (x + 0.044715 x^3)`: the approximation of GELU by a hyperbolic tangent (Hendrycks and Gimpel 2016,
    /// arXiv:1606.08415), which is `x / 2 * (1 + tanh(y / 2))`. Written with the logistic function nothing cancels for negative `x`.
    GeluTanh,
    /// `y = 1.702 x`, the approximation of GELU by a logistic function (same source), of `x` up to 7; ups are between -7 and 7, and get 1
    /// added: the activation of gpt-oss' experts (`transformers.GptOssExperts`).
    ClampedSwiglu,
}

impl Activation {
    /// All.
    pub const ALL: [Self; 3] = [Self::Silu, Self::GeluTanh, Self::ClampedSwiglu];

    /// `y = x * (LINEAR + CUBIC * x^2)` of [`Activation::GeluTanh`]: `2 sqrt(2 / pi)`.
    pub const GELU_LINEAR: f32 = 1.595_769_2;
    /// See [`Activation::GELU_LINEAR`]: `2 sqrt(2 / pi) * 0.044715`.
    pub const GELU_CUBIC: f32 = 0.071_354_814;
    /// `y = SWIGLU_ALPHA * x` of [`Activation::ClampedSwiglu`].
    pub const SWIGLU_ALPHA: f32 = 1.702;
    /// The largest gate of [`Activation::ClampedSwiglu`], and the largest magnitude of ups.
    pub const SWIGLU_LIMIT: f32 = 7.0;

    /// The `x` of a gate, and what the activation is multiplied by, of an up: in f64.
    pub fn operands(self, gate: f64, up: f64) -> (f64, f64) {
        let limit = f64::from(Self::SWIGLU_LIMIT);
        match self {
            Activation::Silu | Activation::GeluTanh => (gate, up),
            // By comparisons, which leave what is no number as it is.
            Activation::ClampedSwiglu => (if gate > limit { limit } else { gate }, up.clamp(-limit, limit) + 1.0),
        }
    }

    /// `y`, in f64.
    pub fn argument(self, x: f64) -> f64 {
        match self {
            Activation::Silu => x,
            Activation::GeluTanh => 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3)),
            Activation::ClampedSwiglu => 1.702 * x,
        }
    }
}

/// `out[t, i] = x * sigmoid(y) * z`, in f32, rounded once to `out`'s type: `x` and `y` are the activation's of the gate `gate_up[t, i]`, and
/// `z` is the up `gate_up[t, intermediate_size + i]`, or what the activation makes of that.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | gate_up | f32 | `[>= rows, 2 * intermediate_size]` |
/// | out | float | `[>= rows, intermediate_size]` |
pub struct GatedActivation<'a, M> {
    /// Tokens, or pairs of token and expert.
    pub rows: usize,
    /// What gates and ups go through.
    pub activation: Activation,
    /// Gates, then ups, of each row.
    pub gate_up: &'a Tensor<M>,
    /// Activations.
    pub out: &'a mut Tensor<M>,
}

impl<M> GatedActivation<'_, M> {
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
        backend.gated_activation(self)
    }
}

/// Plain loops, before the rounding to `out`'s type. `gate_up` is `[rows, 2 * intermediate_size]`.
pub fn reference(activation: Activation, gate_up: &[f32], intermediate_size: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for row in gate_up.chunks_exact(2 * intermediate_size) {
        let (gate, up) = row.split_at(intermediate_size);
        out.extend(gate.iter().zip(up).map(|(&g, &u)| {
            let (g, u) = activation.operands(f64::from(g), f64::from(u));
            (g / (1.0 + (-activation.argument(g)).exp()) * u) as f32
        }));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `torch.nn.functional.silu(x)` and `gelu(x, approximate="tanh")` in float64.
    #[test]
    fn the_reference_equals_pytorch() {
        let x = [-4.0, -3.0, -0.5, 0.0, 0.1, 1.0, 4.0];
        let silu = [
            -0.07194483984836623,
            -0.14227761953270035,
            -0.1887703343990727,
            0.0,
            0.05249791956733388,
            0.7310585786300049,
            3.928055160151634,
        ];
        let gelu = [
            -7.024594819227126e-05,
            -0.0036373920817729943,
            -0.15428599017485606,
            0.0,
            0.05398275190898992,
            0.8411919906082768,
            3.9999297540518075,
        ];
        for (activation, expected) in [(Activation::Silu, silu), (Activation::GeluTanh, gelu)] {
            for (x, expected) in x.into_iter().zip(expected) {
                let got = f64::from(reference(activation, &[x, 1.0], 1)[0]);
                assert!(
                    (got - expected).abs() <= 1e-7 * expected.abs(),
                    "{activation:?}({x}) is {got}, not {expected}"
                );
            }
        }
    }

    /// `transformers.GptOssExperts._apply_gate` in float64.
    #[test]
    fn clamped_swiglu_equals_transformers() {
        for (gate, up, expected) in [
            (-9.0, 0.5, -3.004766979837765e-06),
            (-3.0, -9.5, 0.1084278582467158),
            (-0.5, -1.0, 0.0),
            (0.0, 3.0, 0.0),
            (0.125, 2.0, 0.20737042013431398),
            (1.0, -0.25, 0.6343468244496159),
            (6.5, 6.5, 48.749235516781965),
            (20.0, 30.0, 55.99962502642654),
        ] {
            let got = f64::from(reference(Activation::ClampedSwiglu, &[gate, up], 1)[0]);
            assert!((got - expected).abs() <= 1e-7 * expected.abs(), "{gate}, {up}: {got}, not {expected}");
        }
        let nan = reference(Activation::ClampedSwiglu, &[f32::NAN, 1.0, 1.0, f32::NAN], 1);
        assert!(nan[0].is_nan() && nan[1].is_nan());
    }

    #[test]
    fn the_constants_are_the_formulas() {
        let linear = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
        assert_eq!(Activation::GELU_LINEAR, linear as f32);
        assert_eq!(Activation::GELU_CUBIC, (linear * 0.044715) as f32);
        assert_eq!(Activation::SWIGLU_ALPHA, Activation::ClampedSwiglu.argument(1.0) as f32);
    }
}
