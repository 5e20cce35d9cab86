//! Panels of gates beside those of ups: sums stay in a cache until they have been through the activation. It knows shapes and pointers, no
//! arithmetic.

use std::ops::Range;

use vllm_apple_ops::{Activation, DType};

use super::format::PANEL;
use super::matrices::Matrices;
use super::plan::Item;
use super::tile::MAX_TILE_ROWS;
use super::{Call, Rows};
use crate::gated_activation::{Part, run_parts};
use crate::pack::SendPtr;
use crate::simd::Dispatch;

/// What becomes of the sums: the first half of the outputs are gates, the second half ups.
pub(super) struct Gated {
    pub dispatch: Dispatch,
    pub activation: Activation,
    /// Of `out`.
    pub dtype: DType,
    /// `[rows, outputs / 2]`
    pub out: SendPtr<u8>,
}

/// Sums of a tile, of gates and of ups.
#[repr(C, align(64))]
struct Sums([[[f32; PANEL]; MAX_TILE_ROWS]; 2]);

impl Gated {
    /// How many panels of weights an item's panel stands for.
    pub(super) const TOGETHER: usize = 2;
}

impl Call<'_> {
    /// All rows of the item against a panel of gates and that of the same columns' ups. If K is cut, sums pass through the call's own `out`.
    pub(super) fn gated_panels(
        &self,
        gated: &Gated,
        begun: &Option<Matrices>,
        item: &Item,
        panel: usize,
        steps: Range<usize>,
    ) {
        let panels = [panel, panel + self.weights.panels() / Gated::TOGETHER];
        if self.slice_steps(item, &steps) < self.weights.steps() {
            for panel in panels {
                self.whole_panel(begun, item, panel, steps.clone());
            }
            if steps.end == self.weights.steps() {
                for tile in item.tiles.clone() {
                    let sums = panels.map(|panel| self.out_rows(tile, panel));
                    self.activate(gated, tile, panel, &sums);
                }
            }
            return;
        }
        let mut sums = Sums([[[0.0; PANEL]; MAX_TILE_ROWS]; Gated::TOGETHER]);
        let sums = sums.0.each_mut().map(|sums| sums.each_mut().map(|row| row.as_mut_ptr()));
        for tile in item.tiles.clone() {
            for (panel, out) in panels.into_iter().zip(&sums) {
                self.whole_tile(begun, item, panel, tile, steps.clone(), out);
            }
            self.activate(gated, tile, panel, &sums);
        }
    }

    /// The activations of a tile's sums.
    fn activate(&self, gated: &Gated, tile: usize, panel: usize, sums: &[Rows; Gated::TOGETHER]) {
        let (width, size) = (self.weights.n() / Gated::TOGETHER, gated.dtype.size());
        let rows = &self.plan.out_rows()[self.plan.tile_rows(tile)];
        let parts = rows.iter().enumerate().map(|(i, &row)| {
            // SAFETY: sums of whole panels, which this thread alone has; `out` has a row for each of the plan's, and no other item has these
            // rows and this panel.
            unsafe {
                Part {
                    gate: std::slice::from_raw_parts(sums[0][i], PANEL),
                    up: std::slice::from_raw_parts(sums[1][i], PANEL),
                    out: std::slice::from_raw_parts_mut(
                        gated.out.get().add((row as usize * width + panel * PANEL) * size),
                        PANEL * size,
                    ),
                }
            }
        });
        run_parts(gated.dispatch, gated.activation, gated.dtype, parts);
    }
}
