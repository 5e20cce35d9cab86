//! [`GroupedMatmul`] on a GPU: pairs are sorted by expert on the device, so that tiles of rows share a weight. The host never sees
//! the expert ids.

use bytemuck::{Pod, Zeroable};
use vllm_apple_ops::{GroupedMatmul, Result, StepSize, Weight};

use super::matmul::{self, Gated, TILE, constants};
use super::scratch;
use crate::gpu::{Gpu, Kernel, Value, Work};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::held::Held;
use crate::recorder::pipelines::kernels_by_dtype;
use crate::recorder::region::{self, Region};
use crate::weight::PackedWeight;

macro_rules! kernel {
    ($name:ident, $function:literal) => {
        kernels_by_dtype!(
            $name,
            ["weight.metal", "matrix.metal", "tile.metal", "matmul_tile.metal", "pairs.metal"],
            "grouped_matmul.metal",
            $function
        );
    };
    ($name:ident of codes, $function:literal) => {
        kernels_by_dtype!(
            $name,
            ["weight.metal", "matrix.metal", "tile.metal", "pairs.metal", "codes.metal", "codes_tile.metal"],
            "codes_grouped_matmul.metal",
            $function
        );
    };
}
kernel!(rows8, "grouped_matmul_8");
kernel!(rows32, "grouped_matmul_32");
kernel!(rows64, "grouped_matmul_64");
kernel!(codes8 of codes, "codes_grouped_matmul_8");
kernel!(codes32 of codes, "codes_grouped_matmul_32");
kernel!(codes64 of codes, "codes_grouped_matmul_64");

const GROUP_PAIRS: Kernel = Kernel {
    file: "group_pairs.metal",
    source: include_str!("../../kernels/group_pairs.metal"),
    function: "group_pairs",
};
/// Experts at most: `MAX_EXPERTS` of `group_pairs.metal`.
const MAX_EXPERTS: usize = 1024;
/// Bytes of an entry of the table of tiles.
const TILE_BYTES: usize = 16;
/// Heights of tiles, the highest first. Where the device refuses one, the next has the same bits: see those of `matmul`.
const HEIGHTS: [usize; 3] = [TILE, 32, 8];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GroupParams {
    pairs: u32,
    experts: u32,
    tile_rows: u32,
    tiles: u32,
}

/// How pairs become tiles: with the same expert in each, and as high as an expert's share of the pairs is on average.
struct Plan {
    tile_rows: usize,
    /// Tiles at most: every expert in use may end with one that is not full.
    tiles: usize,
    /// A single token's pairs have an expert each, and need no sorting.
    grouped: bool,
}

/// The height that fits best.
fn best_height(tokens: usize, pairs: usize, experts: usize) -> usize {
    match pairs / experts {
        _ if tokens == 1 => 8,
        0..=8 => 8,
        9..=32 => 32,
        _ => TILE,
    }
}

impl Plan {
    fn new(tokens: usize, pairs: usize, experts: usize, tile_rows: usize) -> Self {
        Self { tile_rows, tiles: pairs.min(pairs / tile_rows + experts), grouped: tokens > 1 }
    }

    fn scratch_bytes(&self, pairs: usize) -> usize {
        self.tiles * TILE_BYTES + pairs * size_of::<u32>()
    }
}

/// Bytes of `scratch::EXPERT_GROUPS` that a step needs at most.
pub(crate) fn scratch_bytes(step: &StepSize) -> usize {
    let pairs = step.num_pairs();
    // The lowest tiles are the most.
    Plan { tile_rows: 8, tiles: pairs.min(pairs / 8 + step.model.num_experts), grouped: true }.scratch_bytes(pairs)
}

pub(crate) fn run<G: Gpu>(
    recorder: &mut Recorder<G>,
    op: &GroupedMatmul<'_, Region<G>, PackedWeight<G>>,
) -> Result<()> {
    let &GroupedMatmul { tokens, pairs_per_row, x, ids, weight, bias, ref out, first } = op;
    let pairs = tokens * ids.cols();
    if weight.groups() == 1 {
        // A single expert takes all tokens.
        return matmul::encode(recorder, pairs, x, weight, bias, out, first);
    }
    let experts = weight.groups();
    let of_pairs = [Value::U32(pairs_per_row as u32), Value::Bool(tokens > 1)];
    let constants = constants(weight, bias.is_some(), Gated::No, of_pairs);
    let heights = matmul::from_height(&HEIGHTS, best_height(tokens, pairs, experts));
    let variant = |height| (kernel(weight, height), matmul::threads(weight, height));
    recorder.first_of(vllm_apple_ops::grouped_matmul::NAME, &constants, heights, variant, |recorder, height| {
        record(recorder, op, &Plan::new(tokens, pairs, experts, height), &constants)
    })
}

/// The kernel of tiles of this height.
fn kernel<G: Gpu>(weight: &Weight<PackedWeight<G>>, height: usize) -> Kernel {
    let of_dtype = match (height, weight.packed().codes().is_some()) {
        (8, false) => rows8,
        (8, true) => codes8,
        (32, false) => rows32,
        (32, true) => codes32,
        (_, false) => rows64,
        (_, true) => codes64,
    };
    of_dtype(weight.packed().dtype)
}

/// Records the product in the tiles of a plan.
fn record<G: Gpu>(
    recorder: &mut Recorder<G>,
    op: &GroupedMatmul<'_, Region<G>, PackedWeight<G>>,
    plan: &Plan,
    constants: &[Value],
) -> Result<()> {
    let &GroupedMatmul { tokens, x, ids, weight, bias, ref out, first: first_col, .. } = op;
    let (n, k, experts, pairs) = (weight.rows(), weight.cols(), weight.groups(), tokens * ids.cols());
    let kernel = kernel(weight, plan.tile_rows);
    let groups = if plan.grouped { Some(group_pairs(recorder, ids.memory(), pairs, experts, plan)?) } else { None };
    let (outputs, threads) = (n.div_ceil(matmul::outputs(plan.tile_rows)), matmul::threads(weight, plan.tile_rows));
    let work = |tiles: usize| Work {
        flops: 2.0 * (tiles * plan.tile_rows) as f64 * n as f64 * k as f64,
        bytes: (tiles.min(experts) * PackedWeight::bytes(weight)) as f64,
    };
    // The few pairs of a single token are one piece.
    let most = if plan.grouped { recorder.pace.pieces(work(1)) } else { plan.tiles };
    for first in (0..plan.tiles).step_by(most) {
        let tiles = most.min(plan.tiles - first);
        let grid = Grid { threadgroups: [outputs, tiles, 1], threads, work: work(tiles) };
        let tables = groups.as_ref().map(|(table, order)| (table.slice(first * TILE_BYTES, tiles * TILE_BYTES), order));
        // Without groups these two are not read. Metal's own checks want what would be read at once to be there, and to begin at a multiple
        // of its 16 bytes, as a tensor does and a weight in a mapped file need not.
        let (table, order) = tables.as_ref().map_or((x.memory(), x.memory()), |(table, order)| (table, order));
        let [table, order] = [table, order].map(Arg::Read);
        let [weights, ..] = &weight.packed().parts;
        // Without a bias this is not read.
        let bias = Arg::Constant(bias.map_or(weights, |bias| bias.memory()));
        let (name, x, ids) = (vllm_apple_ops::grouped_matmul::NAME, Arg::read(x), Arg::read(ids));
        let (columns, out_cols) = (region::from_column(out.memory(), first_col), out.cols() as u32);
        let (out, out_cols) = (Arg::Write(&columns), Arg::bytes(&out_cols));
        match &weight.packed().offsets {
            Some(offsets) => {
                let args = [x, Arg::Constant(weights), Arg::Constant(offsets), ids, table, order, out, bias, out_cols];
                recorder.dispatch(name, kernel, constants, args, grid)?;
            }
            None => {
                let args = [x, Arg::Constant(weights), ids, table, order, out, bias, out_cols];
                recorder.dispatch(name, kernel, constants, args, grid)?;
            }
        }
    }
    Ok(())
}

/// Records the sorting of pairs: the table of tiles, and the pairs' order. Those of the layer's product before serve, too.
fn group_pairs<G: Gpu>(
    recorder: &mut Recorder<G>,
    ids: &Region<G>,
    pairs: usize,
    experts: usize,
    plan: &Plan,
) -> Result<(Region<G>, Region<G>)> {
    if experts > MAX_EXPERTS {
        let reason = format!("{experts} experts, {MAX_EXPERTS} at most work");
        return Err(recorder.unsupported(vllm_apple_ops::grouped_matmul::NAME, reason));
    }
    let scratch = recorder.scratch(scratch::EXPERT_GROUPS, plan.scratch_bytes(pairs))?;
    let table = scratch.slice(0, plan.tiles * TILE_BYTES);
    let order = scratch.slice(plan.tiles * TILE_BYTES, pairs * size_of::<u32>());
    let params = GroupParams {
        pairs: pairs as u32,
        experts: experts as u32,
        tile_rows: plan.tile_rows as u32,
        tiles: plan.tiles as u32,
    };
    let held = Held::new(scratch::EXPERT_GROUPS, ids, bytemuck::cast(params));
    if recorder.holds(&held) {
        return Ok((table, order));
    }
    let args = [Arg::Read(ids), Arg::Write(&table), Arg::Write(&order), Arg::bytes(&params)];
    // A simdgroup per expert, or for every so many: their number changes nothing in the result. Every expert's reads all pairs, twice.
    let work = Work::bytes(pairs, 8 * experts);
    let grid = Grid { threadgroups: [1, 1, 1], threads: (experts * 32).min(512), work };
    recorder.dispatch(vllm_apple_ops::grouped_matmul::NAME, GROUP_PAIRS, &[], args, grid)?;
    recorder.hold(held);
    Ok((table, order))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_choice_of_experts_needs_more_tiles() {
        for (tokens, top_k, experts) in [(1, 8, 128), (2, 2, 2), (7, 2, 8), (50, 4, 6), (3, 8, 60), (500, 8, 16)] {
            let pairs = tokens * top_k;
            for &height in matmul::from_height(&HEIGHTS, best_height(tokens, pairs, experts)) {
                let plan = Plan::new(tokens, pairs, experts, height);
                // The worst choice: as many experts as there can be, with one pair each, and the rest in one.
                let others = (experts - 1).min(pairs - 1);
                let needed = if plan.grouped { others + (pairs - others).div_ceil(plan.tile_rows) } else { pairs };
                assert!(needed <= plan.tiles, "{tokens} x {top_k} of {experts} in tiles of {height}");
            }
        }
    }
}
