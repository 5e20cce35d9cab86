//! Panels of gates beside those of ups: sums stay in a cache until they have been through the activation. It knows shapes and pointers, no
//! arithmetic.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

use vllm_apple_ops::{Activation, DType};

use super::LINE_BYTES;
use super::call::{Call, NO_POINTERS, Worker, outputs_of};
use super::format::PANEL;
use super::plan::Item;
use super::tile::{MAX_TILE_ROWS, Outputs, Shared};
use crate::gated_activation::{Part, run_parts};
use crate::pack::{PackedMatrix, SendPtr};
use crate::simd::Dispatch;

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
    /// All rows of the item against a panel of gates and that of the same columns' ups. If K is cut, as by vectors and where not all codes that are laid out
    /// stay in a cache, sums pass through the call's own `out`.
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
                    let sums =
                        [self.outputs(tile, panels[0], &mut of_gates), self.outputs(tile, panels[1], &mut of_ups)];
                    self.gated_rows(gated, tile, panel, &sums).finish();
                }
            }
            return;
        }
        let mut buffers = [const { Sums([[[0.0; PANEL]; MAX_TILE_ROWS]; Gated::TOGETHER]) }; 2];
        let sums = buffers.each_mut().map(|Sums([gates, ups])| [outputs_of(gates), outputs_of(ups)]);
        let parts = [0, 1].map(|i| self.part(worker, item, panels[i], steps.clone(), i));
        let mut last: Option<GatedRows<'_>> = None;
        for (tile, sums) in item.tiles.clone().zip(sums.iter().cycle()) {
            let this = self.gated_rows(gated, tile, panel, sums);
            let beside = last.as_ref();
            let writes_lines = (PANEL * this.dtype.size()).div_ceil(LINE_BYTES);
            let while_gates = Shared { beside, ..Shared::NOTHING };
            let while_ups = Shared { writes: this.out, writes_row: this.out_row, writes_lines, beside };
            self.whole_tile(worker, item, &parts[0], tile, &sums[0], &while_gates);
            self.whole_tile(worker, item, &parts[1], tile, &sums[1], &while_ups);
            last.replace(this).iter().for_each(GatedRows::finish);
        }
        last.iter().for_each(GatedRows::finish);
    }

    /// Those of a tile. There are no gates of groups: rows are in order.
    fn gated_rows<'a>(
        &self,
        gated: &Gated<'_>,
        tile: usize,
        panel: usize,
        sums: &'a [Outputs<'a>; Gated::TOGETHER],
    ) -> GatedRows<'a> {
        let (rows, size) = (self.plan.tile_rows(tile), gated.dtype.size());
        let out_row = self.weights.n() / Gated::TOGETHER * size;
        GatedRows {
            dispatch: self.kernel.dispatch(),
            activation: gated.activation,
            dtype: gated.dtype,
            sums,
            out: gated.out.get().wrapping_add(rows.start * out_row + panel * PANEL * size),
            out_row,
            rows: rows.len(),
            done: Cell::new(0),
        }
    }
}

/// Rows of a tile whose sums have yet to go through the activation, one after the other.
pub(crate) struct GatedRows<'a> {
    dispatch: Dispatch,
    pub activation: Activation,
    pub dtype: DType,
    sums: &'a [Outputs<'a>; Gated::TOGETHER],
    /// Of the tile's first row. Others follow at so many bytes.
    out: *mut u8,
    out_row: usize,
    rows: usize,
    done: Cell<usize>,
}

impl GatedRows<'_> {
    /// A row for the caller to compute, if one is left.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<Part<'_>> {
        let row = self.done.get();
        if row == self.rows {
            return None;
        }
        self.done.set(row + 1);
        // SAFETY: sums of whole panels, which this thread alone has; `out` has a row for each of the tile's, no other item has these rows and this panel, and
        // each row is given once.
        Some(unsafe {
            Part {
                gate: std::slice::from_raw_parts(self.sums[0].row(row), PANEL),
                up: std::slice::from_raw_parts(self.sums[1].row(row), PANEL),
                out: std::slice::from_raw_parts_mut(self.out.add(row * self.out_row), PANEL * self.dtype.size()),
            }
        })
    }

    /// Computes what is left.
    fn finish(&self) {
        run_parts(self.dispatch, self.activation, self.dtype, std::iter::from_fn(|| self.next()));
    }
}
