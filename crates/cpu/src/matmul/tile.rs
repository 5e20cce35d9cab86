//! The tile kernel, generic over instruction set and weight format. It knows nothing of threads, matrices or blocking.
//!
//! A tile is a few rows of activations against one panel of 32 outputs. Outputs sit in vector lanes and K runs sequentially,
//! so the additions behind an output element have the same order whatever the number of rows in the tile: this is where the
//! invariance of results over batch size comes from. Cutting K in two changes nothing either, as the accumulators pass
//! through `out` as the f32 that they are.

/// Outputs per panel.
pub(crate) const PANEL: usize = 32;

/// The most rows that a tile may have with any instruction set.
pub(crate) const MAX_TILE_ROWS: usize = 12;

/// One call of a tile kernel.
pub(crate) struct Tile<'a> {
    /// Activations, `[steps * units][rows]`: see [`crate::matmul::activations`].
    pub x: *const u32,
    /// Weights of the panel, `[steps]` times `Format::STEP_BYTES`.
    pub weights: *const u8,
    /// How many steps of K to do.
    pub steps: usize,
    /// Where each row's 32 outputs go; its length is the number of rows.
    pub out: &'a [*mut f32],
    /// Continue from the sums in `out` instead of zero.
    pub resume: bool,
    /// Added last: 32 values, or null.
    pub bias: *const f32,
    /// Weights to fetch from memory meanwhile.
    pub prefetch: Prefetch,
}

/// Memory to ask for while computing: `bytes_per_step`, at most two cache lines, at every step. Need not be valid.
#[derive(Clone, Copy)]
pub(crate) struct Prefetch {
    pub from: *const u8,
    pub bytes_per_step: usize,
}

impl Prefetch {
    /// For a tile that is too small to bother.
    pub(crate) const NOTHING: Self = Self { from: std::ptr::null(), bytes_per_step: 0 };
}

/// Computes one tile.
///
/// # Safety
/// The pointers in the tile must be valid for what its fields say, its rows between 1 and the kernel's largest tile, and the
/// machine must have the instruction set that the kernel was made for.
pub(crate) type TileKernel = unsafe fn(&Tile<'_>);

/// Vector registers of f32 and what the tile kernel does with them.
///
/// # Safety
/// All functions require that the machine has the instruction set, and pointers valid for the lanes that they touch.
pub(crate) trait Simd {
    type Reg: Copy;
    const LANES: usize;
    unsafe fn zero() -> Self::Reg;
    unsafe fn load(from: *const f32) -> Self::Reg;
    unsafe fn store(to: *mut f32, reg: Self::Reg);
    unsafe fn add(a: Self::Reg, b: Self::Reg) -> Self::Reg;
    /// One 32-bit unit in every lane.
    unsafe fn splat(from: *const u32) -> Self::Reg;
    /// Asks for the cache line at `at`, which need not be valid.
    unsafe fn prefetch(at: *const u8);
}

/// How weights lie in memory and are multiplied.
///
/// # Safety
/// As for [`Simd`].
pub(crate) trait Format {
    type Simd: Simd;
    /// 32-bit units of activation per step and row.
    const UNITS: usize;
    /// Bytes of a panel per step.
    const STEP_BYTES: usize;
    /// Weights for vector `vector` of the panel and unit `unit` of the step that begins at `step`.
    unsafe fn weights(step: *const u8, vector: usize, unit: usize) -> Reg<Self>;
    /// `sum + weights * x`.
    unsafe fn accumulate(sum: Reg<Self>, weights: Reg<Self>, x: Reg<Self>) -> Reg<Self>;
}

/// The register type of a format.
pub(crate) type Reg<F> = <<F as Format>::Simd as Simd>::Reg;

/// `ROWS` rows against the panel, `VECTORS` registers of outputs at a time.
///
/// # Safety
/// As for [`TileKernel`]; `tile.out` has `ROWS` pointers.
#[inline(always)]
pub(crate) unsafe fn tile<F: Format, const ROWS: usize, const VECTORS: usize>(tile: &Tile<'_>) {
    const { assert!(PANEL.is_multiple_of(VECTORS * F::Simd::LANES)) };
    debug_assert_eq!(tile.out.len(), ROWS);
    for first in (0..PANEL / F::Simd::LANES).step_by(VECTORS) {
        // SAFETY: the caller vouches for pointers and instruction set; `first + VECTORS` vectors lie within the panel.
        unsafe {
            let mut sums = [[F::Simd::zero(); VECTORS]; ROWS];
            if tile.resume {
                for (row, sums) in sums.iter_mut().enumerate() {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = F::Simd::load(tile.out.as_ptr().add(row).read().add((first + v) * F::Simd::LANES));
                    }
                }
            }
            sums = multiply::<F, ROWS, VECTORS>(tile, first, sums);
            for (row, sums) in sums.iter().enumerate() {
                for (v, &sum) in sums.iter().enumerate() {
                    let at = (first + v) * F::Simd::LANES;
                    let sum =
                        if tile.bias.is_null() { sum } else { F::Simd::add(sum, F::Simd::load(tile.bias.add(at))) };
                    F::Simd::store(tile.out.as_ptr().add(row).read().add(at), sum);
                }
            }
        }
    }
}

/// The loop over K.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn multiply<F: Format, const ROWS: usize, const VECTORS: usize>(
    tile: &Tile<'_>,
    first: usize,
    mut sums: [[Reg<F>; VECTORS]; ROWS],
) -> [[Reg<F>; VECTORS]; ROWS] {
    let (mut x, mut step, mut prefetch) = (tile.x, tile.weights, tile.prefetch.from);
    // SAFETY: the caller vouches for `steps` steps behind both pointers.
    unsafe {
        for _ in 0..tile.steps {
            F::Simd::prefetch(prefetch);
            F::Simd::prefetch(prefetch.wrapping_add(tile.prefetch.bytes_per_step / 2));
            prefetch = prefetch.wrapping_add(tile.prefetch.bytes_per_step);
            for unit in 0..F::UNITS {
                let mut weights = [F::Simd::zero(); VECTORS];
                for (v, weights) in weights.iter_mut().enumerate() {
                    *weights = F::weights(step, first + v, unit);
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let x = F::Simd::splat(x.add(unit * ROWS + row));
                    for (sum, &weights) in sums.iter_mut().zip(&weights) {
                        *sum = F::accumulate(*sum, weights, x);
                    }
                }
            }
            x = x.add(F::UNITS * ROWS);
            step = step.add(F::STEP_BYTES);
        }
    }
    sums
}

/// Multiplies and adds in registers only, to measure the machine's peak; returns the number of `accumulate` calls made.
///
/// # Safety
/// The machine must have the instruction set.
#[inline(always)]
pub(crate) unsafe fn spin_accumulate<F: Format>(rounds: usize) -> usize {
    const CHAINS: usize = 12;
    let zeros = [0.0f32; PANEL];
    // SAFETY: `zeros` holds at least one register of lanes; the caller vouches for the instruction set.
    unsafe {
        let zero = F::Simd::load(std::hint::black_box(zeros.as_ptr()));
        let mut sums = [zero; CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = F::accumulate(*sum, zero, zero);
            }
        }
        let mut out = [0.0f32; PANEL];
        for sum in sums {
            F::Simd::store(out.as_mut_ptr(), sum);
            std::hint::black_box(&out);
        }
    }
    rounds * CHAINS
}

/// Defines, for one format, the tile kernel that picks the instance for the tile's rows, and its peak measurement.
macro_rules! tile_kernels {
    ($name:ident, $peak:ident, $format:ty, $(#[$feature:meta],)? [$($rows:literal x $vectors:literal),+]) => {
        /// The tile kernel of this format: see [`TileKernel`](crate::matmul::tile::TileKernel).
        ///
        /// # Safety
        /// As for that type.
        $(#[$feature])?
        pub(crate) unsafe fn $name(tile: &crate::matmul::tile::Tile<'_>) {
            match tile.out.len() {
                // SAFETY: the caller vouches for pointers and instruction set; the arm has the number of rows.
                $($rows => unsafe { crate::matmul::tile::tile::<$format, $rows, $vectors>(tile) },)+
                rows => unreachable!("no tile kernel for {rows} rows"),
            }
        }

        /// Computes in registers only and returns how many multiply-add instructions that took.
        ///
        /// # Safety
        /// The machine must have the instruction set.
        $(#[$feature])?
        pub(crate) unsafe fn $peak(rounds: usize) -> usize {
            // SAFETY: the caller vouches for the instruction set.
            unsafe { crate::matmul::tile::spin_accumulate::<$format>(rounds) }
        }
    };
}
pub(crate) use tile_kernels;
