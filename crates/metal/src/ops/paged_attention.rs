//! [`PagedAttention`] on a GPU: a threadgroup per tile of columns, or one per tile and split where there are few tiles. The result is
//! the same to the bit.

use bytemuck::NoUninit;
use vllm_apple_ops::{DType, KvSpec, PagedAttention, Result, StepSize};

use super::scratch;
use crate::gpu::{Gpu, Kernel, Value, Work};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::pipelines::kernels_by_dtype;
use crate::recorder::region::Region;

/// The kernel of heads of up to so many elements.
macro_rules! attention_kernel {
    ($name:ident, $file:literal, $function:literal) => {
        kernels_by_dtype!(
            $name,
            ["matrix.metal", "attention_state.metal", "attention_chunk.metal", "paged_attention.metal"],
            $file,
            $function
        );
    };
}
attention_kernel!(heads_of_64, "paged_attention_64.metal", "paged_attention_64");
attention_kernel!(heads_of_128, "paged_attention_128.metal", "paged_attention_128");
attention_kernel!(heads_of_256, "paged_attention_256.metal", "paged_attention_256");
kernels_by_dtype!(
    combine_kernel,
    ["attention_state.metal"],
    "paged_attention_combine.metal",
    "paged_attention_combine"
);

/// Columns of a tile: pairs of a token and a query head of one key head.
const COLUMNS: usize = 8;
/// Positions of a split: the kernels' `SPLIT`.
const SPLIT: usize = 512;
/// Threads of a threadgroup: the kernels' `SIMDGROUPS`.
const THREADS: usize = 128;
/// More positions than any sequence has; the kernels' differences of positions do not wrap to below it.
const NO_WINDOW: u32 = 1 << 31;
/// As many threadgroups keep a device busy, a few on each core of the largest: from here on none is needed per split. Computing splits
/// apart costs 3% more memory traffic and another dispatch.
const ENOUGH_THREADGROUPS: usize = 256;

/// The kernels' `AttentionParams`.
#[derive(Debug, Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    num_requests: u32,
    tiles_per_request: u32,
    block_table_stride: u32,
    query_stride: u32,
    num_rows: u32,
    num_splits: u32,
    first_tile: u32,
    window: u32,
    scale: f32,
}

/// How the work of a step is divided: by its sizes alone, whatever the tokens are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    /// Tiles of each request; 0 if they have different numbers of them.
    tiles_per_request: usize,
    /// Tiles of a key head, at least as many as there are.
    tiles: usize,
    /// Splits of the longest sequence if each is computed by itself, else 1.
    splits: usize,
}

impl Plan {
    fn new(
        [num_requests, num_tokens]: [usize; 2],
        max_query_len: usize,
        max_seq_len: usize,
        [group, kv_heads]: [usize; 2],
    ) -> Self {
        let one_each = max_query_len == 1 && num_tokens == num_requests;
        let tiles_per_request = if one_each { group.div_ceil(COLUMNS) } else { 0 };
        let tiles = match tiles_per_request {
            // Request `r` begins at tile `query_start_loc[r] * group / COLUMNS + r`.
            0 => num_tokens * group / COLUMNS + num_requests,
            n => n * num_requests,
        };
        let splits = if tiles * kv_heads < ENOUGH_THREADGROUPS { max_seq_len.div_ceil(SPLIT) } else { 1 };
        Self { tiles_per_request, tiles, splits }
    }
}

/// Bytes of the splits' states: weighted values, and a largest score and a sum.
fn partial_bytes(rows: usize, splits: usize, head_dim: usize) -> usize {
    rows.saturating_mul(splits).saturating_mul((head_dim + 2) * size_of::<f32>())
}

/// Bytes of `scratch::ATTENTION_PARTIALS` that a step needs at most.
pub(crate) fn scratch_bytes(step: &StepSize) -> usize {
    let splits = step.max_seq_len.div_ceil(SPLIT);
    if splits < 2 {
        return 0;
    }
    // With more rows there are enough tiles.
    let rows = step.num_tokens.saturating_mul(step.model.num_heads).min(ENOUGH_THREADGROUPS * COLUMNS);
    partial_bytes(rows, splits, step.model.head_dim)
}

/// Whether the kernels can read such a cache.
///
/// # Errors
/// Why not, and what would work.
pub(crate) fn check(&KvSpec { block_size, head_dim, .. }: &KvSpec) -> std::result::Result<(), String> {
    if !block_size.is_multiple_of(16) {
        return Err(format!("blocks of {block_size} tokens; multiples of 16 work, such as `block_size` 16"));
    }
    if !head_dim.is_multiple_of(8) || head_dim > 256 {
        return Err(format!("heads of {head_dim} elements; multiples of 8 up to 256 work"));
    }
    Ok(())
}

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &PagedAttention<'_, Region<G>>) -> Result<()> {
    let KvSpec { dtype, block_size, num_kv_heads, head_dim, .. } = op.cache.spec;
    check(&op.cache.spec).map_err(|reason| recorder.unsupported(vllm_apple_ops::paged_attention::NAME, reason))?;
    let s = op.sequences;
    let group = op.num_heads / num_kv_heads;
    let plan = Plan::new([s.num_requests, s.num_tokens], s.max_query_len, s.max_seq_len, [group, num_kv_heads]);
    let num_rows = s.num_tokens * op.num_heads;
    let params = Params {
        num_requests: s.num_requests as u32,
        tiles_per_request: plan.tiles_per_request as u32,
        block_table_stride: s.block_table_stride as u32,
        query_stride: op.qkv.cols() as u32,
        num_rows: num_rows as u32,
        num_splits: plan.splits as u32,
        first_tile: 0,
        window: op.window.map_or(NO_WINDOW, |w| u32::try_from(w).unwrap_or(NO_WINDOW).min(NO_WINDOW)),
        scale: op.scale,
    };
    let (rows_grid, threads) = Grid::of_rows(s.num_tokens, op.num_heads * (head_dim / 4), 16 * (plan.splits + 1));
    let sizes = [head_dim, group, num_kv_heads, block_size].map(|v| Value::U32(v as u32));
    let partial = Value::Bool(plan.splits > 1);
    let out = Value::U32(match op.out.dtype() {
        DType::F16 => 1,
        DType::BF16 => 2,
        // The op's check leaves no other.
        DType::F32 | DType::U32 => 0,
    });
    let constants = [sizes[0], sizes[1], sizes[2], sizes[3], partial, threads, out];
    let kernel = match head_dim {
        0..=64 => heads_of_64(dtype),
        65..=128 => heads_of_128(dtype),
        _ => heads_of_256(dtype),
    };
    if plan.splits == 1 {
        return attend(recorder, op, kernel, &constants, op.out.memory(), params, plan);
    }
    let partials = recorder.scratch(scratch::ATTENTION_PARTIALS, partial_bytes(num_rows, plan.splits, head_dim))?;
    attend(recorder, op, kernel, &constants, &partials, params, plan)?;
    recorder.dispatch(
        vllm_apple_ops::paged_attention::NAME,
        combine_kernel(op.out.dtype()),
        &constants,
        [
            Arg::Read(&partials),
            Arg::read(&s.query_start_loc),
            Arg::read(&s.seq_lens),
            Arg::write(op.out),
            Arg::bytes(&params),
        ],
        rows_grid,
    )
}

/// Records the tiles, in as many pieces as it takes.
fn attend<G: Gpu>(
    recorder: &mut Recorder<G>,
    op: &PagedAttention<'_, Region<G>>,
    kernel: Kernel,
    constants: &[Value],
    out: &Region<G>,
    params: Params,
    plan: Plan,
) -> Result<()> {
    let s = op.sequences;
    let KvSpec { dtype, num_kv_heads, head_dim, .. } = op.cache.spec;
    let seen = op.window.map_or(s.max_seq_len, |window| s.max_seq_len.min(window + s.max_query_len));
    // Of a tile in all key heads. Where many tiles read the same keys and values, these come from the cache.
    let elements = (2 * seen * num_kv_heads * head_dim) as f64;
    let bytes = if plan.tiles_per_request > 0 { elements * dtype.size() as f64 } else { 0.0 };
    let tile = Work { flops: 2.0 * COLUMNS as f64 * elements, bytes };
    let most = recorder.pace.pieces(tile);
    for first in (0..plan.tiles).step_by(most) {
        let tiles = most.min(plan.tiles - first);
        let work = Work { flops: tiles as f64 * tile.flops, bytes: tiles as f64 * tile.bytes };
        recorder.dispatch(
            vllm_apple_ops::paged_attention::NAME,
            kernel,
            constants,
            [
                Arg::read(op.qkv),
                Arg::Read(&op.cache.keys),
                Arg::Read(&op.cache.values),
                Arg::read(&s.query_start_loc),
                Arg::read(&s.seq_lens),
                Arg::read(&s.block_table),
                Arg::Write(out),
                Arg::bytes(&Params { first_tile: first as u32, ..params }),
            ],
            Grid { threadgroups: [tiles, num_kv_heads, plan.splits], threads: THREADS, work },
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_tiles_get_a_threadgroup_per_split() {
        let plan = |tiles_per_request, tiles, splits| Plan { tiles_per_request, tiles, splits };
        // A decode of one request, a chunk of 9 tokens beside another request, and a chunk of 300.
        assert_eq!(Plan::new([1, 1], 1, 1590, [7, 1]), plan(1, 1, 4));
        assert_eq!(Plan::new([2, 10], 9, 1590, [7, 1]), plan(0, 10, 4));
        assert_eq!(Plan::new([1, 300], 300, 1590, [7, 1]), plan(0, 263, 1));
        assert_eq!(Plan::new([1, 1], 1, 512, [7, 1]), plan(1, 1, 1), "one split is all");
        assert_eq!(Plan::new([32, 32], 1, 4096, [16, 4]), plan(2, 64, 1), "256 threadgroups are enough");
    }
}
