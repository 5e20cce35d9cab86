//! Panels of gates beside those of ups: sums stay in a cache until they have been through the activation. It knows shapes and pointers, no
//! arithmetic.

use std::marker::PhantomData;
use std::ops::Range;

use vllm_apple_ops::{Activation, DType};

use super::call::{Call, NO_POINTERS, Worker, outputs_of};
use super::format::PANEL;
use super::plan::Item;
use super::tile::{MAX_TILE_ROWS, Outputs, Shared};
use crate::gated_activation::{Part, run_parts};
use crate::pack::{PackedMatrix, SendPtr};

/// What becomes of a call's sums: the first half of its outputs are gates, the second half ups.
pub struct Gated<'a> {
    activation: Activation,
    dtype: DType,
    /// `[rows, outputs / 2]` of `dtype`.
    out: SendPtr<u8>,
    bytes: usize,
    lifetime: PhantomData<&'a mut [u8]>,
}

/// Sums of a tile, of gates and of ups.
#[repr(C, align(64))]
struct Sums([[[f32; PANEL]; MAX_TILE_ROWS]; 2]);

impl<'a> Gated<'a> {
    /// How many panels of weights an item's panel stands for.
    pub(super) const TOGETHER: usize = 2;

    /// Activations of `dtype` to `out`, which is as long as they are.
    #[must_use]
    pub fn new(activation: Activation, dtype: DType, out: &'a mut [u8]) -> Self {
        Self { activation, dtype, out: SendPtr(out.as_mut_ptr()), bytes: out.len(), lifetime: PhantomData }
    }

    /// Whether gates and ups are whole panels.
    pub(super) fn fits(weights: &PackedMatrix) -> bool {
        weights.n().is_multiple_of(Self::TOGETHER * PANEL)
    }

    pub(super) fn check(&self, weights: &PackedMatrix, rows: usize) {
        assert!(Self::fits(weights), "gates and ups must be whole panels");
        assert_eq!(
            self.bytes,
            rows * weights.n() / Self::TOGETHER * self.dtype.size(),
            "out must have a row for each of x"
        );
    }
}

impl Call<'_> {
    /// All rows of the item against a panel of gates and that of the same columns' ups. If K is cut, sums pass through the call's own `out`.
    pub(super) fn gated_panels(
        &self,
        gated: &Gated<'_>,
        worker: &Worker<'_>,
        item: &Item,
        panel: usize,
        steps: Range<usize>,
    ) {
        let panels = [panel, panel + self.weights.panels() / Gated::TOGETHER];
        if self.slice_steps(item, &steps) < self.weights.steps() {
            for panel in panels {
                self.whole_panel(worker, item, panel, steps.clone());
            }
            if steps.end == self.weights.steps() {
                let [mut of_gates, mut of_ups] = [NO_POINTERS; Gated::TOGETHER];
                for tile in item.tiles.clone() {
                    let gates = self.outputs(tile, panels[0], &mut of_gates);
                    let sums = [gates, self.outputs(tile, panels[1], &mut of_ups)];
                    self.activate(gated, tile, panel, &sums);
                }
            }
            return;
        }
        let mut sums = Sums([[[0.0; PANEL]; MAX_TILE_ROWS]; Gated::TOGETHER]);
        let [gates, ups] = &mut sums.0;
        let sums = [outputs_of(gates), outputs_of(ups)];
        let parts = [0, 1].map(|i| self.part(worker, item, panels[i], steps.clone(), i));
        for tile in item.tiles.clone() {
            let shared = self.activations_of(gated, tile, panel);
            for (part, out) in parts.iter().zip(&sums) {
                self.whole_tile(worker, item, part, tile, out, &shared);
            }
            self.activate(gated, tile, panel, &sums);
        }
    }

    /// Where those of a tile's sums go, to be asked for. There are no gates of groups: rows are in order.
    fn activations_of(&self, gated: &Gated<'_>, tile: usize, panel: usize) -> Shared {
        let size = gated.dtype.size();
        let row = self.weights.n() / Gated::TOGETHER * size;
        let writes = gated.out.get().wrapping_add(self.plan.tile_rows(tile).start * row + panel * PANEL * size);
        Shared { writes, writes_row: row }
    }

    /// The activations of a tile's sums.
    fn activate(&self, gated: &Gated<'_>, tile: usize, panel: usize, sums: &[Outputs<'_>; Gated::TOGETHER]) {
        let (width, size) = (self.weights.n() / Gated::TOGETHER, gated.dtype.size());
        let rows = &self.plan.out_rows()[self.plan.tile_rows(tile)];
        let parts = rows.iter().enumerate().map(|(i, &row)| {
            // SAFETY: sums of whole panels, which this thread alone has; `out` has a row for each of the plan's, and no other item has these
            // rows and this panel.
            unsafe {
                Part {
                    gate: std::slice::from_raw_parts(sums[0].row(i), PANEL),
                    up: std::slice::from_raw_parts(sums[1].row(i), PANEL),
                    out: std::slice::from_raw_parts_mut(
                        gated.out.get().add((row as usize * width + panel * PANEL) * size),
                        PANEL * size,
                    ),
                }
            }
        });
        run_parts(self.kernel.dispatch(), gated.activation, gated.dtype, parts);
    }
}
