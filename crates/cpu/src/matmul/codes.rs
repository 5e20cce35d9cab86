//! The tile kernel for quantised weights, generic over instruction set and kind of code. It knows nothing of threads or blocking.
//!
//! A step is a group: see [`Layout`]. The products of a group are added up in
//! registers in ascending order of K, or in that of the machine's instruction for pairs or matrices of bf16; scale and bias then take the group's
//! sum into accumulators: one order whatever the number of rows, and cutting between groups changes nothing.

/// Does something for each chunk of a block, written out.
macro_rules! for_block {
    ($chunk:ident => $body:expr) => {
        for_block!($chunk => $body, 0 1 2 3 4 5 6 7)
    };
    ($chunk:ident => $body:expr, $($i:literal)+) => {
        const { assert!(BLOCK_CHUNKS == [$($i),+].len(), "chunks that are not written out") };
        $({
            let $chunk: usize = $i;
            $body;
        })+
    };
}

mod accumulators;
pub(in crate::matmul) mod integers;
mod kinds;
pub(in crate::matmul) mod lay_out;
mod layout;
mod registers;

use std::marker::PhantomData;

use vllm_apple_ops::{Activations, DType, Quantised};

use crate::isa::Isa;
use crate::matmul::LINE_BYTES;
use crate::matmul::format::{Elements, Unit};
use crate::matmul::matrices::{self, Matrices};
use crate::matmul::plan::TileRows;
use crate::matmul::tile::{Needs, Tile, WhenLaidOut, takes_two_rows, with_rows};
use crate::simd::{CHUNK, Cache, Dispatch, Kernel, LANES, Simd, Table, load_again};
use accumulators::{Accumulators, begin, finish};
pub(crate) use kinds::Codes;
use kinds::{E4m3, InPlanes, Signed, Unsigned};
use lay_out::{Chunk, LaidOut, LayOut};
use layout::Code;
pub(crate) use layout::Layout;
use registers::{MostRows, most_rows, side_by_side};

/// Rows of a call up to which vectors are as fast as matrices, whose sums they then add up.
pub(crate) const FEW_ROWS: usize = 1;

/// The same where activations have 8 bits.
const FEW_ROWS_OF_BYTES: usize = 16;

/// Rows of a tile up to which it costs less to lay codes out than to look them up twice.
const FEW_ROWS_OF_A_TILE: usize = 5;

/// Chunks that matrices take together: 32 of K.
pub(crate) const BLOCK_CHUNKS: usize = 8;

/// The kernel for a format.
pub(crate) struct CodesKernel {
    pub(super) layout: Layout,
    /// Of codes in planes, where their values are multiplied.
    pub(super) table: Table,
    /// As whole numbers, where these are multiplied.
    bytes: [u8; LANES],
    order: Order,
}

/// How a group's products are added up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// One after the other, in f32.
    Ascending,
    /// Pairs of bf16 at a time, by an instruction for that.
    Dot,
    /// By matrices.
    Matrices,
    /// With the bits of matrices, by vectors.
    LikeMatrices,
    /// As whole numbers, exactly: by vectors or by matrices.
    Integers { matrices: bool },
}

/// [`Order`] as a kernel is compiled for it.
mod order {
    pub(super) const ASCENDING: u8 = 0;
    pub(super) const DOT: u8 = 1;
    pub(super) const LIKE_MATRICES: u8 = 2;
}

/// Evaluates an expression with `$C` standing for the kind of a code.
macro_rules! with_code {
    ($code:expr, $C:ident => $body:expr) => {
        with_code!($code, $C => $body, Code::Planes(2), InPlanes<2>, Code::Planes(3), InPlanes<3>, Code::Planes(4), InPlanes<4>, Code::Planes(5), InPlanes<5>,
            Code::Planes(6), InPlanes<6>, Code::Signed, Signed, Code::Unsigned, Unsigned, Code::E4m3, E4m3)
    };
    ($code:expr, $C:ident => $body:expr, $($code_is:pat, $kind:ty),+) => {
        match $code {
            $($code_is => {
                type $C = $kind;
                $body
            })+
            Code::Planes(bits) => unreachable!("no layout has planes of {bits} bits"),
        }
    };
}

impl CodesKernel {
    /// For calls in which the matrix of weights that has the most rows has so many.
    pub(crate) fn new(isa: Isa, quantised: Quantised, layout: Layout, rows: usize) -> Self {
        let order = match (isa, quantised.input) {
            _ if quantised.activations == Activations::Int8 => {
                Order::Integers { matrices: isa == Isa::AmxBf16 && rows > FEW_ROWS_OF_BYTES }
            }
            (Isa::AmxBf16, DType::BF16) if rows > FEW_ROWS => Order::Matrices,
            (Isa::AmxBf16, DType::BF16) => Order::LikeMatrices,
            (Isa::Avx512Bf16 | Isa::NeonBf16, DType::BF16) => Order::Dot,
            _ => Order::Ascending,
        };
        let (mut table, mut bytes) = (Table::ZEROS, [0; LANES]);
        match (order, layout.code) {
            (Order::Integers { .. }, _) => bytes = integers::table(layout.codebook),
            (_, Code::Planes(bits)) => table = Table::new(bits, |code| layout.codebook.value(code)),
            _ => {}
        }
        Self { layout, table, bytes, order }
    }

    pub(crate) fn needs(&self, dispatch: Dispatch) -> Needs {
        if self.order == Order::Matrices {
            return matrices::codes::needs(&self.layout);
        }
        if let Order::Integers { matrices } = self.order {
            return integers::needs(dispatch, &self.layout, matrices);
        }
        let Layout { group_size, biases: sums, .. } = self.layout;
        let most = if self.order == Order::LikeMatrices { FEW_ROWS } else { dispatch.run(MostRows) };
        // A look-up for a tile of few rows takes as long as its products.
        let look_ups_cost = matches!(self.layout.code, Code::Planes(_)) && most <= FEW_ROWS_OF_A_TILE;
        let elements = match self.order {
            Order::Dot => Elements::Bf16Pairs,
            Order::LikeMatrices => Elements::F32WithoutTiny,
            _ => Elements::F32,
        };
        Needs {
            rows: TileRows { most, multiple: 1 },
            unit: Unit::Groups { size: group_size, padded: self.layout.chunks() * CHUNK, elements, sums },
            units_per_step: self.units(),
            steps_together: self.layout.together(),
            laid_out: (self.order != Order::LikeMatrices).then(|| WhenLaidOut {
                step_bytes: self.laid_out_chunks() * size_of::<Chunk>(),
                from_tiles: if look_ups_cost { 2 } else { 3 },
            }),
        }
    }

    /// Chunks of a group that is laid out: whole blocks for matrices.
    fn laid_out_chunks(&self) -> usize {
        let together = if self.order == Order::Matrices { BLOCK_CHUNKS } else { 1 };
        self.layout.chunks().next_multiple_of(together)
    }

    /// Units of activation of a group, its sum among them where that is needed.
    fn units(&self) -> usize {
        self.layout.chunks() * if self.order == Order::Dot { CHUNK / 2 } else { CHUNK }
            + usize::from(self.layout.biases)
    }

    /// See [`crate::matmul::tile::TileKernel::run`].
    pub(crate) fn run(&self, dispatch: Dispatch, begun: &Option<Matrices>, tile: &Tile<'_>) {
        match (begun, self.order) {
            (None, Order::Integers { .. }) => integers::run(dispatch, self, tile),
            (Some(matrices), Order::Integers { .. }) => dispatch.run(matrices.multiply_bytes(dispatch, self, tile)),
            _ => with_code!(self.layout.code, C => self.run_with::<C>(dispatch, begun, tile)),
        }
    }

    /// See [`crate::matmul::tile::TileKernel::lay_out`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn lay_out(&self, dispatch: Dispatch, weights: *const u8, steps: usize, to: *mut u8) {
        // SAFETY: the caller vouches for the pointers.
        unsafe {
            match self.order {
                Order::Integers { .. } => {
                    integers::lay_out(dispatch, self, weights, 0..steps, 0..self.layout.chunks(), to);
                }
                _ => with_code!(self.layout.code, C => dispatch.run(LayOut::<C>::new(self, weights, steps, to))),
            }
        }
    }

    fn run_with<C: Codes>(&self, dispatch: Dispatch, begun: &Option<Matrices>, tile: &Tile<'_>) {
        let laid_out = !tile.laid_out.is_null();
        match (begun, self.order) {
            (Some(matrices), _) => dispatch.run(matrices.multiply_codes::<C>(self, tile)),
            (None, Order::Dot) if laid_out => self.multiply::<LaidOut, { order::DOT }>(dispatch, tile),
            (None, Order::Dot) => self.multiply::<C, { order::DOT }>(dispatch, tile),
            (None, Order::LikeMatrices) => self.multiply::<C, { order::LIKE_MATRICES }>(dispatch, tile),
            (None, Order::Ascending) if laid_out => self.multiply::<LaidOut, { order::ASCENDING }>(dispatch, tile),
            (None, Order::Ascending) => self.multiply::<C, { order::ASCENDING }>(dispatch, tile),
            (None, Order::Matrices | Order::Integers { .. }) => {
                unreachable!("matrices have begun, or nothing multiplies floats")
            }
        }
    }

    fn multiply<C: Codes, const ORDER: u8>(&self, dispatch: Dispatch, tile: &Tile<'_>) {
        with_rows!(tile.rows, ROWS => dispatch.run(Multiply::<C, ORDER, ROWS>(tile, self, PhantomData)));
    }
}

/// One tile, whose pointers and rows the caller of [`CodesKernel::run`] vouches for, in one [`order`].
struct Multiply<'a, C, const ORDER: u8, const ROWS: usize>(&'a Tile<'a>, &'a CodesKernel, PhantomData<C>);

impl<C: Codes, const ORDER: u8, const ROWS: usize> Kernel for Multiply<'_, C, ORDER, ROWS> {
    type Output = ();
    const DOT: bool = ORDER != order::ASCENDING;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if const { ORDER != order::ASCENDING && !S::BF16_DOT } {
            unreachable!("a set without the dot product of bf16 adds up in ascending order");
        } else {
            self.tile(s);
        }
    }
}

impl<C: Codes, const ORDER: u8, const ROWS: usize> Multiply<'_, C, ORDER, ROWS> {
    /// `ROWS` rows against the panel: all of it at once where the registers hold that, or else one half after the other.
    #[inline(always)]
    fn tile<S: Simd>(&self, s: S) {
        if const { ROWS > if ORDER == order::LIKE_MATRICES { FEW_ROWS } else { most_rows::<S>() } } {
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
        let mut accumulators = begin(s, tile, first);
        let mut single = 0;
        macro_rules! side_by_side {
            ($STEPS:literal) => {
                if const { side_by_side::<S, C, ORDER>(ROWS * VECTORS) == $STEPS } {
                    single = tile.steps / $STEPS * $STEPS;
                    for step in (0..single).step_by($STEPS) {
                        self.steps::<S, VECTORS, $STEPS>(s, first, step, &mut accumulators);
                    }
                }
            };
        }
        side_by_side!(2);
        side_by_side!(4);
        for step in single..tile.steps {
            self.steps::<S, VECTORS, 1>(s, first, step, &mut accumulators);
        }
        finish(s, tile, first, &accumulators);
    }

    /// `STEPS` steps from `step` on: their groups are added up side by side, and taken into the accumulators one after the other.
    #[inline(always)]
    fn steps<S: Simd, const VECTORS: usize, const STEPS: usize>(
        &self,
        s: S,
        first: usize,
        step: usize,
        accumulators: &mut Accumulators<ROWS, VECTORS>,
    ) {
        let (tile, layout, units) = (self.0, &self.1.layout, self.1.units());
        let groups = self.groups::<S, VECTORS, STEPS>(s, first, step);
        for (step, sums) in (step..).zip(&groups) {
            // SAFETY: a tile begins where groups that lie together do, and has all its steps.
            let scales: [S::V; VECTORS] = unsafe { layout.scales(s, tile.weights, step, first) };
            // Apart, so that the sums stay in registers.
            if !layout.biases {
                for (sums, to) in sums.iter().zip(&mut *accumulators) {
                    for v in 0..VECTORS {
                        s.store(s.mul_add(scales[v], sums[v], s.load(&to[v])), &mut to[v]);
                    }
                }
                continue;
            }
            // SAFETY: as above.
            let biases = unsafe { layout.biases(s, tile.weights, step, first, scales) };
            let x = tile.x.wrapping_add((step + 1) * units * ROWS - ROWS);
            for (row, (sums, to)) in sums.iter().zip(&mut *accumulators).enumerate() {
                // SAFETY: a group's units of activation end with the sum of each row.
                let x = s.splat(f32::from_bits(unsafe { *x.add(row) }));
                for v in 0..VECTORS {
                    let sum = s.mul_add(scales[v], sums[v], s.load(&to[v]));
                    s.store(s.mul_add(biases[v], x, sum), &mut to[v]);
                }
            }
        }
    }

    /// The products of the groups of `STEPS` steps, each added up.
    #[inline(always)]
    fn groups<S: Simd, const VECTORS: usize, const STEPS: usize>(
        &self,
        s: S,
        first: usize,
        step: usize,
    ) -> [[[S::V; VECTORS]; ROWS]; STEPS] {
        let (tile, CodesKernel { layout, .. }) = (self.0, self.1);
        let chunks = layout.chunks();
        let step_units = self.1.units() * ROWS;
        let chunk_units = if ORDER == order::DOT { CHUNK / 2 } else { CHUNK } * ROWS;
        let one_row = const { ORDER == order::LIKE_MATRICES };
        let ahead = (tile.prefetch.bytes_per_step * STEPS).div_ceil(chunks);
        let prefetch = tile.prefetch.from.wrapping_add(step * tile.prefetch.bytes_per_step);
        let (mut line, mut until) = (0, 0);
        let codes_of = |step: usize| {
            if C::LAID_OUT {
                tile.laid_out.wrapping_add(step * chunks * C::CHUNK_BYTES)
            } else {
                tile.weights.wrapping_add(layout.codes_at(step))
            }
        };
        let mut codes: [*const u8; STEPS] = std::array::from_fn(|i| codes_of(step + i));
        let mut x = tile.x.wrapping_add(step * step_units);
        let table = s.table(&self.1.table, C::BITS);
        let zeros = [[s.splat(0.0); VECTORS]; ROWS];
        let mut sums = [zeros; STEPS];
        let together = if ORDER == order::LIKE_MATRICES { BLOCK_CHUNKS } else { chunks };
        for begin in (0..chunks).step_by(together) {
            // Of all products, or of the even and of the odd ones.
            let mut parts = [[zeros; 2]; STEPS];
            macro_rules! chunk { () => {
                // Each line once.
                if one_row {
                    for _ in 0..const { STEPS * C::CHUNK_BYTES / LINE_BYTES } {
                        s.prefetch(Cache::Second, prefetch.wrapping_add(line));
                        line += LINE_BYTES;
                    }
                } else {
                    until += ahead;
                    while line < until {
                        s.prefetch(Cache::Second, prefetch.wrapping_add(line));
                        line += LINE_BYTES;
                    }
                }
                for (step, (parts, codes)) in parts.iter_mut().zip(&mut codes).enumerate() {
                    let x = x.wrapping_add(step * step_units);
                    // SAFETY: a group has so many chunks of codes, and a unit of activation for each row and each element or pair of them.
                    unsafe {
                        if const { ORDER == order::DOT && takes_two_rows::<S>(ROWS) } {
                            self.chunk::<S, VECTORS>(s, table, first, *codes, x, &mut parts[0]);
                        } else {
                            let second = x.wrapping_add(chunk_units / 2);
                            self.half::<S, VECTORS, false>(s, table, first, *codes, x, parts);
                            self.half::<S, VECTORS, true>(s, table, first, *codes, second, parts);
                        }
                    }
                    *codes = codes.wrapping_add(C::CHUNK_BYTES);
                }
                x = x.wrapping_add(chunk_units);
            } }
            // In a loop one row takes a tenth longer.
            if one_row && chunks - begin >= BLOCK_CHUNKS {
                for_block!(_chunk => chunk!());
            } else {
                for _ in begin..chunks.min(begin + together) {
                    chunk!();
                }
            }
            // Zeros were paired as they are.
            if const { ORDER == order::DOT && takes_two_rows::<S>(ROWS) } {
                for [sums, _] in &mut parts {
                    s.pair_rows(sums);
                }
            }
            for (sums, [even, odd]) in sums.iter_mut().zip(&parts) {
                for (row, sums) in sums.iter_mut().enumerate() {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        let [even, odd] = [even[row][v], odd[row][v]];
                        *sum = match ORDER {
                            order::LIKE_MATRICES => s.add(*sum, s.add(even, odd)),
                            // All of the group's.
                            _ => even,
                        };
                    }
                }
            }
        }
        if one_row {
            // Scales, and what chunks have beside whole lines.
            while line < tile.prefetch.bytes_per_step * STEPS {
                s.prefetch(Cache::Second, prefetch.wrapping_add(line));
                line += LINE_BYTES;
            }
        }
        sums
    }

    /// Adds the dot products of a chunk, of two rows at a time.
    ///
    /// # Safety
    /// A chunk must begin at `codes`, and `x` must have its activations.
    #[inline(always)]
    unsafe fn chunk<S: Simd, const VECTORS: usize>(
        &self,
        s: S,
        table: S::Table,
        first: usize,
        codes: *const u8,
        x: *const u32,
        sums: &mut [[S::V; VECTORS]; ROWS],
    ) {
        let [mut one, mut other] = [[s.splat(0.0); VECTORS]; 2];
        for (v, (one, other)) in (first..).zip(one.iter_mut().zip(&mut other)) {
            // SAFETY: the caller vouches for it.
            unsafe {
                *one = C::pairs::<S, false>(s, table, codes, v);
                *other = C::pairs::<S, true>(s, table, codes, v);
            }
        }
        let pairs = [one, other];
        // SAFETY: as above.
        let x: &[[u32; ROWS]; 2] = unsafe { &*x.cast() };
        s.dot_bf16_rows(sums, |i, v| pairs[i][v], x.each_ref());
    }

    /// Adds the products of the first or `SECOND` two elements of K of a chunk.
    ///
    /// # Safety
    /// A chunk must begin at `codes`, and `x` must have the activations of these elements.
    #[inline(always)]
    unsafe fn half<S: Simd, const VECTORS: usize, const SECOND: bool>(
        &self,
        s: S,
        table: S::Table,
        first: usize,
        codes: *const u8,
        x: *const u32,
        parts: &mut [[[S::V; VECTORS]; ROWS]; 2],
    ) {
        if const { ORDER == order::DOT } {
            // SAFETY: the caller vouches for it.
            let x: &[u32; ROWS] = unsafe { &*x.cast() };
            let mut pairs = [s.splat(0.0); VECTORS];
            for (v, pairs) in pairs.iter_mut().enumerate() {
                // SAFETY: as above.
                *pairs = unsafe { C::pairs::<S, SECOND>(s, table, codes, first + v) };
            }
            for (sums, &x) in parts[0].iter_mut().zip(x) {
                let x = s.splat(f32::from_bits(x));
                for (sum, &pairs) in sums.iter_mut().zip(&pairs) {
                    *sum = s.dot_bf16(*sum, pairs, x);
                }
            }
            return;
        }
        // SAFETY: as above.
        let x: &[[u32; ROWS]; 2] = unsafe { &*x.cast() };
        let mut values = [[s.splat(0.0); 2]; VECTORS];
        for (i, x) in x.iter().enumerate() {
            // What codes stand for is made once; what is laid out is loaded where it is multiplied.
            if C::LAID_OUT {
                load_again();
            }
            if i == 0 || C::LAID_OUT {
                for (v, values) in values.iter_mut().enumerate() {
                    // SAFETY: as above.
                    *values = unsafe { C::values::<S, SECOND>(s, table, codes, first + v) };
                }
            }
            for (sums, &x) in parts[if ORDER == order::LIKE_MATRICES { i } else { 0 }].iter_mut().zip(x) {
                let x = s.splat(f32::from_bits(x));
                for (sum, values) in sums.iter_mut().zip(&values) {
                    *sum = s.mul_add(values[i], x, *sum);
                }
            }
        }
    }
}
