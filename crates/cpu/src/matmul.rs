//! Matrix multiplication with packed weights: plans the work of a call and shares it among threads. It knows nothing of
//! instruction sets beyond the tile kernel that it is given.
//!
//! A call treats pairs of (row block, run of panels) as items that threads take as they become free. Its activations are packed
//! into tiles before, or those of few rows by each thread that comes to need them. However the work is cut, each output element
//! is one lane that adds up K in one order: results do not depend on the number of rows, threads, or on what else is in the batch.

mod activations;
mod call;
pub(crate) mod codes;
pub(crate) mod format;
mod gated;
mod matrices;
mod packing;
mod plan;
mod spin;
pub(crate) mod tile;

use vllm_apple_ops::{Activations, Result, SUPER_BLOCK, StepSize, WeightFormat};

use crate::isa::Isa;
use crate::memory::Memory;
use crate::pack::{PackedMatrix, SendPtr, steps};
use crate::simd::Dispatch;
use call::Call;
use codes::FEW_ROWS;
use format::Unit;
pub use gated::Gated;
use packing::{Packed, PackedMemory, Packing};
use plan::Plan;
pub(crate) use spin::spin_bytes;
use tile::TileKernel;
use vllm_apple_ops::pool::Pool;

/// Panels from which on activations in several tiles are packed for matrices, though these can read them where they lie: the order in which they
/// are read is then that in memory. Fewer panels do not win back the time.
const PACK_FROM_PANELS: usize = 64;

/// Weights of a panel that a thread lays out for several tiles, at most: with the rows that go through them they stay in the second-level cache.
const LAID_OUT_BYTES: usize = 256 * 1024;

/// Rows from which on gates and ups are multiplied together. The weights of fewer are then read as two streams instead of one, which costs
/// as much as is won.
const LEAST_GATED_ROWS: usize = 16;

/// The same of codes that vectors multiply, whose tiles take longer.
const LEAST_GATED_ROWS_OF_CODES: usize = 48;

/// Bytes of 16 units of activations: matrices are loaded by lines.
const LINE_BYTES: usize = 64;

/// Reusable memory of the matmuls of one backend. [`Matmuls::reserve`] grows it to what a step needs, and a call that
/// nobody has announced grows it too.
#[derive(Debug)]
pub struct Matmuls {
    dispatch: Dispatch,
    plan: Plan,
    activations: PackedMemory,
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
            activations: PackedMemory::default(),
            laid_out: Memory::default(),
        }
    }

    /// Makes room for every matmul of a step.
    pub(crate) fn reserve(&mut self, step: &StepSize, threads: usize) -> Result<()> {
        self.plan.reserve(most_rows(step), step.model.num_experts);
        self.reserve_laid_out(step.model.weights, threads)?;
        self.activations.reserve(self.activation_units(step), threads)
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

    /// Bytes that [`Matmuls::reserve`] grows to.
    pub(crate) fn bytes(&self, step: &StepSize, threads: usize) -> usize {
        Plan::bytes(most_rows(step), step.model.num_experts)
            + self.laid_out_bytes(step.model.weights, threads)
            + PackedMemory::bytes(self.activation_units(step), threads)
    }

    /// Units of the largest matmul of a step: that of all tokens, that of the rows of logits, or that of all pairs of a token
    /// and an expert.
    fn activation_units(&self, step: &StepSize) -> usize {
        let m = &step.model;
        // Not all weights of a quantised model need be quantised, nor all of their activations be rounded.
        let formats = [m.weights, m.weights.with(Activations::Exact), WeightFormat::Float(m.weights.input())];
        let units = |rows: usize, k: usize| {
            let of_format = |format| {
                // Of a mixture of formats, others than this one may fill up rows by more.
                let k = if let WeightFormat::Quantised(_) = format { k.next_multiple_of(SUPER_BLOCK) } else { k };
                let units = |rows: usize, per_matrix: usize| {
                    let needs = TileKernel::new(self.dispatch, format, per_matrix).needs();
                    rows * match needs.unit {
                        // The model's groups are these or larger ones, which may be rounded up by more.
                        Unit::GroupsOfPairs16 { size, sums, .. } => matrices::codes::most_units(k, size, sums),
                        _ => needs.units(steps(format, k)),
                    }
                };
                // Few rows, of each expert where there are some, may take another kernel than more, whose units may be more; those of bytes are as many.
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
        self.columns(pool, weights, x, bias, Columns::whole(out, weights));
    }

    /// The same to some columns of a wider matrix, whose others stay as they are.
    ///
    /// # Panics
    /// As [`Matmuls::matmul`], or if the columns are not within the matrix.
    pub fn columns(&mut self, pool: &Pool, weights: &PackedMatrix, x: &[u8], bias: Option<&[f32]>, out: Columns<'_>) {
        let rows = self.check_dense(weights, x, bias, out.out, out.cols);
        let kernel = self.kernel(weights, rows);
        self.plan.dense(rows, weights, 1, kernel.needs().rows, pool.threads());
        let (out, cols) = out.products(weights, rows);
        self.compute(pool, kernel, weights, Operands { x, bias, out, cols, gated: None });
    }

    /// As [`Matmuls::matmul`] to `gate_up`, and then its activation, with the bits of the two. What is in `gate_up` afterwards may be anything.
    ///
    /// # Panics
    /// As [`Matmuls::matmul`], or if gates and ups are not whole panels.
    pub fn gated(
        &mut self,
        pool: &Pool,
        weights: &PackedMatrix,
        x: &[u8],
        bias: Option<&[f32]>,
        gate_up: &mut [f32],
        gated: Gated<'_>,
    ) {
        let rows = self.check_dense(weights, x, bias, gate_up, weights.n());
        gated.check(weights, rows);
        let kernel = self.kernel(weights, rows);
        self.plan.dense(rows, weights, Gated::TOGETHER, kernel.needs().rows, pool.threads());
        self.compute(pool, kernel, weights, Operands { x, bias, out: gate_up, cols: weights.n(), gated: Some(gated) });
    }

    /// Whether [`Matmuls::gated`] takes these weights and is faster than the two ops: many rows' products are more than caches hold.
    pub(crate) fn gains_from_gated(&self, weights: &PackedMatrix, rows: usize) -> bool {
        if rows < LEAST_GATED_ROWS || !Gated::fits(weights) {
            return false;
        }
        let is_quantised = matches!(weights.format(), WeightFormat::Quantised(_));
        let by_vectors = || !self.kernel(weights, rows).needs().rows.are_matrices();
        rows >= LEAST_GATED_ROWS_OF_CODES || !(is_quantised && by_vectors())
    }

    /// Where the matrix that has the most rows has so many. It takes as long to make as some panels of a row.
    fn kernel(&self, weights: &PackedMatrix, rows: usize) -> TileKernel {
        TileKernel::new(self.dispatch, weights.format(), rows)
    }

    /// The number of rows, if all fits.
    fn check_dense(&self, weights: &PackedMatrix, x: &[u8], bias: Option<&[f32]>, out: &[f32], cols: usize) -> usize {
        let rows = out.len() / cols;
        assert_eq!(out.len(), rows * cols, "out must be whole rows");
        assert!(x.len() >= rows * weights.k() * weights.format().input().size(), "x must have a row for each of out");
        assert!(bias.is_none_or(|bias| bias.len() == weights.n()), "bias must have a value per output");
        rows
    }

    /// `out[p, first + n] = sum_k x[p / pairs.per_row, k] * weights[e, n, k] + bias[e, n]` with `e = pairs.ids[p]`: each pair of token and
    /// expert is a row of `out`. All experts are one parallel loop.
    ///
    /// # Panics
    /// As [`Matmuls::columns`], or if an id is not below the number of groups.
    pub fn grouped(
        &mut self,
        pool: &Pool,
        weights: &PackedMatrix,
        x: &[u8],
        pairs: Pairs<'_>,
        bias: Option<&[f32]>,
        out: Columns<'_>,
    ) {
        let Pairs { ids, per_row } = pairs;
        let (out, cols) = out.products(weights, ids.len());
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
        self.compute(pool, kernel, weights, Operands { x, bias, out, cols, gated: None });
    }

    fn compute(
        &mut self,
        pool: &Pool,
        kernel: TileKernel,
        weights: &PackedMatrix,
        Operands { x, bias, out, cols, gated }: Operands<'_>,
    ) {
        let needs = kernel.needs();
        let row_bytes = weights.k() * weights.format().input().size();
        let in_place = needs.unit == Unit::Bf16Pairs16
            && self.plan.is_in_order()
            && (self.plan.tiles() == 1 || weights.panels() < PACK_FROM_PANELS)
            && row_bytes == needs.units(weights.steps()) * size_of::<u32>();
        if let Err(error) = self.reserve_laid_out(weights.format(), pool.threads()) {
            panic!("a matmul that was not announced: {error}");
        }
        let (dispatch, plan, k, units) = (self.dispatch, &self.plan, weights.k(), needs.units(weights.steps()));
        let packing = Packing { dispatch, plan, needs, x, dtype: weights.format().input(), k, units };
        let activations = if in_place { Packed::Together(x) } else { self.activations.pack(pool, packing) };
        let (out, laid_out) = (SendPtr(out.as_mut_ptr()), SendPtr(self.laid_out.bytes_mut().as_mut_ptr()));
        let plan = &self.plan;
        let call = Call { kernel, weights, plan, activations, in_place, needs, bias, laid_out, out, cols, gated };
        for steps in call.slices() {
            pool.run(self.plan.items(), &|item, thread| call.run(self.plan.item(item), steps.clone(), thread));
        }
    }
}

/// What a call computes with beside the weights, and where to.
struct Operands<'a> {
    x: &'a [u8],
    bias: Option<&'a [f32]>,
    /// From the first of the products on.
    out: &'a mut [f32],
    /// Elements from a row of `out` to the next.
    cols: usize,
    gated: Option<Gated<'a>>,
}

/// Where products go: to columns of a matrix from `first` on.
pub struct Columns<'a> {
    /// `[rows, cols]`.
    pub out: &'a mut [f32],
    /// Of the matrix.
    pub cols: usize,
    /// The column of the first product.
    pub first: usize,
}

impl<'a> Columns<'a> {
    /// A matrix of these weights' products alone.
    pub fn whole(out: &'a mut [f32], weights: &PackedMatrix) -> Self {
        Self { out, cols: weights.n(), first: 0 }
    }

    /// The matrix from the first of so many rows' products on, and its columns.
    fn products(self, weights: &PackedMatrix, rows: usize) -> (&'a mut [f32], usize) {
        let Self { out, cols, first } = self;
        assert!(first + weights.n() <= cols, "the products must be within a row of out");
        assert_eq!(out.len(), rows * cols, "out must have a row for each of the products");
        (&mut out[if rows == 0 { 0 } else { first }..], cols)
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
