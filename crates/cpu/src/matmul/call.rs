//! One call of a matmul: what its items do, each of which a thread takes. It knows no planning.

use std::ops::Range;

use super::format::PANEL;
use super::gated::Gated;
use super::matrices::Matrices;
use super::packing::Packed;
use super::plan::{Item, Plan};
use super::tile::{MAX_TILE_ROWS, Needs, Outputs, PREFETCH_BYTES, Prefetch, Shared, Tile, TileKernel, WhenLaidOut};
use super::{LAID_OUT_BYTES, LINE_BYTES};
use crate::pack::{PackedMatrix, SendPtr};

/// Weight bytes of a panel that are used for all row tiles before the next: they stay in the second-level cache, and
/// mostly in the first.
const SLICE_BYTES: usize = 64 * 1024;

/// Activations of an item that its panels take in turn: half of a second-level cache, where matrices are multiplied.
const ROWS_BYTES: usize = 1 << 20;

/// What the items of one call share.
pub(super) struct Call<'a> {
    pub kernel: TileKernel,
    pub weights: &'a PackedMatrix,
    pub plan: &'a Plan,
    /// In tiles, or as the caller has them.
    pub activations: Packed<'a>,
    pub in_place: bool,
    pub needs: Needs,
    /// Of all groups.
    pub bias: Option<&'a [f32]>,
    /// For each thread's laid out weights, where there are such.
    pub laid_out: SendPtr<u8>,
    pub out: SendPtr<f32>,
    /// Elements from a row of `out` to the next.
    pub cols: usize,
    pub gated: Option<Gated<'a>>,
}

/// What the thread that runs an item has.
pub(super) struct Worker<'a> {
    begun: Option<Matrices>,
    thread: usize,
    activations: &'a [u8],
}

/// Some steps of a panel.
pub(super) struct Part {
    panel: usize,
    steps: Range<usize>,
    /// As [`TileKernel::lay_out`] writes them, or null.
    laid_out: *const u8,
}

/// A pointer for each row of a tile, of which those of its rows are used.
pub(super) type Pointers = [*mut f32; MAX_TILE_ROWS];

pub(super) const NO_POINTERS: Pointers = [std::ptr::null_mut(); MAX_TILE_ROWS];

/// Outputs of a tile to a buffer.
pub(super) fn outputs_of(sums: &mut [[f32; PANEL]; MAX_TILE_ROWS]) -> Outputs<'_> {
    Outputs::Even { first: sums.as_mut_ptr().cast(), distance: size_of::<[f32; PANEL]>() }
}

impl Call<'_> {
    /// Parts of K that all items go through one after the other. Many rows are cut so that those of an item, which all its panels take,
    /// stay in the second-level cache. But gates and ups are whole where their sums then stay in the first one until the activation.
    pub(super) fn slices(&self) -> impl Iterator<Item = Range<usize>> {
        let steps = self.weights.steps();
        let rows = self.plan.most_block_rows();
        let sums_stay =
            self.gated.is_some() && self.needs.laid_out.is_none_or(|l| steps * l.step_bytes <= LAID_OUT_BYTES);
        let slices = if self.needs.rows.are_matrices() && rows > MAX_TILE_ROWS && !sums_stay {
            (rows * self.needs.units(steps) * size_of::<u32>()).div_ceil(ROWS_BYTES)
        } else {
            1
        };
        let slice = steps.div_ceil(slices).next_multiple_of(self.needs.steps_together);
        (0..steps).step_by(slice).map(move |start| start..steps.min(start + slice))
    }

    pub(super) fn run(&self, item: Item, steps: Range<usize>, thread: usize) {
        let worker = Worker { begun: self.kernel.begin(), thread, activations: self.activations.of_thread(thread) };
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
    pub(super) fn whole_panel(&self, worker: &Worker<'_>, item: &Item, panel: usize, steps: Range<usize>) {
        let slice = self.slice_steps(item, &steps);
        let mut at = NO_POINTERS;
        for start in steps.clone().step_by(slice) {
            let part = self.part(worker, item, panel, start..steps.end.min(start + slice), 0);
            for tile in item.tiles.clone() {
                let out = self.outputs(tile, panel, &mut at);
                let shared = match out {
                    Outputs::Even { first, distance } => {
                        let writes_lines = PANEL * size_of::<f32>() / LINE_BYTES;
                        Shared { writes: first.cast(), writes_row: distance, writes_lines, beside: None }
                    }
                    Outputs::Listed(_) => Shared::NOTHING,
                };
                self.whole_tile(worker, item, &part, tile, &out, &shared);
            }
        }
    }

    /// Some steps of a panel, laid out where that pays: in place `place` of the thread's memory for that.
    pub(super) fn part(
        &self,
        worker: &Worker<'_>,
        item: &Item,
        panel: usize,
        steps: Range<usize>,
        place: usize,
    ) -> Part {
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
    pub(super) fn slice_steps(&self, item: &Item, steps: &Range<usize>) -> usize {
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
    pub(super) fn outputs<'a>(&self, tile: usize, panel: usize, at: &'a mut Pointers) -> Outputs<'a> {
        let rows = &self.plan.out_rows()[self.plan.tile_rows(tile)];
        // SAFETY: `out` has a row for each of the plan's, and the panel's outputs are within it.
        let place = |row: u32| unsafe { self.out.get().add(row as usize * self.cols + panel * PANEL) };
        if self.plan.is_in_order() {
            return Outputs::Even { first: place(rows[0]), distance: self.cols * size_of::<f32>() };
        }
        let at = &mut at[..rows.len()];
        at.iter_mut().zip(rows).for_each(|(at, &row)| *at = place(row));
        Outputs::Listed(at)
    }

    /// One tile against some steps of one panel.
    pub(super) fn whole_tile(
        &self,
        worker: &Worker<'_>,
        item: &Item,
        part: &Part,
        tile: usize,
        out: &Outputs<'_>,
        shared: &Shared<'_>,
    ) {
        let (panel, steps, step_bytes) = (part.panel, &part.steps, self.weights.step_bytes());
        let weights = self.weights.panel(item.group, panel)[steps.start * step_bytes..].as_ptr();
        let rows = self.plan.tile_rows(tile);
        let bias = self.bias.filter(|_| steps.end == self.weights.steps());
        let bytes = steps.len() * step_bytes;
        // A lone tile asks for what it will soon need itself. Several share what follows, so that memory is busy all the time that they compute from the
        // cache: matrices take the same slice of the next panel, vectors the next slice of this one.
        let next = if self.needs.rows.are_matrices() { self.weights.steps() * step_bytes } else { bytes };
        let ahead = if item.tiles.len() == 1 {
            PREFETCH_BYTES
        } else {
            next + bytes / item.tiles.len() * (tile - item.tiles.start)
        };
        let [x_row, x_block] = self.activation_distances(&rows);
        let tile = Tile {
            x: self.tile_activations(worker, &rows, steps.start),
            x_row,
            x_block,
            weights,
            laid_out: part.laid_out,
            steps: steps.len(),
            rows: rows.len(),
            out,
            resume: steps.start > 0,
            bias: bias.map_or(std::ptr::null(), |bias| bias[item.group * self.weights.n() + panel * PANEL..].as_ptr()),
            prefetch: Prefetch {
                from: weights.wrapping_add(ahead),
                bytes_per_step: step_bytes.div_ceil(item.tiles.len()),
            },
            shared: (item.tiles.len() > 1).then_some(shared),
        };
        // SAFETY: pointers as above; no other item has these rows and this panel; the plan cuts tiles to
        // the kernel's size.
        unsafe { self.kernel.run(&worker.begun, &tile) };
    }

    /// As `whole_panel` for a panel of fewer than 32 outputs, by way of a buffer of 32.
    fn last_panel(&self, worker: &Worker<'_>, item: &Item, panel: usize) {
        let first = panel * PANEL;
        let outputs = self.weights.n() - first;
        let mut bias = [0.0; PANEL];
        if let Some(values) = self.bias {
            bias[..outputs].copy_from_slice(&values[item.group * self.weights.n() + first..][..outputs]);
        }
        let mut buffer = [[0.0f32; PANEL]; MAX_TILE_ROWS];
        for tile in item.tiles.clone() {
            let rows = self.plan.tile_rows(tile);
            let out = outputs_of(&mut buffer);
            let [x_row, x_block] = self.activation_distances(&rows);
            let tile = Tile {
                x: self.tile_activations(worker, &rows, 0),
                x_row,
                x_block,
                weights: self.weights.panel(item.group, panel).as_ptr(),
                laid_out: std::ptr::null(),
                steps: self.weights.steps(),
                rows: rows.len(),
                out: &out,
                resume: false,
                bias: if self.bias.is_some() { bias.as_ptr() } else { std::ptr::null() },
                prefetch: Prefetch::NOTHING,
                shared: None,
            };
            // SAFETY: as in `whole_panel`; outputs go to the buffer.
            unsafe { self.kernel.run(&worker.begun, &tile) };
            for (values, &row) in buffer.iter().zip(&self.plan.out_rows()[rows]) {
                let at = row as usize * self.cols + first;
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
    fn tile_activations(&self, worker: &Worker<'_>, rows: &Range<usize>, step: usize) -> *const u32 {
        let rows_of_step = if self.in_place { 1 } else { rows.len() };
        let step_bytes = self.needs.units_per_step * size_of::<u32>();
        worker.activations[rows.start * self.row_bytes() + step * rows_of_step * step_bytes..].as_ptr().cast()
    }
}
