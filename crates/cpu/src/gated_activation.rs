//! The gated activation, elementwise.

use std::marker::PhantomData;

use vllm_apple_ops::{Activation, DType, GatedActivation};

use crate::CpuBackend;
use crate::memory::Memory;
use crate::memory::{elements, elements_mut};
use crate::rows::for_rows;
use crate::simd::{Dispatch, Element, Kernel, LANES, Simd, load_padded, store_part, with_float};

pub(crate) fn run<T: Element>(backend: &CpuBackend, op: GatedActivation<'_, Memory>) {
    let cols = op.out.cols();
    let gate_up = elements(op.gate_up, op.rows);
    let out: &mut [T] = elements_mut(op.out, op.rows);
    for_rows::<_, ()>(&backend.pool, op.rows, out, &mut [], |first, out, _| {
        let gate_up = &gate_up[first * 2 * cols..][..2 * out.len()];
        with_gate!(op.activation, gate => backend.dispatch.run(Rows { gate, gate_up, cols, out }));
    });
}

/// Some columns of a row: gates, ups, and where the activations of `dtype` go.
pub(crate) struct Part<'a> {
    pub gate: &'a [f32],
    pub up: &'a [f32],
    pub out: &'a mut [u8],
}

impl Part<'_> {
    #[inline(always)]
    pub(crate) fn activate<S: Simd, G: Gate, T: Element>(self, s: S, gate: G) {
        activate::<S, G, T>(s, gate, self.gate, self.up, bytemuck::cast_slice_mut(self.out));
    }
}

/// Evaluates an expression with `$gate` standing for an [`Activation`] as a [`Gate`].
macro_rules! with_gate {
    ($activation:expr, $gate:ident => $body:expr) => {
        match $activation {
            Activation::Silu => {
                let $gate = crate::gated_activation::Silu;
                $body
            }
            Activation::GeluTanh => {
                let $gate = crate::gated_activation::GeluTanh;
                $body
            }
            Activation::ClampedSwiglu => {
                let $gate = crate::gated_activation::ClampedSwiglu;
                $body
            }
        }
    };
}
pub(crate) use with_gate;

/// The activations of some rows' parts.
pub(crate) fn run_parts<'a>(
    dispatch: Dispatch,
    activation: Activation,
    dtype: DType,
    parts: impl Iterator<Item = Part<'a>>,
) {
    with_float!(dtype, T => {
        with_gate!(activation, gate => dispatch.run(Parts { gate, parts, element: PhantomData::<T> }));
    });
}

/// An [`Activation`], known when the kernel is compiled.
pub(crate) trait Gate: Copy {
    /// The `x` of a gate, and what the activation is multiplied by, of an up: see [`Activation::operands`]. Must be `#[inline(always)]`.
    #[inline(always)]
    fn operands<S: Simd>(self, _: S, gate: S::V, up: S::V) -> (S::V, S::V) {
        (gate, up)
    }

    /// The `y` of `x * sigmoid(y)`. Must be `#[inline(always)]`.
    fn argument<S: Simd>(self, s: S, x: S::V) -> S::V;
}

#[derive(Clone, Copy)]
pub(crate) struct Silu;

impl Gate for Silu {
    #[inline(always)]
    fn argument<S: Simd>(self, _: S, x: S::V) -> S::V {
        x
    }
}

#[derive(Clone, Copy)]
pub(crate) struct GeluTanh;

impl Gate for GeluTanh {
    #[inline(always)]
    fn argument<S: Simd>(self, s: S, x: S::V) -> S::V {
        let (linear, cubic) = (s.splat(Activation::GELU_LINEAR), s.splat(Activation::GELU_CUBIC));
        s.mul(x, s.mul_add(s.mul(x, x), cubic, linear))
    }
}

#[derive(Clone, Copy)]
pub(crate) struct ClampedSwiglu;

impl Gate for ClampedSwiglu {
    /// What is no number stays none: [`Simd::max`] is the second operand then.
    #[inline(always)]
    fn operands<S: Simd>(self, s: S, gate: S::V, up: S::V) -> (S::V, S::V) {
        let (zero, least) = (s.splat(0.0), s.splat(-Activation::SWIGLU_LIMIT));
        let at_most_limit = |x: S::V| s.sub(zero, s.max(least, s.sub(zero, x)));
        (at_most_limit(gate), s.add(at_most_limit(s.max(least, up)), s.splat(1.0)))
    }

    #[inline(always)]
    fn argument<S: Simd>(self, s: S, x: S::V) -> S::V {
        s.mul(x, s.splat(Activation::SWIGLU_ALPHA))
    }
}

struct Rows<'a, G, T> {
    gate: G,
    gate_up: &'a [f32],
    cols: usize,
    out: &'a mut [T],
}

impl<G: Gate, T: Element> Kernel for Rows<'_, G, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (row, out) in self.gate_up.chunks_exact(2 * self.cols).zip(self.out.chunks_exact_mut(self.cols)) {
            let (gate, up) = row.split_at(self.cols);
            activate(s, self.gate, gate, up, out);
        }
    }
}

struct Parts<G, I, T> {
    gate: G,
    parts: I,
    element: PhantomData<T>,
}

impl<'a, G: Gate, I: Iterator<Item = Part<'a>>, T: Element> Kernel for Parts<G, I, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for part in self.parts {
            part.activate::<_, _, T>(s, self.gate);
        }
    }
}

#[inline(always)]
fn activate<S: Simd, G: Gate, T: Element>(s: S, function: G, gate: &[f32], up: &[f32], out: &mut [T]) {
    let one = s.splat(1.0);
    for ((gate, up), out) in gate.chunks(LANES).zip(up.chunks(LANES)).zip(out.chunks_mut(LANES)) {
        let (gate, up) = (load_padded(s, gate), load_padded(s, up));
        let (gate, up) = function.operands(s, gate, up);
        let argument = function.argument(s, gate);
        let denominator = s.add(one, s.exp(s.sub(s.splat(0.0), argument)));
        store_part(s, s.mul(s.div(gate, denominator), up), out);
    }
}
