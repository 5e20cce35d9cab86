//! Products with a model's own weights.

use std::collections::BTreeSet;

use vllm_apple_ops::{
    Activation, DType, GatedActivation, GatedMatmul, GroupedMatmul, Kind, Matmul, Result, Tensor, Weight, conformance,
    gated_matmul, grouped_matmul, matmul,
};

use super::{handle, integers, judge, numbers, run_or_leave, tensor};
use crate::gpu::Gpu;
use crate::ops;
use crate::recorder::Recorder;
use crate::recorder::region::Region;
use crate::weight::{self, PackedWeight};

/// Rows that have kernels of their own, beside those up to the next.
const ROWS: [usize; 5] = [1, 9, 17, 33, 65];
/// Outputs of a row that are compared, beside the first and the last of each array of rows.
const SAMPLES: usize = 16;

/// A product of a model.
pub(super) struct Product<G: Gpu> {
    weight: Weight<PackedWeight<G>>,
    bias: Option<Tensor<Region<G>>>,
    /// Of a mixture of experts: how many a token has, and pairs that share a row of the input.
    experts: Option<(usize, usize)>,
    /// Of gates and ups: what becomes of them at once.
    gated: Option<Activation>,
    /// The most rows, or tokens of a mixture.
    pub rows: usize,
}

impl<G: Gpu> Product<G> {
    pub fn of_matmul(op: &Matmul<'_, Region<G>, PackedWeight<G>>) -> Self {
        Self { weight: clone(op.weight), bias: op.bias.map(handle), experts: None, gated: None, rows: op.rows }
    }

    pub fn of_gated_matmul(op: &GatedMatmul<'_, Region<G>, PackedWeight<G>>) -> Self {
        let gated = Some(op.activation);
        Self { weight: clone(op.weight), bias: op.bias.map(handle), experts: None, gated, rows: op.rows }
    }

    pub fn of_grouped_matmul(op: &GroupedMatmul<'_, Region<G>, PackedWeight<G>>) -> Self {
        let experts = Some((op.ids.cols(), op.pairs_per_row));
        Self { weight: clone(op.weight), bias: op.bias.map(handle), experts, gated: None, rows: op.tokens }
    }

    fn dtype(&self) -> DType {
        self.weight.packed().dtype
    }

    pub fn kind(&self) -> Kind {
        self.kind_of(if self.experts.is_some() { grouped_matmul::NAME } else { matmul::NAME })
    }

    /// Of another op with the same weight.
    pub fn kind_of(&self, op: &'static str) -> Kind {
        Kind::of_weight(op, self.weight.format())
    }

    /// Whether the same pipelines compute it.
    pub fn is_like(&self, other: &Self) -> bool {
        let key = |of: &Self| {
            let weight = (PackedWeight::constants(&of.weight), of.weight.packed().code_constants());
            let shape = (weight, of.weight.groups());
            (of.kind(), shape, of.bias.is_some(), of.experts, of.gated)
        };
        key(self) == key(other)
    }

    /// # Errors
    /// The device gets it wrong or refuses it.
    pub fn test(&self, recorder: &mut Recorder<G>) -> Result<()> {
        match self.experts {
            None => ROWS.into_iter().filter(|&rows| rows <= self.rows).try_for_each(|rows| {
                let ids = vec![0; rows];
                self.test_rows(recorder, rows, &ids, 1)
            }),
            Some((top_k, pairs_per_row)) => {
                // Tiles are as high as an expert's share of the pairs.
                let groups = self.weight.groups();
                let tokens = [1, 2, 9 * groups / top_k + 1, 33 * groups / top_k + 1];
                let tokens: BTreeSet<usize> = tokens.into_iter().filter(|&tokens| tokens <= self.rows).collect();
                tokens.into_iter().try_for_each(|tokens| {
                    // Different ones of each token, in every order.
                    let ids = (0..tokens).flat_map(|t| (0..top_k).map(move |j| (t * 3 + j) % groups));
                    let ids: Vec<u32> = ids.map(|id| id as u32).collect();
                    self.test_rows(recorder, tokens, &ids, pairs_per_row)
                })
            }
        }
    }

    /// Gates and ups that become activations at once.
    ///
    /// # Errors
    /// The device gets it wrong or refuses it.
    pub fn test_at_once(&self, recorder: &mut Recorder<G>) -> Result<()> {
        let Some(activation) = self.gated else { return Ok(()) };
        ROWS.into_iter()
            .filter(|&rows| rows <= self.rows)
            .try_for_each(|rows| self.test_gated(recorder, rows, activation))
    }

    /// Of so many rows or tokens, each pair with its matrix.
    fn test_rows(&self, recorder: &mut Recorder<G>, rows: usize, ids: &[u32], pairs_per_row: usize) -> Result<()> {
        let (n, k, weight) = (self.weight.rows(), self.weight.cols(), &self.weight);
        let values = numbers(ids.len() / pairs_per_row * k);
        let x = tensor(recorder, self.dtype(), k, &values)?;
        let mut out = recorder.tensor(DType::F32, ids.len(), n)?;
        let row = integers(recorder, ids)?;
        run_or_leave(recorder, |recorder| match self.experts {
            None => {
                let (bias, out) = (self.bias.as_ref(), &mut out);
                ops::matmul::run(recorder, &Matmul { rows, x: &x, weight, bias, out, first: 0 })
            }
            Some((top_k, _)) => {
                let ids = Tensor::new(row.memory().clone(), DType::U32, rows, top_k);
                let (x, ids, bias, out) = (&x, &ids, self.bias.as_ref(), &mut out);
                let op = GroupedMatmul { tokens: rows, pairs_per_row, x, ids, weight, bias, out, first: 0 };
                ops::grouped_matmul::run(recorder, &op)
            }
        })?;
        let got: &[f32] = bytemuck::cast_slice(recorder.read(&out));
        let bias: Option<&[f32]> = self.bias.as_ref().map(|bias| bytemuck::cast_slice(recorder.read(bias)));
        let mut worst = 0.0f64;
        for pair in BTreeSet::from([0, ids.len() / 2, ids.len() - 1]) {
            let x = &values[pair / pairs_per_row * k..][..k];
            for output in self.samples() {
                let row = weight::row(recorder, weight, ids[pair] as usize, output).values();
                let bias = bias.map_or(&[][..], |bias| &bias[ids[pair] as usize * n + output..][..1]);
                worst = worst.max(conformance::of_product(got[pair * n + output], x, &row, bias));
            }
        }
        judge(recorder, self.kind().op, worst, &format!("{rows} x {n} x {k}"))
    }

    /// Gates and ups that become activations at once have the bits of the two ops apart, of which the product is tested.
    fn test_gated(&self, recorder: &mut Recorder<G>, rows: usize, activation: Activation) -> Result<()> {
        let (n, k, weight, bias) = (self.weight.rows(), self.weight.cols(), &self.weight, self.bias.as_ref());
        let x = tensor(recorder, self.dtype(), k, &numbers(rows * k))?;
        let mut gate_up = recorder.tensor(DType::F32, rows, n)?;
        let new = || recorder.tensor(self.dtype(), rows, n / 2);
        let (mut at_once, mut apart) = (new()?, new()?);
        let mut has_kernel = true;
        recorder.run(|recorder| {
            let out = &mut at_once;
            let op = GatedMatmul { rows, x: &x, weight, bias, activation, gate_up: &mut gate_up, out };
            has_kernel = ops::gated_matmul::run(recorder, &op)?;
            Ok(())
        })?;
        if !has_kernel {
            return Ok(());
        }
        recorder.run(|recorder| {
            ops::matmul::run(recorder, &Matmul { rows, x: &x, weight, bias, out: &mut gate_up, first: 0 })?;
            let op = GatedActivation { rows, activation, gate_up: &gate_up, out: &mut apart };
            ops::gated_activation::run(recorder, &op)
        })?;
        if recorder.read(&at_once) != recorder.read(&apart) {
            let reason = format!(
                "it differs from the two steps at the model's own sizes, {rows} x {n} x {k}; please report this"
            );
            return Err(recorder.unsupported(gated_matmul::NAME, reason));
        }
        Ok(())
    }

    fn samples(&self) -> BTreeSet<usize> {
        let n = self.weight.rows();
        let starts = PackedWeight::first_rows(&self.weight);
        let ends = starts.into_iter().flat_map(|start| [start.saturating_sub(1), start.min(n - 1)]);
        (0..SAMPLES).map(|i| i * n / SAMPLES).chain([n - 1]).chain(ends).collect()
    }
}

/// Another handle of the same weight.
fn clone<G: Gpu>(weight: &Weight<PackedWeight<G>>) -> Weight<PackedWeight<G>> {
    Weight::new(weight.packed().handle(), weight.format(), weight.groups(), weight.rows(), weight.cols())
}
