//! The tile kernel for quantised weights whose activations are rounded to 8 bits, generic over instruction set and kind of code. It knows nothing of
//! threads or blocking.
//!
//! The sum of a group's products is a whole number, so its additions may have any order, also that of matrices
//! ([`crate::matmul::matrices`]). Scales then take it into accumulators, group after group.

use std::marker::PhantomData;
use std::ops::Range;

use vllm_apple_ops::Codebook;

use super::CodesKernel;
use super::accumulators::{Accumulators, begin, finish};
use super::layout::{Code, Layout};
use crate::matmul::LINE_BYTES;
use crate::matmul::format::{Unit, VECTORS};
use crate::matmul::matrices;
use crate::matmul::plan::TileRows;
use crate::matmul::tile::{Needs, Prefetch, Tile, WhenLaidOut, max_rows, with_rows};
use crate::simd::{CHUNK, Cache, Dispatch, Kernel, LANES, PARTIAL_DOTS, Planes, Simd};

/// Flipped, it makes a signed byte one that is larger by 128, and the other way round.
const SIGN: u8 = 0x80;

/// Units of a group behind its elements: what is added to its whole number, and the scale of its activations.
const EXTRA_UNITS: usize = 2;

/// Evaluates an expression with `$C` standing for the kind of a code.
macro_rules! with_bytes {
    ($layout:expr, $C:ident => $body:expr) => {
        with_bytes!($layout, $C => $body, Code::Planes(2) if is_looked_up($layout), LookedUp<2>, Code::Planes(3) if is_looked_up($layout), LookedUp<3>,
            Code::Planes(4) if is_looked_up($layout), LookedUp<4>, Code::Planes(2), InPlanes<2>, Code::Planes(3), InPlanes<3>, Code::Planes(4), InPlanes<4>,
            Code::Planes(5), InPlanes<5>, Code::Planes(6), InPlanes<6>, Code::Signed, Signed, Code::Unsigned, Unsigned)
    };
    ($layout:expr, $C:ident => $body:expr, $($code_is:pat $(if $condition:expr)?, $kind:ty),+) => {
        match $layout.code {
            $($code_is $(if $condition)? => {
                type $C = $kind;
                $body
            })+
            code => unreachable!("no integers are {code:?}"),
        }
    };
}

/// For vectors or for matrices.
pub(super) fn needs(dispatch: Dispatch, layout: &Layout, matrices: bool) -> Needs {
    with_bytes!(layout, C => dispatch.run(Describe::<C> { layout, matrices, code: PhantomData }))
}

/// One tile, whose pointers and rows the caller of [`super::CodesKernel::run`] vouches for.
pub(super) fn run(dispatch: Dispatch, kernel: &CodesKernel, tile: &Tile<'_>) {
    let layout = &kernel.layout;
    if tile.laid_out.is_null() {
        return with_bytes!(layout, C => multiply::<C>(dispatch, kernel, tile));
    }
    match with_bytes!(layout, C => C::BITS) {
        ..=4 => multiply::<LaidOut<4>>(dispatch, kernel, tile),
        5..=6 => multiply::<LaidOut<6>>(dispatch, kernel, tile),
        _ => multiply::<LaidOut<8>>(dispatch, kernel, tile),
    }
}

fn multiply<C: Bytes>(dispatch: Dispatch, kernel: &CodesKernel, tile: &Tile<'_>) {
    with_rows!(tile.rows, ROWS => dispatch.run(Multiply::<C, ROWS>(tile, kernel, PhantomData)));
}

/// Writes some chunks of some steps of a panel's weights, one step's after the other's.
///
/// # Safety
/// `weights` must be where the panel's steps begin, and `to` must have room for the chunks.
pub(in crate::matmul) unsafe fn lay_out(
    dispatch: Dispatch,
    kernel: &CodesKernel,
    weights: *const u8,
    steps: Range<usize>,
    chunks: Range<usize>,
    to: *mut u8,
) {
    let to = to.cast();
    with_bytes!(&kernel.layout, C => dispatch.run(LayOut::<C> { kernel, weights, steps, chunks, to, code: PhantomData }));
}

/// The most rows of a tile: with more, little is won, and each number of rows is a kernel of its own.
const fn most_rows<S: Simd>() -> usize {
    const MOST: usize = 8;
    let rows = max_rows::<S>();
    if rows < MOST { rows } else { MOST }
}

/// Whether so many rows are multiplied two at a time, of codes that are laid out: others, two chunks at once, take more registers than there are.
const fn takes_two_rows<S: Simd, C: Bytes>(rows: usize) -> bool {
    S::BYTE_ROWS && C::LAID_OUT && rows > 1
}

/// Whether codes of up to 4 bits stand for whole numbers that are not one after the other.
fn is_looked_up(layout: &Layout) -> bool {
    !matches!(layout.codebook, Codebook::Integer { .. })
}

/// What makes whole numbers of a codebook's values.
fn factor(codebook: Codebook) -> f32 {
    codebook.whole_numbers().map_or(1.0, |whole| whole.factor)
}

/// The bytes of codes of up to 4 bits: signed.
pub(super) fn table(codebook: Codebook) -> [u8; LANES] {
    std::array::from_fn(|code| ((codebook.value(code as u8) * factor(codebook)) as i8).cast_unsigned())
}

/// Units of activation of a group.
pub(in crate::matmul) fn units(layout: &Layout) -> usize {
    layout.chunks() + EXTRA_UNITS + usize::from(layout.biases)
}

/// A chunk's bytes, once for several tiles: two rows of what matrices take.
pub(in crate::matmul) type Chunk = [[u8; CHUNK * LANES]; VECTORS];

/// A kind of code.
trait Bytes {
    /// Whether they are those of [`Tile::laid_out`].
    const LAID_OUT: bool = false;
    /// Of a code.
    const BITS: u8;

    /// The codes of vector `vector` of the panel for a chunk, as bytes that are multiplied.
    ///
    /// # Safety
    /// `chunk` is where a panel's chunk begins, and `vector` is below 2.
    unsafe fn load<S: Simd>(s: S, table: S::Bytes, chunk: *const u8, vector: usize) -> S::Bytes;

    /// What such a byte is above the code's value.
    fn above<S: Simd>(layout: &Layout) -> i32;
}

/// Chunks that have been laid out, of codes of at most so many bits.
struct LaidOut<const BITS: u8>;

impl<const BITS: u8> Bytes for LaidOut<BITS> {
    const LAID_OUT: bool = true;
    const BITS: u8 = BITS;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, _: S::Bytes, chunk: *const u8, vector: usize) -> S::Bytes {
        // SAFETY: the caller vouches for the chunk.
        s.read_bytes(unsafe { &(&*chunk.cast::<Chunk>())[vector] })
    }

    fn above<S: Simd>(_: &Layout) -> i32 {
        unreachable!("what is laid out is packed for as it lies")
    }
}

/// See [`Planes`].
struct InPlanes<const BITS: u8>;
/// The bytes of a table, of codes of so many bits.
struct LookedUp<const BITS: u8>;
struct Signed;
struct Unsigned;

impl<const BITS: u8> Bytes for InPlanes<BITS> {
    const BITS: u8 = BITS;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, _: S::Bytes, chunk: *const u8, vector: usize) -> S::Bytes {
        // SAFETY: the caller vouches for the chunk.
        s.load_codes::<BITS>(unsafe { Planes::new(chunk) }, vector)
    }

    fn above<S: Simd>(layout: &Layout) -> i32 {
        -layout.codebook.value(0) as i32
    }
}

impl<const BITS: u8> Bytes for LookedUp<BITS> {
    const BITS: u8 = 8;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, table: S::Bytes, chunk: *const u8, vector: usize) -> S::Bytes {
        // SAFETY: the caller vouches for the chunk.
        s.look_up_bytes(table, s.load_codes::<BITS>(unsafe { Planes::new(chunk) }, vector))
    }

    fn above<S: Simd>(layout: &Layout) -> i32 {
        Signed::above::<S>(layout)
    }
}

macro_rules! bytes {
    ($name:ident, $flip:expr, $above:expr) => {
        impl Bytes for $name {
            const BITS: u8 = 8;

            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, _: S::Bytes, chunk: *const u8, vector: usize) -> S::Bytes {
                // SAFETY: the caller vouches for the vector's part of the chunk.
                let codes = unsafe { &*chunk.cast::<[[u8; LANES]; CHUNK]>().add(vector) };
                s.load_bytes(codes, if $flip { SIGN } else { 0 })
            }

            fn above<S: Simd>(_: &Layout) -> i32 {
                if $flip { $above } else { 0 }
            }
        }
    };
}

bytes!(Signed, S::UNSIGNED_BYTES, 128);
bytes!(Unsigned, !S::UNSIGNED_BYTES, -128);

/// What an instruction set makes of a layout.
struct Describe<'a, C> {
    layout: &'a Layout,
    matrices: bool,
    code: PhantomData<C>,
}

impl<C: Bytes> Kernel for Describe<'_, C> {
    type Output = Needs;
    const BYTES: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Needs {
        let Self { layout, matrices, .. } = self;
        let padded = layout.chunks() * CHUNK;
        let of_vectors = TileRows { most: most_rows::<S>(), multiple: 1 };
        Needs {
            rows: if matrices { matrices::NEEDS.rows } else { of_vectors },
            unit: Unit::Int8Groups {
                in_rows: matrices,
                size: layout.group_size,
                padded,
                above: C::above::<S>(layout),
                factor: factor(layout.codebook),
                sums: layout.biases,
                swapped: layout.code == Code::Planes(4),
            },
            units_per_step: units(layout),
            steps_together: layout.together(),
            laid_out: Some(WhenLaidOut {
                step_bytes: layout.chunks() * size_of::<Chunk>(),
                from_tiles: if matrices { 2 } else { 3 },
            }),
        }
    }
}

/// The table of [`table`] as bytes that are multiplied, once for each quarter of them.
#[inline(always)]
fn table_of<S: Simd>(s: S, bytes: &[u8; LANES]) -> S::Bytes {
    let mut quarters = [*bytes; CHUNK];
    if S::UNSIGNED_BYTES {
        quarters.as_flattened_mut().iter_mut().for_each(|byte| *byte ^= SIGN);
    }
    s.read_bytes(bytemuck::cast_ref(&quarters))
}

/// [`lay_out`], for who vouches for its pointers.
struct LayOut<'a, C> {
    kernel: &'a CodesKernel,
    weights: *const u8,
    steps: Range<usize>,
    chunks: Range<usize>,
    to: *mut Chunk,
    code: PhantomData<C>,
}

impl<C: Bytes> Kernel for LayOut<'_, C> {
    type Output = ();
    const BYTES: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let CodesKernel { layout, bytes, .. } = self.kernel;
        let table = table_of(s, bytes);
        let mut to = self.to;
        for step in self.steps {
            let codes = self.weights.wrapping_add(layout.codes_at(step));
            if self.chunks.start == 0 {
                let step_bytes = layout.step_bytes();
                let ahead = Prefetch::ahead(self.weights.wrapping_add(step * step_bytes), step_bytes);
                for line in (0..step_bytes).step_by(LINE_BYTES) {
                    s.prefetch(Cache::Second, ahead.from.wrapping_add(line));
                }
            }
            for chunk in self.chunks.clone() {
                for v in 0..VECTORS {
                    // SAFETY: a group has so many chunks, and there is room for as many.
                    unsafe {
                        let bytes = C::load(s, table, codes.wrapping_add(chunk * layout.chunk_bytes()), v);
                        s.write_bytes(bytes, &mut (&mut *to)[v]);
                    }
                }
                to = to.wrapping_add(1);
            }
        }
    }
}

struct Multiply<'a, C, const ROWS: usize>(&'a Tile<'a>, &'a CodesKernel, PhantomData<C>);

impl<C: Bytes, const ROWS: usize> Kernel for Multiply<'_, C, ROWS> {
    type Output = ();
    const BYTES: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.tile(s);
    }
}

impl<C: Bytes, const ROWS: usize> Multiply<'_, C, ROWS> {
    /// `ROWS` rows against the panel: all of it at once where the registers hold that, or else one half after the other.
    #[inline(always)]
    fn tile<S: Simd>(&self, s: S) {
        if const { ROWS > most_rows::<S>() } {
            unreachable!("no tile has {ROWS} rows");
        // Whether the registers hold the accumulators beside the sums matters where the sums are all there is to do.
        } else if const { ROWS * if C::LAID_OUT { 4 } else { 2 } + 3 <= S::REGISTERS } {
            self.vectors::<S, 2>(s, 0);
        } else {
            self.vectors::<S, 1>(s, 0);
            self.vectors::<S, 1>(s, 1);
        }
    }

    /// `VECTORS` vectors of the panel's outputs from number `first` on.
    #[inline(always)]
    fn vectors<S: Simd, const VECTORS: usize>(&self, s: S, first: usize) {
        let (tile, layout) = (self.0, &self.1.layout);
        let mut accumulators: Accumulators<ROWS, VECTORS> = begin(s, tile, first);
        // Unknown to the compiler, which would unroll the loop over chunks and take all activations of a group into registers that there are not.
        let most = std::hint::black_box(PARTIAL_DOTS);
        for step in 0..tile.steps {
            // Before the sums, which then stay in registers.
            let mut factors = [[[0.0; LANES]; 2]; VECTORS];
            // SAFETY: a tile begins where groups that lie together do, and has all its steps.
            let scales: [S::V; VECTORS] = unsafe { layout.scales(s, tile.weights, step, first) };
            for (&scale, [to, _]) in scales.iter().zip(&mut factors) {
                s.store(scale, to);
            }
            if layout.biases {
                // SAFETY: as above.
                let biases = unsafe { layout.biases(s, tile.weights, step, first, scales) };
                for (&bias, [_, to]) in biases.iter().zip(&mut factors) {
                    s.store(bias, to);
                }
            }
            let x = tile.x.wrapping_add(step * units(layout) * ROWS);
            match layout.chunks() {
                PARTIAL_DOTS => {
                    let sums = self.dots::<S, VECTORS>(s, first, step, 0, most);
                    self.take(s, x, &factors, &mut accumulators, |row, v, added| {
                        s.add_sums(C::BITS, added, sums[row][v])
                    });
                }
                chunks => {
                    let mut totals = [[s.splat_totals(0); VECTORS]; ROWS];
                    for begin in (0..chunks).step_by(PARTIAL_DOTS) {
                        let sums = self.dots::<S, VECTORS>(s, first, step, begin, PARTIAL_DOTS.min(chunks - begin));
                        for (totals, sums) in totals.iter_mut().zip(&sums) {
                            for (total, &sum) in totals.iter_mut().zip(sums) {
                                *total = s.add_sums(C::BITS, *total, sum);
                            }
                        }
                    }
                    self.take(s, x, &factors, &mut accumulators, |row, v, added| s.add_totals(added, totals[row][v]));
                }
            }
        }
        finish(s, tile, first, &accumulators);
    }

    /// Takes the sums of a group into the accumulators: what `total` makes of what is added to each.
    #[inline(always)]
    fn take<S: Simd, const VECTORS: usize>(
        &self,
        s: S,
        x: *const u32,
        factors: &[[[f32; LANES]; 2]; VECTORS],
        accumulators: &mut Accumulators<ROWS, VECTORS>,
        total: impl Fn(usize, usize, S::Totals) -> S::Totals,
    ) {
        let layout = &self.1.layout;
        // SAFETY: a group's units of activation have these of each row behind its elements.
        let extra = |unit: usize, row: usize| unsafe { *x.add((layout.chunks() + unit) * ROWS + row) };
        for (row, to) in accumulators.iter_mut().enumerate() {
            let (added, scale_of_x) =
                (s.splat_totals(extra(0, row).cast_signed()), s.splat(f32::from_bits(extra(1, row))));
            for (v, (to, [scales, _])) in to.iter_mut().zip(factors).enumerate() {
                let scale = s.mul(s.load(scales), scale_of_x);
                s.store(s.mul_add(scale, s.totals_to_f32(total(row, v, added)), s.load(to)), to);
            }
        }
        if layout.biases {
            for (row, to) in accumulators.iter_mut().enumerate() {
                let sum_of_x = s.splat(f32::from_bits(extra(2, row)));
                for (to, [_, biases]) in to.iter_mut().zip(factors) {
                    s.store(s.mul_add(s.load(biases), sum_of_x, s.load(to)), to);
                }
            }
        }
    }

    /// From one chunk to the next.
    #[inline(always)]
    fn chunk_bytes(&self) -> usize {
        if C::LAID_OUT { size_of::<Chunk>() } else { self.1.layout.chunk_bytes() }
    }

    /// The sums of the products of `count` chunks of a step's group from number `begin` on, at most [`PARTIAL_DOTS`].
    #[inline(always)]
    fn dots<S: Simd, const VECTORS: usize>(
        &self,
        s: S,
        first: usize,
        step: usize,
        begin: usize,
        count: usize,
    ) -> [[S::Sums; VECTORS]; ROWS] {
        let (tile, CodesKernel { layout, bytes, .. }) = (self.0, self.1);
        let chunks = layout.chunks();
        let codes = if C::LAID_OUT {
            tile.laid_out.wrapping_add(step * chunks * size_of::<Chunk>())
        } else {
            tile.weights.wrapping_add(layout.codes_at(step))
        };
        let codes = codes.wrapping_add(begin * self.chunk_bytes());
        let x = tile.x.wrapping_add((step * units(layout) + begin) * ROWS);
        let ahead = tile.prefetch.bytes_per_step / chunks;
        let prefetch = tile.prefetch.from.wrapping_add(step * tile.prefetch.bytes_per_step + begin * ahead);
        let table = table_of(s, bytes);
        let mut sums = [[s.no_sums(); VECTORS]; ROWS];
        let mut single = 0;
        if const { takes_two_rows::<S, C>(ROWS) } {
            single = count / 2 * 2;
            let (mut codes, mut x) = (codes, x);
            // Nothing is asked for ahead: sets with such an instruction leave that to the processor.
            for _ in 0..count / 2 {
                // SAFETY: a group has so many chunks of codes.
                let bytes = |n: usize, v: usize| unsafe {
                    C::load(s, table, codes.wrapping_add(n * size_of::<Chunk>()), first + v)
                };
                // SAFETY: as above, and units of activation for each row.
                s.dot_bytes_rows(&mut sums, bytes, unsafe { [&*x.cast(), &*x.add(ROWS).cast()] });
                codes = codes.wrapping_add(2 * size_of::<Chunk>());
                x = x.wrapping_add(2 * ROWS);
            }
            s.pair_sums(&mut sums);
        }
        for chunk in single..count {
            let line = prefetch.wrapping_add(chunk * ahead);
            s.prefetch(Cache::Second, line);
            if ahead > LINE_BYTES {
                s.prefetch(Cache::Second, line.wrapping_add(LINE_BYTES));
            }
            if ahead > 2 * LINE_BYTES {
                s.prefetch(Cache::Second, line.wrapping_add(2 * LINE_BYTES));
            }
            for v in 0..VECTORS {
                // SAFETY: a group has so many chunks of codes.
                let bytes = unsafe { C::load(s, table, codes.wrapping_add(chunk * self.chunk_bytes()), first + v) };
                for (row, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: as above, and a unit of activation for each row.
                    let x = unsafe { *x.add(chunk * ROWS + row) };
                    sums[v] = s.dot_bytes(C::BITS, sums[v], bytes, x);
                }
            }
        }
        sums
    }
}
