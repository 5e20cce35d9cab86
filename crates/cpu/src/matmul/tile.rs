//! The tile kernel, generic over instruction set and weight format. It knows nothing of threads, matrices or blocking.
//!
//! A tile is a few rows of activations against one panel of 32 outputs. Outputs sit in vector lanes and K runs sequentially,
//! so the additions behind an output element have the same order whatever the number of rows in the tile: this is where the
//! invariance of results over batch size comes from. Cutting K in two changes nothing either, as the accumulators pass
//! through `out` as the f32 that they are.

use std::marker::PhantomData;

use vllm_apple_ops::{DType, WeightFormat};

use crate::isa::Isa;
use crate::matmul::codes::{CodesKernel, Layout};
use crate::matmul::format::{Format, Unit, unit, units};
use crate::matmul::gated::GatedRows;
use crate::matmul::matrices::{self, Matrices};
use crate::matmul::plan::TileRows;
use crate::matmul::spin::Spin;
use crate::simd::{Cache, Dispatch, Kernel, LANES, Simd, load_again, with_float};

/// The most rows that a tile may have with any instruction set.
pub(crate) const MAX_TILE_ROWS: usize = 32;

/// The most rows of a tile of vectors.
pub(super) const MAX_VECTOR_ROWS: usize = 12;

/// How far ahead of its use a weight is asked for where one tile takes all rows: 8 KiB of work of an eight-row tile are as
/// long as a memory access takes under load.
pub(crate) const PREFETCH_BYTES: usize = 8 * 1024;

/// The most rows of a tile: those whose sums of 16 outputs fit the registers, beside a vector of weights and an activation.
pub(crate) const fn max_rows<S: Simd>() -> usize {
    let rows = S::REGISTERS - 2;
    if rows < MAX_VECTOR_ROWS { rows } else { MAX_VECTOR_ROWS }
}

/// One call of a tile kernel.
pub(crate) struct Tile<'a> {
    /// Activations in the kernel's [`Unit`], for vectors `[steps * units][rows]`: see [`crate::matmul::activations`].
    pub x: *const u32,
    /// Bytes between rows, and between blocks of 16 pairs of a row: for matrices of bf16.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no matrices there"))]
    pub x_row: usize,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no matrices there"))]
    pub x_block: usize,
    /// Weights of the panel, `[steps]` times `Format::STEP_BYTES`.
    pub weights: *const u8,
    /// The same as [`TileKernel::lay_out`] writes them, or null.
    pub laid_out: *const u8,
    /// How many steps of K to do.
    pub steps: usize,
    /// How many rows.
    pub rows: usize,
    /// Where their outputs go.
    pub out: &'a Outputs<'a>,
    /// Continue from the sums in `out` instead of zero.
    pub resume: bool,
    /// Added last: 32 values, or null.
    pub bias: *const f32,
    /// Weights to fetch from memory meanwhile.
    pub prefetch: Prefetch,
    /// Where other tiles take the same weights.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no matrices there"))]
    pub shared: Option<&'a Shared<'a>>,
}

/// Where the 32 outputs of each row of a tile are. By reference: a copy of what has just been written waits for all that was written before it.
pub(crate) enum Outputs<'a> {
    /// So many bytes apart: matrices can be written in place.
    Even {
        first: *mut f32,
        distance: usize,
    },
    Listed(&'a [*mut f32]),
}

impl Outputs<'_> {
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> *mut f32 {
        match *self {
            Self::Even { first, distance } => first.wrapping_byte_add(row * distance),
            Self::Listed(rows) => rows[row],
        }
    }
}

/// What a tile among several asks for beside weights, as neither its activations nor what it writes are in the first-level cache, and what else there is to
/// do. By reference, as outputs.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no matrices there"))]
pub(crate) struct Shared<'a> {
    /// What will be written of the first row. It need not be valid.
    pub writes: *const u8,
    /// Bytes to that of the next row.
    pub writes_row: usize,
    /// Cache lines of each row, at most two.
    pub writes_lines: usize,
    /// Rows of the tile before, whose activations may be computed meanwhile.
    pub beside: Option<&'a GatedRows<'a>>,
}

impl Shared<'_> {
    pub(crate) const NOTHING: Self = Self { writes: std::ptr::null(), writes_row: 0, writes_lines: 0, beside: None };
}

/// Memory to ask for while computing: `bytes_per_step` at every step, of floats at most two cache lines. Need not be valid.
#[derive(Clone, Copy)]
pub(crate) struct Prefetch {
    pub from: *const u8,
    pub bytes_per_step: usize,
}

impl Prefetch {
    /// For a tile that is too small to bother.
    pub(crate) const NOTHING: Self = Self { from: std::ptr::null(), bytes_per_step: 0 };

    /// For a stream whose steps of `step_bytes` bytes come soon after `at`.
    pub(crate) fn ahead(at: *const u8, step_bytes: usize) -> Self {
        Self { from: at.wrapping_add(PREFETCH_BYTES), bytes_per_step: step_bytes }
    }
}

/// The tile kernel for an instruction set and a weight format.
pub(crate) struct TileKernel {
    dispatch: Dispatch,
    weights: Weights,
    needs: Needs,
}

/// What weights are, to a kernel.
enum Weights {
    Floats(DType),
    Codes(CodesKernel),
}

/// What the callers of a tile kernel must know.
#[derive(Clone, Copy)]
pub(crate) struct Needs {
    /// How many rows a tile may have.
    pub rows: TileRows,
    /// What activations are.
    pub unit: Unit,
    /// Units of activation per step of K and row.
    pub units_per_step: usize,
    /// Steps of K whose activations lie together: zeros stand in for those that a row lacks.
    pub steps_together: usize,
    /// `None` where weights are multiplied as they lie.
    pub laid_out: Option<WhenLaidOut>,
}

/// What [`TileKernel::lay_out`] makes, and for whom.
#[derive(Clone, Copy)]
pub(crate) struct WhenLaidOut {
    /// Of a step of a panel.
    pub step_bytes: usize,
    /// Tiles from which on it pays: what fewer save is lost by reading more bytes.
    pub from_tiles: usize,
}

impl Needs {
    /// Units of activation of a row of so many steps.
    pub(crate) fn units(&self, steps: usize) -> usize {
        steps.next_multiple_of(self.steps_together) * self.units_per_step
    }
}

impl TileKernel {
    /// For calls in which the matrix of weights that has the most rows has so many.
    pub(crate) fn new(dispatch: Dispatch, format: WeightFormat, rows: usize) -> Self {
        let (weights, needs) = match (dispatch.isa(), format) {
            (Isa::AmxBf16, WeightFormat::Float(DType::BF16)) => (Weights::Floats(DType::BF16), matrices::NEEDS),
            (_, WeightFormat::Float(dtype)) => {
                (Weights::Floats(dtype), with_float!(dtype, F => dispatch.run(Describe::<F>(PhantomData))))
            }
            (_, WeightFormat::Quantised(quantised)) => {
                let layout = Layout::new(quantised);
                let layout = layout.unwrap_or_else(|| unreachable!("weights of {quantised} were not loaded"));
                let kernel = CodesKernel::new(dispatch.isa(), quantised, layout, rows);
                let needs = kernel.needs(dispatch);
                (Weights::Codes(kernel), needs)
            }
        };
        Self { dispatch, weights, needs }
    }

    pub(crate) fn dispatch(&self) -> Dispatch {
        self.dispatch
    }

    pub(crate) fn needs(&self) -> Needs {
        self.needs
    }

    /// What a thread must have while it calls [`TileKernel::run`].
    pub(crate) fn begin(&self) -> Option<Matrices> {
        // SAFETY: `Dispatch` has checked that the machine has the instruction set.
        self.needs.rows.are_matrices().then(|| unsafe { Matrices::begin() })
    }

    /// Computes one tile, with what [`TileKernel::begin`] gave this thread.
    ///
    /// # Safety
    /// The pointers in the tile must be valid for what its fields say, and its rows between 1 and the most of [`Needs`].
    pub(crate) unsafe fn run(&self, begun: &Option<Matrices>, tile: &Tile<'_>) {
        match (begun, &self.weights) {
            (Some(matrices), Weights::Floats(_)) => self.dispatch.run(matrices.multiply(tile)),
            (None, Weights::Floats(dtype)) => {
                with_float!(*dtype, F => {
                    with_rows!(tile.rows, ROWS => self.dispatch.run(Multiply::<F, ROWS>(tile, PhantomData)));
                });
            }
            (_, Weights::Codes(kernel)) => kernel.run(self.dispatch, begun, tile),
        }
    }

    /// Writes a part of a panel's weights as kernels take them with the least work, for several tiles.
    ///
    /// # Safety
    /// `weights` must be where so many steps of the panel begin, and `to` must have room for as many times [`WhenLaidOut::step_bytes`].
    pub(crate) unsafe fn lay_out(&self, weights: *const u8, steps: usize, to: *mut u8) {
        match &self.weights {
            // SAFETY: the caller vouches for the pointers.
            Weights::Codes(kernel) => unsafe { kernel.lay_out(self.dispatch, weights, steps, to) },
            Weights::Floats(_) => unreachable!("floats are multiplied as they lie"),
        }
    }

    /// Multiplies and adds in registers only, to measure the machine's peak; returns how many operations that were.
    pub(crate) fn spin(&self, rounds: usize) -> usize {
        match (self.begin(), &self.weights) {
            (Some(matrices), _) => matrices.spin(rounds),
            (None, Weights::Floats(dtype)) => {
                with_float!(*dtype, F => self.dispatch.run(Spin::<F> { rounds, format: PhantomData }))
            }
            (None, Weights::Codes(_)) => self.dispatch.run(Spin::<f32> { rounds, format: PhantomData }),
        }
    }
}

/// Evaluates an expression with the constant `$ROWS` standing for the number of rows of a tile of vectors. What an instruction set never has must be
/// behind an `if const`: other conditions compile it first and drop it then, which were nine in ten of all kernels and most of the time. Each number of
/// rows is a [`Kernel`] of its own, as the compiler takes a fifth longer for all of them in one function.
macro_rules! with_rows {
    ($rows:expr, $ROWS:ident => $body:expr) => {
        crate::matmul::tile::with_rows!($rows, $ROWS => $body, 1 2 3 4 5 6 7 8 9 10 11 12)
    };
    ($rows:expr, $ROWS:ident => $body:expr, $($count:literal)+) => {
        match $rows {
            $($count => {
                const $ROWS: usize = $count;
                $body
            })+
            rows => unreachable!("no tile has {rows} rows"),
        }
    };
}
pub(crate) use with_rows;

/// What an instruction set makes of a format.
struct Describe<F>(PhantomData<F>);

impl<F: Format> Kernel for Describe<F> {
    type Output = Needs;
    const DOT: bool = F::ELEMENTS == 2;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Needs {
        Needs {
            rows: TileRows { most: max_rows::<S>(), multiple: 1 },
            unit: unit::<S, F>(),
            units_per_step: units::<S, F>(),
            steps_together: 1,
            laid_out: None,
        }
    }
}

/// One tile, whose pointers and rows [`TileKernel::run`] vouches for.
struct Multiply<'a, F, const ROWS: usize>(&'a Tile<'a>, PhantomData<F>);

impl<F: Format, const ROWS: usize> Kernel for Multiply<'_, F, ROWS> {
    type Output = ();
    const DOT: bool = F::ELEMENTS == 2;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.tile(s);
    }
}

impl<F: Format, const ROWS: usize> Multiply<'_, F, ROWS> {
    /// `ROWS` rows against the panel: all of it at once where the registers hold that, or else one half after the other.
    #[inline(always)]
    fn tile<S: Simd>(&self, s: S) {
        if const { ROWS > max_rows::<S>() } {
            unreachable!("no tile has {ROWS} rows");
        } else if const { 2 * ROWS + 3 <= S::REGISTERS } {
            self.vectors::<S, 2>(s, 0);
        } else {
            self.vectors::<S, 1>(s, 0);
            self.vectors::<S, 1>(s, 1);
        }
    }

    /// `VECTORS` vectors of the panel's outputs from number `first` on.
    #[inline(always)]
    fn vectors<S: Simd, const VECTORS: usize>(&self, s: S, first: usize) {
        let tile = self.0;
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        // SAFETY: a tile has `ROWS` pointers to the panel's outputs, and a bias is as long; all are of whole vectors.
        let out =
            |row: usize, v: usize| unsafe { &mut *tile.out.row(row).add((first + v) * LANES).cast::<[f32; LANES]>() };
        if tile.resume {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = s.load(out(row, v));
                }
            }
        }
        sums = self.multiply(s, first, sums);
        for (row, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                let sum = if tile.bias.is_null() {
                    sum
                } else {
                    // SAFETY: as above.
                    s.add(sum, s.load(unsafe { &*tile.bias.add((first + v) * LANES).cast() }))
                };
                s.store(sum, out(row, v));
            }
        }
    }

    /// The loop over K.
    #[inline(always)]
    fn multiply<S: Simd, const VECTORS: usize>(
        &self,
        s: S,
        first: usize,
        mut sums: [[S::V; VECTORS]; ROWS],
    ) -> [[S::V; VECTORS]; ROWS] {
        let tile = self.0;
        let (mut x, mut step, mut prefetch) = (tile.x, tile.weights, tile.prefetch.from);
        // More rows spend longer on a step: into the first level, what comes next would push out what they are at.
        let cache = if ROWS < 4 { Cache::First } else { Cache::Second };
        let mut single = tile.steps;
        if const { F::ELEMENTS == 2 && takes_two_rows::<S>(ROWS) } {
            single = tile.steps % 2;
            s.pair_rows(&mut sums);
            // Nothing is asked for ahead: sets with such an instruction leave that to the processor.
            for _ in 0..tile.steps / 2 {
                // SAFETY: a tile has `steps` steps of weights and of activations.
                let weights = |i, v| unsafe { F::weights(s, step.wrapping_add(i * F::STEP_BYTES), first + v, 0) };
                // SAFETY: as above.
                s.dot_bf16_rows(&mut sums, weights, unsafe { [&*x.cast(), &*x.add(ROWS).cast()] });
                x = x.wrapping_add(2 * ROWS);
                step = step.wrapping_add(2 * F::STEP_BYTES);
            }
            s.pair_rows(&mut sums);
        }
        for _ in 0..single {
            s.prefetch(cache, prefetch);
            s.prefetch(cache, prefetch.wrapping_add(tile.prefetch.bytes_per_step / 2));
            prefetch = prefetch.wrapping_add(tile.prefetch.bytes_per_step);
            for unit in 0..const { units::<S, F>() } {
                // Where the registers do not hold what both units are made of beside the sums and an activation.
                if const { units::<S, F>() > 1 && VECTORS * (ROWS + 2) + 1 > S::REGISTERS } {
                    load_again();
                }
                let mut weights = [s.splat(0.0); VECTORS];
                for (v, weights) in weights.iter_mut().enumerate() {
                    // SAFETY: a tile has `steps` steps of weights and of activations.
                    *weights = unsafe { F::weights(s, step, first + v, unit) };
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: as above.
                    let x = s.splat(f32::from_bits(unsafe { *x.add(unit * ROWS + row) }));
                    for (sum, &weights) in sums.iter_mut().zip(&weights) {
                        *sum = F::accumulate(s, *sum, weights, x);
                    }
                }
            }
            x = x.wrapping_add(const { units::<S, F>() } * ROWS);
            step = step.wrapping_add(F::STEP_BYTES);
        }
        sums
    }
}

/// Whether so many rows of bf16 are multiplied two at a time, with the bits of one after the other.
pub(crate) const fn takes_two_rows<S: Simd>(rows: usize) -> bool {
    S::BF16_ROWS && rows > 1
}
