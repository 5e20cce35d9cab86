//! [`GatedMatmul`] on a GPU, of few rows: a threadgroup computes the gates and the ups of 8 outputs, and then these.

use vllm_apple_ops::{GatedMatmul, Result};

use super::matmul::{self, FEW_HEIGHTS, Gated, NO_PAIRS, Product, constants, few_rows, few_threads, work};
use crate::gpu::Gpu;
use crate::recorder::Recorder;
use crate::recorder::dispatch::Grid;
use crate::recorder::region::Region;
use crate::weight::PackedWeight;

/// Outputs of a tile: as many gates and ups.
const OUTPUTS: usize = 8;

/// Records the op, if there is a kernel for so many rows. False: there is none.
pub(crate) fn run<G: Gpu>(
    recorder: &mut Recorder<G>,
    op: &GatedMatmul<'_, Region<G>, PackedWeight<G>>,
) -> Result<bool> {
    let &GatedMatmul { rows, x, weight, bias, activation, ref out, .. } = op;
    let (n, dtype) = (weight.rows(), weight.packed().dtype);
    let Some(best) = few_rows(rows, n) else { return Ok(false) };
    if out.dtype() != dtype {
        return Ok(false);
    }
    let constants = constants(weight, bias.is_some(), Gated::from(activation), NO_PAIRS);
    let product = Product { rows, x: x.memory(), weight, bias, out: out.memory(), out_cols: out.cols() };
    let (name, threads) = (vllm_apple_ops::gated_matmul::NAME, few_threads(weight));
    let heights = matmul::from_height(&FEW_HEIGHTS, best);
    let variant = |height| (matmul::kernel(weight, height), threads);
    recorder.first_of(name, &constants, heights, variant, |recorder, height| {
        let threadgroups = [rows.div_ceil(height), (n / 2).div_ceil(OUTPUTS), 1];
        let grid = Grid { threadgroups, threads, work: work(rows, weight) };
        matmul::dispatch(recorder, name, matmul::kernel(weight, height), &constants, &product, grid, OUTPUTS)
    })?;
    Ok(true)
}
