//! [`Matmul`] on a GPU: tiles of 8x8 matrices, few or many rows high. How a sum is accumulated does not depend on the tile.

use vllm_apple_ops::{DType, Matmul, Result, Tensor, Weight};

use crate::gpu::{Gpu, Kernel, Value, Work};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::pipelines::kernels_by_dtype;
use crate::recorder::region::{self, Region};
use crate::weight::{PackedWeight, load_bytes};

kernels_by_dtype!(rows8, ["weight.metal", "matrix.metal", "matmul_tile.metal"], "matmul.metal", "matmul_8");
kernels_by_dtype!(rows16, ["weight.metal", "matrix.metal", "matmul_tile.metal"], "matmul.metal", "matmul_16");
kernels_by_dtype!(rows32, ["weight.metal", "matrix.metal", "matmul_tile.metal"], "matmul.metal", "matmul_32");
kernels_by_dtype!(rows64, ["weight.metal", "matrix.metal", "matmul_tile.metal"], "matmul.metal", "matmul_64");

/// Slices of K at most: `MAX_SLICES` of `matmul_tile.metal`, a simdgroup each where there are few rows.
const MAX_SLICES: usize = 8;
/// Outputs of a tile of few rows.
pub(crate) const FEW_OUTPUTS: usize = 16;
/// Outputs and rows of a tile of many rows: `TILE` of `matmul_tile.metal`.
pub(crate) const TILE: usize = 64;
/// Threads of a tile of many rows: `TILE_THREADS` of `matmul_tile.metal`.
pub(crate) const TILE_THREADS: usize = 128;
/// Tiles of 64 rows that keep a large device busy: fewer have too few loads on their way. See docs/PERFORMANCE.md.
const ENOUGH_TILES: usize = 128;
/// Row tiles that follow each other in the grid before the next outputs.
const NEIGHBOURS: usize = 8;

/// Elements of K in a slice, from `k` and the type alone: the order of a sum follows from it. A multiple of the 16 loads of 16
/// bytes that a simdgroup has in flight for a row.
fn slice(k: usize, dtype: DType) -> usize {
    let unit = 16 * 16 / dtype.size();
    k.div_ceil(unit).div_ceil(MAX_SLICES) * unit
}

/// Threads of a tile of few rows: a simdgroup per slice.
pub(crate) fn few_threads(k: usize, dtype: DType) -> usize {
    32 * k.div_ceil(slice(k, dtype))
}

/// What becomes of outputs: `GATED` of `matmul_tile.metal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gated {
    No,
    Silu,
    GeluTanh,
}

/// `[[function_constant(0)]]` to `[[function_constant(8)]]` of `matmul_tile.metal`.
pub(crate) fn constants<G: Gpu>(weight: &Weight<PackedWeight<G>>, has_bias: bool, gated: Gated) -> [Value; 9] {
    let (k, dtype) = (weight.cols(), weight.packed().dtype);
    let [c0, c1, c2, c3, c4] = PackedWeight::constants(weight);
    let x_load = load_bytes(k, dtype, 8);
    let [slice, x_load, gated] = [slice(k, dtype), x_load, gated as usize].map(|v| Value::U32(v as u32));
    [c0, c1, c2, c3, c4, slice, x_load, Value::Bool(has_bias), gated]
}

/// What the product of so many rows does.
pub(crate) fn work(rows: usize, n: usize, k: usize, dtype: DType) -> Work {
    let bytes = (n + rows) * k * dtype.size() + rows * n * size_of::<f32>();
    Work { flops: 2.0 * rows as f64 * n as f64 * k as f64, bytes: bytes as f64 }
}

/// Rows that a product's dispatch may have: whole tiles, and a result does not depend on the tile.
pub(crate) fn most_rows<G: Gpu>(recorder: &Recorder<G>, n: usize, k: usize) -> usize {
    let of_eight = Work { flops: 2.0 * 8.0 * n as f64 * k as f64, bytes: 0.0 };
    match recorder.pace.pieces(of_eight) {
        1 => 8,
        2..=3 => 16,
        4..=7 => 32,
        eights => eights / 8 * TILE,
    }
}

/// The kernel of few rows for so many, and the height of its tiles.
pub(crate) fn few_rows(rows: usize, n: usize, dtype: DType) -> Option<(Kernel, usize)> {
    match rows {
        0..=8 => Some((rows8(dtype), 8)),
        9..=16 => Some((rows16(dtype), 16)),
        17..=32 => Some((rows32(dtype), 32)),
        33..=64 if n.div_ceil(TILE) < ENOUGH_TILES => Some((rows32(dtype), 32)),
        _ => None,
    }
}

/// The kernel for so many rows, and its grid.
fn plan(rows: usize, n: usize, k: usize, dtype: DType) -> (Kernel, Grid) {
    let work = work(rows, n, k, dtype);
    match few_rows(rows, n, dtype) {
        Some((kernel, height)) => {
            let threadgroups = [rows.div_ceil(height), n.div_ceil(FEW_OUTPUTS), 1];
            (kernel, Grid { threadgroups, threads: few_threads(k, dtype), work })
        }
        None => {
            let tiles = rows.div_ceil(TILE);
            let threadgroups = [tiles.min(NEIGHBOURS), n.div_ceil(TILE), tiles.div_ceil(NEIGHBOURS)];
            (rows64(dtype), Grid { threadgroups, threads: TILE_THREADS, work })
        }
    }
}

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &Matmul<'_, Region<G>, PackedWeight<G>>) -> Result<()> {
    encode(recorder, op.rows, op.x, op.weight, op.bias, op.out)
}

/// Records the product of `rows` rows, in as many pieces as it takes.
pub(crate) fn encode<G: Gpu>(
    recorder: &mut Recorder<G>,
    rows: usize,
    x: &Tensor<Region<G>>,
    weight: &Weight<PackedWeight<G>>,
    bias: Option<&Tensor<Region<G>>>,
    out: &Tensor<Region<G>>,
) -> Result<()> {
    let most = most_rows(recorder, weight.rows(), weight.cols());
    if rows <= most {
        return encode_piece(recorder, rows, x.memory(), weight, bias, out.memory());
    }
    (0..rows).step_by(most).try_for_each(|first| {
        let rows = most.min(rows - first);
        let [x, out] = [x, out].map(|tensor| region::rows(tensor, first, rows));
        encode_piece(recorder, rows, &x, weight, bias, &out)
    })
}

fn encode_piece<G: Gpu>(
    recorder: &mut Recorder<G>,
    rows: usize,
    x: &Region<G>,
    weight: &Weight<PackedWeight<G>>,
    bias: Option<&Tensor<Region<G>>>,
    out: &Region<G>,
) -> Result<()> {
    if rows == 0 {
        return Ok(());
    }
    let dtype = weight.packed().dtype;
    let (kernel, grid) = plan(rows, weight.rows(), weight.cols(), dtype);
    let [part0, part1, part2] = &weight.packed().parts;
    let count = rows as u32;
    recorder.dispatch(
        vllm_apple_ops::matmul::NAME,
        kernel,
        &constants(weight, bias.is_some(), Gated::No),
        [
            Arg::Read(x),
            Arg::Constant(part0),
            Arg::Constant(part1),
            Arg::Constant(part2),
            // Without a bias this is not read.
            bias.map_or(Arg::Constant(part0), |bias| Arg::Constant(bias.memory())),
            Arg::Write(out),
            Arg::bytes(&count),
        ],
        grid,
    )
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
                let slice = slice(k, dtype);
                let slices = few_threads(k, dtype) / 32;
                assert!(slices <= MAX_SLICES && slices * slice >= k && (slices - 1) * slice < k, "{dtype} {k}");
                // A simdgroup's longest step through K, and a stage of the tile for many rows.
                let [step, stage] = [4, 1].map(|blocks| blocks * 4 * 16 / dtype.size());
                assert!(slice.is_multiple_of(step) && slice.is_multiple_of(stage), "{dtype} {k}");
            }
        }
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
