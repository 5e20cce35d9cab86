//! Matrix multiplication with packed weights: plans the work of a call and shares it among threads. It knows nothing of
//! instruction sets beyond the tile kernel that it is given.
//!
//! A call packs its activations into tiles, then treats pairs of (row block, run of panels) as items that threads take as
//! they become free. However the work is cut, each output element is one lane that adds up K in one order: results do
//! not depend on the number of rows, threads, or on what else is in the batch.

mod activations;
pub(crate) mod codes;
pub(crate) mod format;
mod gated;
mod matrices;
mod plan;
pub(crate) mod tile;

#[cfg(test)]
mod tests;

use std::ops::Range;

use vllm_apple_ops::{Result, StepSize, WeightFormat};

use crate::isa::Isa;
use crate::memory::Memory;
use crate::pack::{PackedMatrix, SendPtr, steps};
use crate::simd::Dispatch;
use codes::FEW_ROWS;
use format::{PANEL, Unit};
pub(crate) use gated::Gated;
use matrices::Matrices;
use plan::{Item, Plan};
use tile::{MAX_TILE_ROWS, Needs, Prefetch, Tile, TileKernel, WhenLaidOut};
use vllm_apple_ops::pool::Pool;

/// Weight bytes of a panel that are used for all row tiles before the next: they stay in the second-level cache, and
/// mostly in the first.
const SLICE_BYTES: usize = 64 * 1024;

/// Panels from which on activations in several tiles are packed for matrices, though these can read them where they lie: the order in which they
/// are read is then that in memory. Fewer panels do not win back the time.
const PACK_FROM_PANELS: usize = 64;

/// Activations of an item that its panels take in turn: half of a second-level cache, where matrices are multiplied.
const ROWS_BYTES: usize = 1 << 20;

/// Weights of a panel that a thread lays out for several tiles, at most: with the rows that go through them they stay in the second-level cache.
const LAID_OUT_BYTES: usize = 256 * 1024;

/// Rows from which on gates and ups are multiplied together, where matrices are. The weights of fewer are then read as two streams instead
/// of one, which costs as much as is won.
const LEAST_GATED_ROWS: usize = 16;

/// Activations below this many units are packed by the calling thread: cheaper than waking others.
const PACK_ALONE_UNITS: usize = 8 * 1024;

/// Bytes of 16 units of activations: matrices are loaded by lines.
const LINE_BYTES: usize = 64;

/// Reusable memory of the matmuls of one backend. [`Matmuls::reserve`] grows it to what a step needs, and a call that
/// nobody has announced grows it too.
#[derive(Debug)]
pub struct Matmuls {
    dispatch: Dispatch,
    plan: Plan,
    activations: Memory,
    /// Of each thread, for weights that it lays out.
    laid_out: Memory,
}

impl Matmuls {
    /// For kernels of `isa`.
    ///
    /// # Panics
    /// If the machine does not have it.
    #[must_use]
    pub fn new(isa: Isa) -> Self {
        Self {
            dispatch: Dispatch::new(isa),
            plan: Plan::default(),
            activations: Memory::default(),
            laid_out: Memory::default(),
        }
    }

    /// Makes room for every matmul of a step.
    pub(crate) fn reserve(&mut self, step: &StepSize, threads: usize) -> Result<()> {
        self.plan.reserve(most_rows(step), step.model.num_experts);
        self.reserve_laid_out(step.model.weights, threads)?;
        self.reserve_activations(self.activation_units(step))
    }

    fn reserve_laid_out(&mut self, format: WeightFormat, threads: usize) -> Result<()> {
        let bytes = self.laid_out_bytes(format, threads);
        if self.laid_out.bytes().len() < bytes {
            self.laid_out = Memory::zeroed(bytes, "weights that threads lay out; use fewer threads")?;
        }
        Ok(())
    }

    /// Bytes for so many threads.
    fn laid_out_bytes(&self, format: WeightFormat, threads: usize) -> usize {
        let are_laid_out = TileKernel::new(self.dispatch, format, usize::MAX).needs().laid_out.is_some();
        if are_laid_out { threads * Gated::TOGETHER * LAID_OUT_BYTES } else { 0 }
    }

    fn reserve_activations(&mut self, units: usize) -> Result<()> {
        let bytes = units * size_of::<u32>();
        if self.activations.bytes().len() < bytes {
            // Nothing of the old content is needed.
            self.activations = Memory::default();
            self.activations = Memory::zeroed(bytes, "activations of matmuls; use a smaller `max_num_batched_tokens`")?;
        }
        Ok(())
    }

    /// Bytes that [`Matmuls::reserve`] grows to.
    pub(crate) fn bytes(&self, step: &StepSize, threads: usize) -> usize {
        Plan::bytes(most_rows(step), step.model.num_experts)
            + self.laid_out_bytes(step.model.weights, threads)
            + (self.activation_units(step) * size_of::<u32>()).next_multiple_of(LINE_BYTES)
    }

    /// Units of the largest matmul of a step: that of all tokens, that of the rows of logits, or that of all pairs of a token
    /// and an expert.
    fn activation_units(&self, step: &StepSize) -> usize {
        let m = &step.model;
        // Not all weights of a quantised model need be quantised.
        let formats = [m.weights, WeightFormat::Float(m.weights.input())];
        let units = |rows: usize, k: usize| {
            let of_format = |format| {
                let units = |rows: usize, per_matrix: usize| {
                    let needs = TileKernel::new(self.dispatch, format, per_matrix).needs();
                    rows * match needs.unit {
                        // The model's groups are these or larger ones, which may be rounded up by more.
                        Unit::GroupsOfPairs16 { size, sums, .. } => matrices::codes::most_units(k, size, sums),
                        _ => needs.units(steps(format, k)),
                    }
                };
                // Few rows, of each expert where there are some, may take another kernel than more.
                units(rows, usize::MAX).max(units(rows.min(FEW_ROWS * m.num_experts.max(1)), FEW_ROWS))
            };
            formats.map(of_format).into_iter().max().unwrap_or(0)
        };
        let dense = m.hidden_size.max(m.num_heads * m.head_dim).max(m.intermediate_size);
        let grouped = m.hidden_size.max(m.expert_intermediate_size);
        units(step.num_tokens, dense)
            .max(units(step.num_logit_rows, m.hidden_size))
            .max(units(step.num_pairs(), grouped))
    }

    /// `out[r, n] = sum_k x[r, k] * weights[0, n, k] + bias[n]` for `out` of `[rows, N]`; `x` is `[>= rows, K]` in the
    /// weights' type. Sums are in f32, over ascending K, and the bias is added last.
    ///
    /// # Panics
    /// If a slice is too short or `out` is not a whole number of rows: callers have checked their arguments.
    pub fn matmul(&mut self, pool: &Pool, weights: &PackedMatrix, x: &[u8], bias: Option<&[f32]>, out: &mut [f32]) {
        let rows = self.check_dense(weights, x, bias, out);
        let kernel = self.kernel(weights, rows);
        self.plan.dense(rows, weights, 1, kernel.needs().rows, pool.threads());
        self.compute(pool, weights, x, bias, out, None);
    }

    /// As [`Matmuls::matmul`] to `gate_up`, and then its activation, with the bits of the two. What is in `gate_up` afterwards may be anything.
    ///
    /// # Panics
    /// As [`Matmuls::matmul`], or if gates and ups are not whole panels.
    pub(crate) fn gated(
        &mut self,
        pool: &Pool,
        weights: &PackedMatrix,
        x: &[u8],
        bias: Option<&[f32]>,
        gate_up: &mut [f32],
        gated: Gated<'_>,
    ) {
        let rows = self.check_dense(weights, x, bias, gate_up);
        gated.check(weights, rows);
        let kernel = self.kernel(weights, rows);
        self.plan.dense(rows, weights, Gated::TOGETHER, kernel.needs().rows, pool.threads());
        self.compute(pool, weights, x, bias, gate_up, Some(gated));
    }

    /// Whether [`Matmuls::gated`] takes these weights and is faster than the two ops: many rows' products are more than caches hold, and
    /// matrices multiply so fast that their way to memory and back counts.
    pub(crate) fn gains_from_gated(&self, weights: &PackedMatrix, rows: usize) -> bool {
        self.kernel(weights, rows).needs().rows.are_matrices() && rows >= LEAST_GATED_ROWS && Gated::fits(weights)
    }

    /// Where the matrix that has the most rows has so many.
    fn kernel(&self, weights: &PackedMatrix, rows: usize) -> TileKernel {
        TileKernel::new(self.dispatch, weights.format(), rows)
    }

    /// The number of rows, if all fits.
    fn check_dense(&self, weights: &PackedMatrix, x: &[u8], bias: Option<&[f32]>, out: &[f32]) -> usize {
        let rows = out.len() / weights.n();
        assert_eq!(out.len(), rows * weights.n(), "out must be whole rows");
        assert!(x.len() >= rows * weights.k() * weights.format().input().size(), "x must have a row for each of out");
        assert!(bias.is_none_or(|bias| bias.len() == weights.n()), "bias must have a value per output");
        rows
    }

    /// `out[p, n] = sum_k x[p / pairs.per_row, k] * weights[e, n, k] + bias[e, n]` with `e = pairs.ids[p]`: each pair of token and expert is
    /// a row of `out`. All experts are one parallel loop.
    ///
    /// # Panics
    /// As [`Matmuls::matmul`], or if an id is not below the number of groups.
    pub fn grouped(
        &mut self,
        pool: &Pool,
        weights: &PackedMatrix,
        x: &[u8],
        pairs: Pairs<'_>,
        bias: Option<&[f32]>,
        out: &mut [f32],
    ) {
        let Pairs { ids, per_row } = pairs;
        assert_eq!(out.len(), ids.len() * weights.n(), "out must have a row for each id");
        let x_rows = ids.len().div_ceil(per_row);
        assert!(
            x.len() >= x_rows * weights.k() * weights.format().input().size(),
            "x must have a row for each {per_row} ids"
        );
        assert!(
            bias.is_none_or(|bias| bias.len() == weights.groups() * weights.n()),
            "bias must have a value per output of each expert"
        );
        let most_rows = self.plan.most_of_a_group(ids, weights.groups());
        let kernel = self.kernel(weights, most_rows);
        self.plan.grouped(ids, per_row, weights, kernel.needs().rows, pool.threads());
        self.compute(pool, weights, x, bias, out, None);
    }

    fn compute(
        &mut self,
        pool: &Pool,
        weights: &PackedMatrix,
        x: &[u8],
        bias: Option<&[f32]>,
        out: &mut [f32],
        gated: Option<Gated<'_>>,
    ) {
        let kernel = self.kernel(weights, self.plan.most_group_rows());
        let needs = kernel.needs();
        let row_bytes = weights.k() * weights.format().input().size();
        let in_place = needs.unit == Unit::Bf16Pairs16
            && self.plan.is_in_order()
            && (self.plan.tiles() == 1 || weights.panels() < PACK_FROM_PANELS)
            && row_bytes == needs.units(weights.steps()) * size_of::<u32>();
        if !in_place {
            self.pack_activations(pool, kernel, weights, x);
        }
        if let Err(error) = self.reserve_laid_out(weights.format(), pool.threads()) {
            panic!("a matmul that was not announced: {error}");
        }
        let activations = if in_place { x } else { self.activations.bytes() };
        let (out, laid_out) = (SendPtr(out.as_mut_ptr()), SendPtr(self.laid_out.bytes_mut().as_mut_ptr()));
        let call = Call { kernel, weights, plan: &self.plan, activations, in_place, needs, bias, laid_out, out, gated };
        for steps in call.slices() {
            pool.run(self.plan.items(), &|item, thread| call.run(self.plan.item(item), steps.clone(), thread));
        }
    }

    fn pack_activations(&mut self, pool: &Pool, kernel: TileKernel, weights: &PackedMatrix, x: &[u8]) {
        let (dtype, needs) = (weights.format().input(), kernel.needs());
        let units = needs.units(weights.steps());
        let total = self.plan.rows() * units;
        if let Err(error) = self.reserve_activations(total) {
            panic!("a matmul that was not announced: {error}");
        }
        let plan = &self.plan;
        let start = SendPtr(bytemuck::cast_slice_mut::<u8, u32>(self.activations.bytes_mut()).as_mut_ptr());
        let pack = |tile: usize, _: usize| {
            let rows = plan.tile_rows(tile);
            // SAFETY: tiles are disjoint ranges of rows below `plan.rows()`, and each is packed once.
            let to = unsafe { std::slice::from_raw_parts_mut(start.get().add(rows.start * units), rows.len() * units) };
            activations::pack_tile(to, needs.unit, dtype, x, weights.k(), &plan.x_rows()[rows]);
        };
        if total < PACK_ALONE_UNITS {
            (0..plan.tiles()).for_each(|tile| pack(tile, 0));
        } else {
            pool.run(plan.tiles(), &pack);
        }
    }
}

/// Pairs of a token and an expert.
#[derive(Clone, Copy)]
pub struct Pairs<'a> {
    /// The expert of each.
    pub ids: &'a [u32],
    /// Pairs that share a row of activations.
    pub per_row: usize,
}

/// Rows of the matmul of a step that has the most.
fn most_rows(step: &StepSize) -> usize {
    step.num_tokens.max(step.num_logit_rows).max(step.num_pairs())
}

/// What the items of one call share.
struct Call<'a> {
    kernel: TileKernel,
    weights: &'a PackedMatrix,
    plan: &'a Plan,
    /// In tiles, or as the caller has them.
    activations: &'a [u8],
    in_place: bool,
    needs: Needs,
    /// Of all groups.
    bias: Option<&'a [f32]>,
    /// For each thread's laid out weights, where there are such.
    laid_out: SendPtr<u8>,
    out: SendPtr<f32>,
    gated: Option<Gated<'a>>,
}

/// What the thread that runs an item has.
struct Worker {
    begun: Option<Matrices>,
    thread: usize,
}

/// Some steps of a panel.
struct Part {
    panel: usize,
    steps: Range<usize>,
    /// As [`TileKernel::lay_out`] writes them, or null.
    laid_out: *const u8,
}

/// Where the 32 outputs of each row of a tile are.
struct Rows {
    at: [*mut f32; MAX_TILE_ROWS],
    /// Bytes between these, if it is always the same.
    distance: Option<usize>,
}

impl Rows {
    /// Those of a buffer.
    fn of(sums: &mut [[f32; PANEL]; MAX_TILE_ROWS]) -> Self {
        Self { at: sums.each_mut().map(|row| row.as_mut_ptr()), distance: Some(size_of::<[f32; PANEL]>()) }
    }
}

impl Call<'_> {
    /// Parts of K that all items go through one after the other. Many rows are cut so that those of an item, which all its panels take,
    /// stay in the second-level cache.
    fn slices(&self) -> impl Iterator<Item = Range<usize>> {
        let steps = self.weights.steps();
        let rows = self.plan.most_block_rows();
        let slices = if self.needs.rows.are_matrices() && rows > MAX_TILE_ROWS {
            (rows * self.needs.units(steps) * size_of::<u32>()).div_ceil(ROWS_BYTES)
        } else {
            1
        };
        let slice = steps.div_ceil(slices).next_multiple_of(self.needs.steps_together);
        (0..steps).step_by(slice).map(move |start| start..steps.min(start + slice))
    }

    fn run(&self, item: Item, steps: Range<usize>, thread: usize) {
        let worker = Worker { begun: self.kernel.begin(), thread };
        for panel in item.panels.clone() {
            if let Some(gated) = &self.gated {
                self.gated_panels(gated, &worker, &item, panel, steps.clone());
            } else if (panel + 1) * PANEL <= self.weights.n() {
                self.whole_panel(&worker, &item, panel, steps.clone());
            } else if steps.end == self.weights.steps() {
                self.last_panel(&worker, &item, panel);
            }
        }
    }

    /// All rows of the item against one panel, a slice of K after the other: each slice is read from memory once.
    fn whole_panel(&self, worker: &Worker, item: &Item, panel: usize, steps: Range<usize>) {
        let slice = self.slice_steps(item, &steps);
        for start in steps.clone().step_by(slice) {
            let part = self.part(worker, item, panel, start..steps.end.min(start + slice), 0);
            for tile in item.tiles.clone() {
                self.whole_tile(worker, item, &part, tile, &self.out_rows(tile, panel));
            }
        }
    }

    /// Some steps of a panel, laid out where that pays: in place `place` of the thread's memory for that.
    fn part(&self, worker: &Worker, item: &Item, panel: usize, steps: Range<usize>, place: usize) -> Part {
        if self.laid_out_step_bytes(item).is_none() {
            return Part { panel, steps, laid_out: std::ptr::null() };
        }
        let from = self.weights.panel(item.group, panel)[steps.start * self.weights.step_bytes()..].as_ptr();
        // SAFETY: each thread has memory for as many steps as are together at most, in each place.
        let laid_out = unsafe {
            let to = self.laid_out.get().add((worker.thread * Gated::TOGETHER + place) * LAID_OUT_BYTES);
            self.kernel.lay_out(from, steps.len(), to);
            to
        };
        Part { panel, steps, laid_out }
    }

    /// How many of the steps are done for all tiles before the next.
    fn slice_steps(&self, item: &Item, steps: &Range<usize>) -> usize {
        let together = self.needs.steps_together;
        if let Some(step_bytes) = self.laid_out_step_bytes(item) {
            steps.len().min(LAID_OUT_BYTES / (step_bytes * together) * together)
        } else if item.tiles.len() == 1 || self.needs.rows.are_matrices() {
            steps.len()
        } else {
            let fitting = SLICE_BYTES / (self.weights.step_bytes() * together);
            steps.len().min(fitting.max(1) * together)
        }
    }

    /// Bytes of a step of an item's weights, if they are laid out once for all of its tiles.
    fn laid_out_step_bytes(&self, item: &Item) -> Option<usize> {
        let WhenLaidOut { step_bytes, from_tiles } = self.needs.laid_out?;
        let fits = step_bytes * self.needs.steps_together <= LAID_OUT_BYTES;
        (item.tiles.len() >= from_tiles && fits).then_some(step_bytes)
    }

    /// Where a panel's outputs of a tile's rows are in `out`.
    fn out_rows(&self, tile: usize, panel: usize) -> Rows {
        let mut at = [std::ptr::null_mut(); MAX_TILE_ROWS];
        for (at, &row) in at.iter_mut().zip(&self.plan.out_rows()[self.plan.tile_rows(tile)]) {
            // SAFETY: `out` has a row for each of the plan's, and the panel's outputs are within it.
            *at = unsafe { self.out.get().add(row as usize * self.weights.n() + panel * PANEL) };
        }
        Rows { at, distance: self.plan.is_in_order().then_some(self.weights.n() * size_of::<f32>()) }
    }

    /// One tile against some steps of one panel.
    fn whole_tile(&self, worker: &Worker, item: &Item, part: &Part, tile: usize, out: &Rows) {
        let (panel, steps, step_bytes) = (part.panel, &part.steps, self.weights.step_bytes());
        let weights = self.weights.panel(item.group, panel)[steps.start * step_bytes..].as_ptr();
        let rows = self.plan.tile_rows(tile);
        let bias = self.bias.filter(|_| steps.end == self.weights.steps());
        let bytes = steps.len() * step_bytes;
        // Matrices take the same slice of the next panel, vectors the next slice of this one.
        let next = if self.needs.rows.are_matrices() { self.weights.steps() * step_bytes } else { bytes };
        let ahead = Prefetch::new(weights, bytes, next, step_bytes, tile - item.tiles.start, item.tiles.len());
        let [x_row, x_block] = self.activation_distances(&rows);
        let tile = Tile {
            x: self.tile_activations(&rows, steps.start),
            x_row,
            x_block,
            weights,
            laid_out: part.laid_out,
            steps: steps.len(),
            out: &out.at[..rows.len()],
            out_row: out.distance,
            resume: steps.start > 0,
            bias: bias.map_or(std::ptr::null(), |bias| bias[item.group * self.weights.n() + panel * PANEL..].as_ptr()),
            prefetch: ahead,
        };
        // SAFETY: pointers as above; no other item has these rows and this panel; the plan cuts tiles to
        // the kernel's size.
        unsafe { self.kernel.run(&worker.begun, &tile) };
    }

    /// As `whole_panel` for a panel of fewer than 32 outputs, by way of a buffer of 32.
    fn last_panel(&self, worker: &Worker, item: &Item, panel: usize) {
        let first = panel * PANEL;
        let outputs = self.weights.n() - first;
        let mut bias = [0.0; PANEL];
        if let Some(values) = self.bias {
            bias[..outputs].copy_from_slice(&values[item.group * self.weights.n() + first..][..outputs]);
        }
        let mut buffer = [[0.0f32; PANEL]; MAX_TILE_ROWS];
        for tile in item.tiles.clone() {
            let rows = self.plan.tile_rows(tile);
            let out = Rows::of(&mut buffer);
            let [x_row, x_block] = self.activation_distances(&rows);
            let tile = Tile {
                x: self.tile_activations(&rows, 0),
                x_row,
                x_block,
                weights: self.weights.panel(item.group, panel).as_ptr(),
                laid_out: std::ptr::null(),
                steps: self.weights.steps(),
                out: &out.at[..rows.len()],
                out_row: out.distance,
                resume: false,
                bias: if self.bias.is_some() { bias.as_ptr() } else { std::ptr::null() },
                prefetch: Prefetch::NOTHING,
            };
            // SAFETY: as in `whole_panel`; outputs go to the buffer.
            unsafe { self.kernel.run(&worker.begun, &tile) };
            for (values, &row) in buffer.iter().zip(&self.plan.out_rows()[rows]) {
                let at = row as usize * self.weights.n() + first;
                // SAFETY: `out` has a row for each of the plan's, and no other item has these rows and this panel.
                unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.out.get().add(at), outputs) };
            }
        }
    }

    /// Bytes from one row of a tile's activations to the next and from one block of 16 units to the next, where they lie in these.
    fn activation_distances(&self, rows: &Range<usize>) -> [usize; 2] {
        if self.in_place { [self.row_bytes(), LINE_BYTES] } else { [LINE_BYTES, rows.len() * LINE_BYTES] }
    }

    /// Bytes of a row of activations.
    fn row_bytes(&self) -> usize {
        self.needs.units(self.weights.steps()) * size_of::<u32>()
    }

    /// A tile's activations from `step` on, where a block begins.
    fn tile_activations(&self, rows: &Range<usize>, step: usize) -> *const u32 {
        let rows_of_step = if self.in_place { 1 } else { rows.len() };
        let step_bytes = self.needs.units_per_step * size_of::<u32>();
        self.activations[rows.start * self.row_bytes() + step * rows_of_step * step_bytes..].as_ptr().cast()
    }
}
