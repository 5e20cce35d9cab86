//! [`PagedAttention`] on a GPU: a threadgroup per tile of 8 or 16 columns, or one per tile and split where there are few tiles or one
//! sequence is much longer than the others. The result is the same to the bit.

use bytemuck::NoUninit;
use vllm_apple_ops::{DType, KvSpec, PagedAttention, Result, StepSize};

use super::scratch;
use crate::gpu::{Gpu, Kernel, Value, Work};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::pace::Pace;
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
attention_kernel!(wide_heads_of_64, "paged_attention_64.metal", "paged_attention_wide_64");
attention_kernel!(wide_heads_of_128, "paged_attention_128.metal", "paged_attention_wide_128");
attention_kernel!(heads_of_256, "paged_attention_256.metal", "paged_attention_256");
kernels_by_dtype!(
    combine_kernel,
    ["attention_state.metal"],
    "paged_attention_combine.metal",
    "paged_attention_combine"
);

/// Columns of a tile: pairs of a token and a query head of one key head. Those of a wide one share each key and value that is loaded.
const COLUMNS: usize = 8;
const WIDE_COLUMNS: usize = 16;
const LARGEST_HEAD_DIM: usize = 256;
/// Heads of more elements have no wide tiles: the sums of 16 columns would be all of a lane's registers.
const WIDE_HEAD_DIM: usize = 128;
/// Positions of a split: the kernels' `SPLIT`.
pub(crate) const SPLIT: usize = 512;
/// Threads of a threadgroup: the kernels' `SIMDGROUPS`.
const THREADS: usize = 128;
/// More positions than any sequence has; the kernels' differences of positions do not wrap to below it.
const NO_WINDOW: u32 = 1 << 31;
/// As many threadgroups keep a device busy, a few on each core of the largest: from here on none is needed per split. Computing splits
/// apart costs 3% more memory traffic and another dispatch.
const ENOUGH_THREADGROUPS: usize = 256;
/// Rows of splits' states at most: with more there are enough tiles.
const MOST_SPLIT_ROWS: usize = ENOUGH_THREADGROUPS * COLUMNS;
/// A sequence that is so many times longer than the mean would be walked alone, long after the others: its splits are computed apart.
const LONG_SEQUENCE: usize = 4;
/// Splits that a threadgroup walks at most before another dispatch goes on: 16384 positions, about a millisecond. At the end of a dispatch
/// most cores wait for the last threadgroups.
const LONGEST_WALK: usize = 32;

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
    first_split: u32,
    end_split: u32,
    window: u32,
    scale: f32,
}

/// How the work of a step is divided: by its sizes alone, whatever the tokens are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    /// Columns of a tile.
    columns: usize,
    /// Tiles of each request; 0 if they have different numbers of them.
    tiles_per_request: usize,
    /// Tiles of a key head, at least as many as there are.
    tiles: usize,
    /// Splits of the longest sequence if each is computed by itself, else 1.
    splits: usize,
}

/// The sizes of a step that its plan depends on.
#[derive(Debug, Clone, Copy)]
struct StepShape {
    num_requests: usize,
    num_tokens: usize,
    max_query_len: usize,
    max_seq_len: usize,
    sum_seq_lens: usize,
    /// Positions that a request's tokens see at most.
    most_seen: usize,
    /// Query heads of a key head.
    group: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl StepShape {
    fn of<G: Gpu>(op: &PagedAttention<'_, Region<G>>) -> Self {
        let KvSpec { num_kv_heads, head_dim, .. } = op.cache.spec;
        let s = op.sequences;
        Self {
            num_requests: s.num_requests,
            num_tokens: s.num_tokens,
            max_query_len: s.max_query_len,
            max_seq_len: s.max_seq_len,
            sum_seq_lens: s.sum_seq_lens,
            most_seen: most_seen(op),
            group: op.num_heads / num_kv_heads,
            kv_heads: num_kv_heads,
            head_dim,
        }
    }

    /// Tiles of so many columns: of each request, or 0, and of all.
    fn tiles(&self, columns: usize) -> (usize, usize) {
        let Self { num_requests, num_tokens, group, .. } = *self;
        let one_each = self.max_query_len == 1 && num_tokens == num_requests;
        match one_each {
            true => (group.div_ceil(columns), group.div_ceil(columns) * num_requests),
            // Request `r` begins at tile `query_start_loc[r] * group / columns + r`.
            false => (0, num_tokens * group / columns + num_requests),
        }
    }

    /// Whether so many tiles of a key head keep a device busy.
    fn are_enough(&self, tiles: usize) -> bool {
        tiles * self.kv_heads >= ENOUGH_THREADGROUPS
    }

    /// Whether a sequence would be walked long after the others, and there are few enough rows to compute its splits apart.
    fn is_unequal(&self) -> bool {
        let rows = self.num_tokens.saturating_mul(self.group * self.kv_heads);
        let mean_times_requests = self.sum_seq_lens.saturating_mul(LONG_SEQUENCE);
        rows <= MOST_SPLIT_ROWS && self.most_seen.saturating_mul(self.num_requests) >= mean_times_requests
    }
}

/// What decides, beside the sizes of the model, which pipelines compute a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Variant {
    columns: usize,
    /// Splits are computed apart.
    is_split: bool,
}

impl Variant {
    pub fn of<G: Gpu>(op: &PagedAttention<'_, Region<G>>) -> Self {
        let Plan { columns, splits, .. } = Plan::of(op);
        Self { columns, is_split: splits > 1 }
    }
}

impl Plan {
    fn of<G: Gpu>(op: &PagedAttention<'_, Region<G>>) -> Self {
        Self::new(&StepShape::of(op))
    }

    fn new(step: &StepShape) -> Self {
        Self::wide(step).unwrap_or_else(|| Self::narrow(step))
    }

    /// In wide tiles, if they are the better ones.
    fn wide(step: &StepShape) -> Option<Self> {
        let has_wide = step.head_dim <= WIDE_HEAD_DIM && step.max_query_len * step.group > COLUMNS;
        let (tiles_per_request, tiles) = step.tiles(WIDE_COLUMNS);
        let is_better = has_wide && step.are_enough(tiles) && !step.is_unequal();
        is_better.then_some(Self { columns: WIDE_COLUMNS, tiles_per_request, tiles, splits: 1 })
    }

    /// In tiles that any step may have. Where wide ones are better, splits are not computed apart in these either, as there are more of them.
    fn narrow(step: &StepShape) -> Self {
        let (tiles_per_request, tiles) = step.tiles(COLUMNS);
        let walked = step.are_enough(tiles) && !step.is_unequal();
        let splits = if walked { 1 } else { step.max_seq_len.div_ceil(SPLIT) };
        Self { columns: COLUMNS, tiles_per_request, tiles, splits }
    }
}

/// Bytes of the splits' states: weighted values, and a largest score and a sum.
fn partial_bytes(rows: usize, splits: usize, head_dim: usize) -> usize {
    rows.saturating_mul(splits).saturating_mul((head_dim + 2) * size_of::<f32>())
}

/// Splits that a threadgroup walks at most: fewer on devices for which the work of some would be too long a dispatch.
pub(crate) fn longest_walk(pace: &Pace) -> usize {
    let elements = 2 * SPLIT * LARGEST_HEAD_DIM;
    pace.pieces(Work { flops: (2 * WIDE_COLUMNS * elements) as f64, bytes: 0.0 }).min(LONGEST_WALK)
}

/// Bytes of `scratch::ATTENTION_PARTIALS` that a step needs at most: splits that are computed apart, or what walks of so many carry.
pub(crate) fn scratch_bytes(step: &StepSize, longest_walk: usize) -> usize {
    let splits = step.max_seq_len.div_ceil(SPLIT);
    if splits < 2 {
        return 0;
    }
    let rows = step.num_tokens.saturating_mul(step.model.num_heads);
    let apart = partial_bytes(rows.min(MOST_SPLIT_ROWS), splits, step.model.head_dim);
    let carried = if splits > longest_walk { partial_bytes(rows, 1, step.model.head_dim) } else { 0 };
    apart.max(carried)
}

/// Whether the kernels can read such a cache.
///
/// # Errors
/// Why not, and what would work.
pub(crate) fn check(&KvSpec { block_size, head_dim, .. }: &KvSpec) -> std::result::Result<(), String> {
    if !block_size.is_multiple_of(16) {
        return Err(format!("blocks of {block_size} tokens; multiples of 16 work, such as `block_size` 16"));
    }
    if !head_dim.is_multiple_of(8) || head_dim > LARGEST_HEAD_DIM {
        return Err(format!("heads of {head_dim} elements; multiples of 8 up to {LARGEST_HEAD_DIM} work"));
    }
    Ok(())
}

/// Records attention in wide tiles where these are better and the device does not refuse them. The others have the same bits: the order of a
/// column's sums is the same in every tile (`paged_attention.metal`).
pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &PagedAttention<'_, Region<G>>) -> Result<()> {
    let KvSpec { dtype, block_size, num_kv_heads, head_dim, .. } = op.cache.spec;
    check(&op.cache.spec).map_err(|reason| recorder.unsupported(vllm_apple_ops::paged_attention::NAME, reason))?;
    let step = StepShape::of(op);
    let (wide, narrow) = (Plan::wide(&step), Plan::narrow(&step));
    let sizes = [head_dim, step.group, num_kv_heads, block_size].map(|v| Value::U32(v as u32));
    let partial = Value::Bool(narrow.splits > 1);
    let (_, threads) = rows_grid(op, narrow);
    let out = Value::U32(match op.out.dtype() {
        DType::F16 => 1,
        DType::BF16 => 2,
        // The op's check leaves no other.
        DType::F32 | DType::U32 => 0,
    });
    let has_sinks = Value::Bool(op.sinks.is_some());
    let constants = [sizes[0], sizes[1], sizes[2], sizes[3], partial, threads, out, has_sinks];
    let plans = [wide.unwrap_or(narrow), narrow];
    let plans = if wide.is_some() { &plans[..] } else { &plans[1..] };
    let variant = |plan: Plan| (kernel(dtype, head_dim, plan.columns), THREADS);
    recorder.first_of(vllm_apple_ops::paged_attention::NAME, &constants, plans, variant, |recorder, plan| {
        record(recorder, op, plan, &constants)
    })
}

/// The kernel of heads of so many elements in tiles of so many columns.
fn kernel(dtype: DType, head_dim: usize, columns: usize) -> Kernel {
    match (head_dim, columns) {
        (0..=64, COLUMNS) => heads_of_64(dtype),
        (65..=128, COLUMNS) => heads_of_128(dtype),
        (0..=64, _) => wide_heads_of_64(dtype),
        (65..=128, _) => wide_heads_of_128(dtype),
        _ => heads_of_256(dtype),
    }
}

/// The grid of what joins splits, and its threads as a constant.
fn rows_grid<G: Gpu>(op: &PagedAttention<'_, Region<G>>, plan: Plan) -> (Grid, Value) {
    let items = op.num_heads * (op.cache.spec.head_dim / 4);
    Grid::of_rows(op.sequences.num_tokens, items, 16 * (plan.splits + 1))
}

/// Records attention as it is planned.
fn record<G: Gpu>(
    recorder: &mut Recorder<G>,
    op: &PagedAttention<'_, Region<G>>,
    plan: Plan,
    constants: &[Value],
) -> Result<()> {
    let KvSpec { dtype, head_dim, .. } = op.cache.spec;
    let s = op.sequences;
    let num_rows = s.num_tokens * op.num_heads;
    let params = Params {
        num_requests: s.num_requests as u32,
        tiles_per_request: plan.tiles_per_request as u32,
        block_table_stride: s.block_table_stride as u32,
        query_stride: op.qkv.cols() as u32,
        num_rows: num_rows as u32,
        num_splits: plan.splits as u32,
        first_tile: 0,
        first_split: 0,
        end_split: u32::MAX,
        window: op.window.map_or(NO_WINDOW, |w| u32::try_from(w).unwrap_or(NO_WINDOW).min(NO_WINDOW)),
        scale: op.scale,
    };
    let attend = Attend { kernel: kernel(dtype, head_dim, plan.columns), constants, params, plan };
    let seen = most_seen(op);
    if plan.splits == 1 {
        let walk = longest_walk(&recorder.pace);
        if seen.div_ceil(SPLIT) <= walk {
            return attend.record(recorder, op, op.out.memory(), op.out.memory(), seen);
        }
        let carried = recorder.scratch(scratch::ATTENTION_PARTIALS, partial_bytes(num_rows, 1, head_dim))?;
        return (0..s.max_seq_len.div_ceil(SPLIT)).step_by(walk).try_for_each(|first| {
            let (first_split, end_split) = (first as u32, (first + walk) as u32);
            let attend = Attend { params: Params { first_split, end_split, ..params }, ..attend };
            let walked = (walk * SPLIT).min(s.max_seq_len - first * SPLIT);
            attend.record(recorder, op, op.out.memory(), &carried, seen.min(walked))
        });
    }
    let partials = recorder.scratch(scratch::ATTENTION_PARTIALS, partial_bytes(num_rows, plan.splits, head_dim))?;
    attend.record(recorder, op, &partials, &partials, seen)?;
    let (grid, _) = rows_grid(op, plan);
    recorder.dispatch(
        vllm_apple_ops::paged_attention::NAME,
        combine_kernel(op.out.dtype()),
        constants,
        [
            Arg::Read(&partials),
            Arg::read(&s.query_start_loc),
            Arg::read(&s.seq_lens),
            Arg::write(op.out),
            Arg::bytes(&params),
            sinks(op),
        ],
        grid,
    )
}

/// Without sinks this is not read.
fn sinks<'a, G: Gpu>(op: &PagedAttention<'a, Region<G>>) -> Arg<'a, G> {
    op.sinks.map_or(Arg::read(op.qkv), |sinks| Arg::Constant(sinks.memory()))
}

/// Positions that a request's tokens see at most.
fn most_seen<G: Gpu>(op: &PagedAttention<'_, Region<G>>) -> usize {
    let s = op.sequences;
    op.window.map_or(s.max_seq_len, |window| s.max_seq_len.min(window.saturating_add(s.max_query_len)))
}

/// What the dispatches of a step's tiles have in common.
#[derive(Clone, Copy)]
struct Attend<'a> {
    kernel: Kernel,
    constants: &'a [Value],
    params: Params,
    plan: Plan,
}

impl Attend<'_> {
    /// Records the tiles, in as many pieces as it takes. Each sees so many positions at most.
    fn record<G: Gpu>(
        &self,
        recorder: &mut Recorder<G>,
        op: &PagedAttention<'_, Region<G>>,
        out: &Region<G>,
        carried: &Region<G>,
        seen: usize,
    ) -> Result<()> {
        let (s, plan) = (op.sequences, self.plan);
        let KvSpec { dtype, num_kv_heads, head_dim, .. } = op.cache.spec;
        // Of a tile in all key heads. Where many tiles read the same keys and values, these come from the cache.
        let elements = (2 * seen * num_kv_heads * head_dim) as f64;
        let bytes = if plan.tiles_per_request > 0 { elements * dtype.size() as f64 } else { 0.0 };
        let tile = Work { flops: 2.0 * plan.columns as f64 * elements, bytes };
        let most = recorder.pace.pieces(tile);
        for first in (0..plan.tiles).step_by(most) {
            let tiles = most.min(plan.tiles - first);
            let work = Work { flops: tiles as f64 * tile.flops, bytes: tiles as f64 * tile.bytes };
            recorder.dispatch(
                vllm_apple_ops::paged_attention::NAME,
                self.kernel,
                self.constants,
                [
                    Arg::read(op.qkv),
                    Arg::Read(&op.cache.keys),
                    Arg::Read(&op.cache.values),
                    Arg::read(&s.query_start_loc),
                    Arg::read(&s.seq_lens),
                    Arg::read(&s.block_table),
                    Arg::Write(out),
                    Arg::bytes(&Params { first_tile: first as u32, ..self.params }),
                    Arg::Write(carried),
                    sinks(op),
                ],
                Grid { threadgroups: [tiles, num_kv_heads, plan.splits], threads: THREADS, work },
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests, tokens, the most of one, the longest sequence and the sum of all.
    fn step(
        [num_requests, num_tokens, max_query_len]: [usize; 3],
        [max_seq_len, sum_seq_lens]: [usize; 2],
    ) -> StepShape {
        let (group, kv_heads, head_dim) = (7, 1, 64);
        StepShape {
            num_requests,
            num_tokens,
            max_query_len,
            max_seq_len,
            sum_seq_lens,
            most_seen: max_seq_len,
            group,
            kv_heads,
            head_dim,
        }
    }

    fn plan(columns: usize, tiles_per_request: usize, tiles: usize, splits: usize) -> Plan {
        Plan { columns, tiles_per_request, tiles, splits }
    }

    #[test]
    fn few_tiles_get_a_threadgroup_per_split() {
        // A decode of one request, a chunk of 9 tokens beside another request, and chunks of 300 and 600.
        assert_eq!(Plan::new(&step([1, 1, 1], [1590, 1590])), plan(8, 1, 1, 4));
        assert_eq!(Plan::new(&step([2, 10, 9], [1590, 1600])), plan(8, 0, 10, 4));
        assert_eq!(Plan::new(&step([1, 300, 300], [1590, 1590])), plan(8, 0, 263, 1));
        assert_eq!(Plan::new(&step([1, 600, 600], [1590, 1590])), plan(16, 0, 263, 1), "enough of 16 columns");
        assert_eq!(Plan::new(&step([1, 1, 1], [512, 512])), plan(8, 1, 1, 1), "one split is all");
        let many = |head_dim| StepShape { group: 16, kv_heads: 4, head_dim, ..step([32, 32, 1], [4096, 32 * 4096]) };
        assert_eq!(Plan::new(&many(64)), plan(8, 2, 64, 1), "256 threadgroups are enough");
        assert_eq!(Plan::new(&StepShape { kv_heads: 8, ..many(64) }), plan(16, 1, 32, 1));
        assert_eq!(Plan::new(&StepShape { kv_heads: 8, ..many(256) }), plan(8, 2, 64, 1), "none are wide");
    }

    #[test]
    fn narrow_tiles_can_take_the_place_of_wide_ones() {
        let mut wide = 0;
        for (num_requests, tokens) in [(1, 600), (4, 300), (33, 65), (2, 2048), (64, 16), (1, 17)] {
            for (group, kv_heads) in [(1, 8), (4, 8), (7, 1), (12, 2), (16, 4)] {
                for len in [tokens, 1000.max(tokens), 70_000] {
                    let sizes = step([num_requests, num_requests * tokens, tokens], [len, num_requests * len]);
                    let sizes = StepShape { group, kv_heads, ..sizes };
                    if Plan::wide(&sizes).is_some() {
                        assert_eq!(Plan::narrow(&sizes).splits, 1, "{sizes:?}");
                        wide += 1;
                    }
                }
            }
        }
        assert!(wide > 30, "{wide}");
    }

    #[test]
    fn a_sequence_much_longer_than_the_others_is_not_walked_alone() {
        let decodes =
            |longest: usize| StepShape { group: 4, kv_heads: 8, ..step([33, 33, 1], [longest, longest + 32 * 500]) };
        assert_eq!(Plan::new(&decodes(16384)), plan(8, 1, 33, 32));
        assert_eq!(Plan::new(&decodes(2048)), plan(8, 1, 33, 1), "not four times the mean");
        let window = StepShape { most_seen: 1025, ..decodes(16384) };
        assert_eq!(Plan::new(&window).splits, 1, "all see a window");
        let prefill = StepShape { num_tokens: 33 + 512, max_query_len: 513, ..decodes(16384) };
        assert_eq!(Plan::new(&prefill).splits, 1, "more rows than splits are kept for");
        assert_eq!(decodes(16384).num_tokens * 32, 1056);
    }
}
