//! [`Matmul`] on a GPU: tiles of 8x8 matrices, few or many rows high. How a sum is accumulated does not depend on the tile.

use bytemuck::{Pod, Zeroable};
use vllm_apple_ops::{Activation, DType, Matmul, Result, Tensor, Weight};

use crate::gpu::{Gpu, Kernel, Value, Work};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::pipelines::kernels_by_dtype;
use crate::recorder::region::{self, Region};
use crate::weight::codes::CHUNK;
use crate::weight::{PackedWeight, load_bytes};

kernels_by_dtype!(
    rows8,
    ["weight.metal", "matrix.metal", "tile.metal", "matmul_tile.metal"],
    "matmul.metal",
    "matmul_8"
);
kernels_by_dtype!(
    rows16,
    ["weight.metal", "matrix.metal", "tile.metal", "matmul_tile.metal"],
    "matmul.metal",
    "matmul_16"
);
kernels_by_dtype!(
    rows32,
    ["weight.metal", "matrix.metal", "tile.metal", "matmul_tile.metal"],
    "matmul.metal",
    "matmul_32"
);
kernels_by_dtype!(
    rows64,
    ["weight.metal", "matrix.metal", "tile.metal", "matmul_tile.metal"],
    "matmul.metal",
    "matmul_64"
);

/// The same with weights of codes.
mod codes {
    use crate::recorder::pipelines::kernels_by_dtype;

    macro_rules! kernel {
        ($name:ident, $function:literal) => {
            kernels_by_dtype!(
                pub(super) $name,
                ["weight.metal", "matrix.metal", "tile.metal", "codes.metal", "codes_tile.metal"],
                "codes_matmul.metal",
                $function
            );
        };
    }
    kernel!(rows8, "codes_matmul_8");
    kernel!(rows16, "codes_matmul_16");
    kernel!(rows32, "codes_matmul_32");
    kernel!(rows64, "codes_matmul_64");
}

/// Slices of K at most: `MAX_SLICES` of `tile.metal`, a simdgroup each where there are few rows.
const MAX_SLICES: usize = 8;
/// Outputs of a tile of few rows.
pub(crate) const FEW_OUTPUTS: usize = 16;
/// Outputs and rows of a tile of many rows: `TILE` of `tile.metal`.
pub(crate) const TILE: usize = 64;
/// Threads of a tile of many rows: `TILE_THREADS` of `tile.metal`.
pub(crate) const TILE_THREADS: usize = 128;
/// Tiles of 64 rows that keep a large device busy: fewer have too few loads on their way. See docs/PERFORMANCE.md.
const ENOUGH_TILES: usize = 128;
/// Row tiles that follow each other in the grid before the next outputs.
const NEIGHBOURS: usize = 8;
/// Heights of tiles, the highest first. Where the device refuses one, as Apple's compiler does what takes too many registers, the next has the
/// same bits: the slices of K and the order within them are the same (`tile.metal`).
const HEIGHTS: [usize; 4] = [TILE, 32, 16, 8];
/// Those of tiles of few rows.
pub(crate) const FEW_HEIGHTS: [usize; 3] = [32, 16, 8];

/// Elements of K in a slice, from `k` and what a slice must be a multiple of: the order of a sum follows from it.
fn slice(k: usize, unit: usize) -> usize {
    k.div_ceil(unit).div_ceil(MAX_SLICES) * unit
}

/// What the slices of a weight are a multiple of: of rows, the 16 loads of 16 bytes that a simdgroup has in flight for a row; of codes, a
/// chunk.
fn slice_unit<G: Gpu>(weight: &Weight<PackedWeight<G>>) -> usize {
    if weight.packed().codes().is_some() { CHUNK } else { 16 * 16 / weight.packed().dtype.size() }
}

/// Threads of a tile of few rows: a simdgroup per slice.
pub(crate) fn few_threads<G: Gpu>(weight: &Weight<PackedWeight<G>>) -> usize {
    let k = weight.cols();
    32 * k.div_ceil(slice(k, slice_unit(weight)))
}

/// What becomes of outputs: `GATED` of `tile.metal`, `ACTIVATION` of `gated_activation.metal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gated {
    No,
    Silu,
    GeluTanh,
    ClampedSwiglu,
}

impl From<Activation> for Gated {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Silu => Self::Silu,
            Activation::GeluTanh => Self::GeluTanh,
            Activation::ClampedSwiglu => Self::ClampedSwiglu,
        }
    }
}

/// `[[function_constant(0)]]` to `[[function_constant(8)]]` of `tile.metal`, the two of `pairs.metal`, and those of `codes.metal`; what a
/// kernel does not have is not looked at.
pub(crate) fn constants<G: Gpu>(
    weight: &Weight<PackedWeight<G>>,
    has_bias: bool,
    gated: Gated,
    [c9, c10]: [Value; 2],
) -> [Value; 17] {
    let (k, dtype) = (weight.cols(), weight.packed().dtype);
    let [c0, c1, c2, c3, c4] = PackedWeight::constants(weight);
    let [c11, c12, c13, c14, c15, c16] = weight.packed().code_constants();
    let slice = slice(k, slice_unit(weight));
    let [slice, x_load, gated] = [slice, load_bytes(k, dtype, 8), gated as usize].map(|v| Value::U32(v as u32));
    let has_bias = Value::Bool(has_bias);
    [c0, c1, c2, c3, c4, slice, x_load, has_bias, gated, c9, c10, c11, c12, c13, c14, c15, c16]
}

/// Of what is no product of pairs.
pub(crate) const NO_PAIRS: [Value; 2] = [Value::U32(1), Value::Bool(false)];

/// Rows of a matrix that is multiplied.
const MATRIX: usize = 8;

/// What the product of so many rows does. Matrices are multiplied whole: of weights with few bits that can take longer than to read them.
pub(crate) fn work<G: Gpu>(rows: usize, weight: &Weight<PackedWeight<G>>) -> Work {
    let (n, k) = (weight.rows(), weight.cols());
    let bytes = PackedWeight::bytes(weight) + rows * k * weight.packed().dtype.size() + rows * n * size_of::<f32>();
    Work { flops: 2.0 * rows.next_multiple_of(MATRIX) as f64 * n as f64 * k as f64, bytes: bytes as f64 }
}

/// Rows that a dispatch may have: so many tiles, two at least, that those of the same outputs take no longer than a dispatch may.
fn most_rows<G: Gpu>(recorder: &Recorder<G>, k: usize) -> usize {
    let two = Work { flops: 2.0 * (2 * TILE * TILE * k) as f64, bytes: 0.0 };
    recorder.pace.pieces(two).saturating_mul(2 * TILE)
}

/// The height of the tiles of few rows for so many.
pub(crate) fn few_rows(rows: usize, n: usize) -> Option<usize> {
    match rows {
        0..=8 => Some(8),
        9..=16 => Some(16),
        17..=32 => Some(32),
        33..=64 if n.div_ceil(TILE) < ENOUGH_TILES => Some(32),
        _ => None,
    }
}

/// The kernel of tiles of this height.
pub(crate) fn kernel<G: Gpu>(weight: &Weight<PackedWeight<G>>, height: usize) -> Kernel {
    let of_codes = weight.packed().codes().is_some();
    let of_dtype = match (height, of_codes) {
        (8, false) => rows8,
        (8, true) => codes::rows8,
        (16, false) => rows16,
        (16, true) => codes::rows16,
        (32, false) => rows32,
        (32, true) => codes::rows32,
        (_, false) => rows64,
        (_, true) => codes::rows64,
    };
    of_dtype(weight.packed().dtype)
}

/// Threads of a tile of this height.
pub(crate) fn threads<G: Gpu>(weight: &Weight<PackedWeight<G>>, height: usize) -> usize {
    if height == TILE { TILE_THREADS } else { few_threads(weight) }
}

/// Outputs of a tile of this height.
pub(crate) fn outputs(height: usize) -> usize {
    if height == TILE { TILE } else { FEW_OUTPUTS }
}

/// The grid of so many rows in tiles of this height.
fn grid<G: Gpu>(rows: usize, weight: &Weight<PackedWeight<G>>, height: usize) -> Grid {
    let (tiles, of_outputs) = (rows.div_ceil(height), weight.rows().div_ceil(outputs(height)));
    let threadgroups = match height {
        TILE => [tiles.min(NEIGHBOURS), of_outputs, tiles.div_ceil(NEIGHBOURS)],
        _ => [tiles, of_outputs, 1],
    };
    Grid { threadgroups, threads: threads(weight, height), work: work(rows, weight) }
}

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &Matmul<'_, Region<G>, PackedWeight<G>>) -> Result<()> {
    encode(recorder, op.rows, op.x, op.weight, op.bias, op.out, op.first)
}

/// Records the product of `rows` rows to columns of `out` from `first_col` on, in as many pieces as it takes.
pub(crate) fn encode<G: Gpu>(
    recorder: &mut Recorder<G>,
    rows: usize,
    x: &Tensor<Region<G>>,
    weight: &Weight<PackedWeight<G>>,
    bias: Option<&Tensor<Region<G>>>,
    out: &Tensor<Region<G>>,
    first_col: usize,
) -> Result<()> {
    let most = most_rows(recorder, weight.cols());
    (0..rows).step_by(most).try_for_each(|first| {
        let rows = most.min(rows - first);
        let [x, memory] = [x, out].map(|tensor| region::rows(tensor, first, rows));
        let memory = region::from_column(&memory, first_col);
        encode_rows(recorder, &Product { rows, x: &x, weight, bias, out: &memory, out_cols: out.cols() })
    })
}

/// Records the product of as many rows as a dispatch may have.
fn encode_rows<G: Gpu>(recorder: &mut Recorder<G>, product: &Product<'_, G>) -> Result<()> {
    let &Product { rows, weight, bias, .. } = product;
    let heights = from_height(&HEIGHTS, few_rows(rows, weight.rows()).unwrap_or(TILE));
    let constants = constants(weight, bias.is_some(), Gated::No, NO_PAIRS);
    let name = vllm_apple_ops::matmul::NAME;
    let variant = |height| (kernel(weight, height), threads(weight, height));
    recorder.first_of(name, &constants, heights, variant, |recorder, height| {
        let (kernel, grid) = (kernel(weight, height), grid(rows, weight, height));
        dispatch(recorder, name, kernel, &constants, product, grid, outputs(height))
    })
}

/// The heights from this one down.
pub(crate) fn from_height(heights: &[usize], best: usize) -> &[usize] {
    let first = heights.iter().position(|&height| height == best).expect("tiles have one of the heights");
    &heights[first..]
}

/// `MatmulParams` of `tile.metal`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    first_output: u32,
    out_cols: u32,
}

/// Arguments of a product's kernel.
pub(crate) struct Product<'a, G: Gpu> {
    pub rows: usize,
    pub x: &'a Region<G>,
    pub weight: &'a Weight<PackedWeight<G>>,
    pub bias: Option<&'a Tensor<Region<G>>>,
    pub out: &'a Region<G>,
    /// Elements from a row of `out` to the next.
    pub out_cols: usize,
}

/// Records a product whose tiles have so many outputs, in as many dispatches as it takes. It is divided by outputs, which are the grid's y, so
/// that weights are read once.
pub(crate) fn dispatch<G: Gpu>(
    recorder: &mut Recorder<G>,
    op: &'static str,
    kernel: Kernel,
    constants: &[Value],
    product: &Product<'_, G>,
    grid: Grid,
    outputs: usize,
) -> Result<()> {
    let [row_tiles, tiles, next_row_tiles] = grid.threadgroups;
    let most = (tiles / recorder.pace.dispatches(grid.work)).max(1);
    (0..tiles).step_by(most).try_for_each(|first| {
        let some = most.min(tiles - first);
        let work = grid.work.times(some as f64 / tiles as f64);
        let grid = Grid { threadgroups: [row_tiles, some, next_row_tiles], work, ..grid };
        dispatch_outputs(recorder, op, kernel, constants, product, grid, first * outputs)
    })
}

/// Records the outputs of a product from `first_output` on.
fn dispatch_outputs<G: Gpu>(
    recorder: &mut Recorder<G>,
    op: &'static str,
    kernel: Kernel,
    constants: &[Value],
    &Product { rows, x, weight, bias, out, out_cols }: &Product<'_, G>,
    grid: Grid,
    first_output: usize,
) -> Result<()> {
    let [part0, part1, part2] = &weight.packed().parts;
    let (x, out) = (Arg::Read(x), Arg::Write(out));
    let params = Params { rows: rows as u32, first_output: first_output as u32, out_cols: out_cols as u32 };
    // Without a bias this is not read.
    let bias = bias.map_or(Arg::Constant(part0), |bias| Arg::Constant(bias.memory()));
    match weight.packed().codes() {
        None => {
            let parts = [part0, part1, part2].map(Arg::Constant);
            let [part0, part1, part2] = parts;
            let args = [x, part0, part1, part2, bias, out, Arg::bytes(&params)];
            recorder.dispatch(op, kernel, constants, args, grid)
        }
        Some(_) => {
            let args = [x, Arg::Constant(part0), bias, out, Arg::bytes(&params)];
            recorder.dispatch(op, kernel, constants, args, grid)
        }
    }
}

/// Whether the lanes of a simdgroup hold 8x8 matrices as `matrix.metal` says: the kernels take that for granted.
pub(crate) fn matrix_layout_is_known<G: Gpu>(recorder: &mut Recorder<G>) -> Result<bool> {
    const SIDE: usize = 8;
    let kernel = Kernel { function: "matrix_layout", ..rows8(DType::F32) };
    let matrix: Vec<f32> = (1..=SIDE * SIDE).map(|i| i as f32).collect();
    let mut loaded = recorder.tensor(DType::F32, SIDE, SIDE)?;
    recorder.write(&mut loaded, bytemuck::cast_slice(&matrix));
    let out = recorder.tensor(DType::F32, SIDE, SIDE)?;
    // It uses none of the file's constants.
    let [none, no] = [Value::U32(0), Value::Bool(false)];
    let constants = [none, none, none, none, none, none, none, no, none];
    recorder.run(|recorder| {
        let grid = Grid { threadgroups: [1, 1, 1], threads: 32, work: Work::default() };
        let args = [Arg::read(&loaded), Arg::write(&out)];
        recorder.dispatch(vllm_apple_ops::matmul::NAME, kernel, &constants, args, grid)
    })?;
    Ok(recorder.read(&out) == recorder.read(&loaded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_k_and_fit_every_tile() {
        for dtype in DType::FLOATS {
            for k in [1, 7, 64, 127, 128, 129, 896, 1024, 1025, 3584, 4864, 18944, 100_003] {
                let slice = slice(k, 16 * 16 / dtype.size());
                let slices = k.div_ceil(slice);
                assert!(slices <= MAX_SLICES && slices * slice >= k && (slices - 1) * slice < k, "{dtype} {k}");
                // A simdgroup's longest step through K, and a stage of the tile for many rows.
                let [step, stage] = [4, 1].map(|blocks| blocks * 4 * 16 / dtype.size());
                assert!(slice.is_multiple_of(step) && slice.is_multiple_of(stage), "{dtype} {k}");
            }
        }
        // Of codes: chunks.
        assert_eq!([90, 128, 896, 1025, 4864].map(|k| slice(k, CHUNK)), [128, 128, 128, 256, 640]);
    }

    #[test]
    fn the_software_device_keeps_matrices_as_the_kernels_take_them() {
        let gpu = crate::gpu::software::SoftwareGpu::checked().unwrap();
        let mut recorder = Recorder::new(gpu, None);
        assert!(matrix_layout_is_known(&mut recorder).unwrap());
        // A device that writes nothing.
        let gpu = crate::gpu::fake::FakeGpu::recording();
        let mut recorder = Recorder::new(gpu, None);
        assert!(!matrix_layout_is_known(&mut recorder).unwrap());
    }
}
