//! The tile kernel for quantised weights, generic over instruction set and kind of code. It knows nothing of threads or blocking.
//!
//! A step is a group: its codes, then the scales and the biases of the panel's 32 outputs. The products of a group are added up in
//! registers in ascending order of K; scale and bias then take the group's sum into the accumulators, which are the outputs in memory: one
//! order whatever the number of rows, and cutting between groups changes nothing.

use std::marker::PhantomData;

use half::{bf16, f16};
use vllm_apple_ops::{Codebook, DType, Quantised};

use crate::matmul::format::{PANEL, Unit};
use crate::matmul::plan::TileRows;
use crate::matmul::tile::{Needs, Tile, max_rows, with_rows};
use crate::simd::{Cache, Dispatch, Element, Kernel, LANES, NIBBLES, Simd, Table};

/// Elements of K whose codes lie together.
pub(crate) const CHUNK: usize = 4;

/// How a code lies in a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Half a byte, looked up.
    Nibble,
    /// The value, as a signed byte.
    Signed,
    /// The value, as an unsigned byte.
    Unsigned,
    /// A float of 8 bits: [`Codebook::E4m3`].
    E4m3,
}

/// How a quantised weight lies in a panel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub code: Code,
    pub codebook: Codebook,
    pub group_size: usize,
    pub scales: DType,
    pub biases: bool,
}

impl Layout {
    /// `None` if no code holds the codebook.
    pub(crate) fn new(quantised: Quantised) -> Option<Self> {
        let Quantised { codebook, group_size, scales, biases, .. } = quantised;
        let code = match codebook {
            Codebook::E4m3 => Code::E4m3,
            _ if codebook.bits() <= 4 => Code::Nibble,
            Codebook::Integer { bits, zero_point } => {
                match (-i32::from(zero_point), (1 << bits) - 1 - i32::from(zero_point)) {
                    (-128.., ..=127) => Code::Signed,
                    (0, _) => Code::Unsigned,
                    _ => return None,
                }
            }
            Codebook::E2m1 | Codebook::Iq4Nl => return None,
        };
        Some(Self { code, codebook, group_size, scales, biases })
    }

    /// Chunks of a group; what the last has too many is multiplied by zeros.
    pub(crate) fn chunks(&self) -> usize {
        self.group_size.div_ceil(CHUNK)
    }

    /// Bytes of a chunk of a panel.
    pub(crate) fn chunk_bytes(&self) -> usize {
        match self.code {
            Code::Nibble => PANEL * CHUNK / 2,
            Code::Signed | Code::Unsigned | Code::E4m3 => PANEL * CHUNK,
        }
    }

    /// Bytes of a group of a panel.
    pub(crate) fn step_bytes(&self) -> usize {
        self.chunks() * self.chunk_bytes() + (1 + usize::from(self.biases)) * PANEL * self.scales.size()
    }

    /// Where element `k` of a group has its code in output `lane` of a panel: a byte, and whether it is its upper half.
    pub(crate) fn place(&self, k: usize, lane: usize) -> (usize, bool) {
        let (chunk, i, vector, lane) = (k / CHUNK, k % CHUNK, lane / LANES, lane % LANES);
        match self.code {
            Code::Nibble => ((chunk * 2 + vector) * NIBBLES + 2 * lane + i % 2, i >= 2),
            Code::Signed | Code::Unsigned | Code::E4m3 => (((chunk * 2 + vector) * CHUNK + i) * LANES + lane, false),
        }
    }

    /// Units of activation of a group, its sum among them where that is needed.
    fn units(&self) -> usize {
        self.chunks() * CHUNK + usize::from(self.biases)
    }
}

/// The kernel for a format.
#[derive(Clone, Copy)]
pub(crate) struct CodesKernel {
    layout: Layout,
    table: Table,
}

impl CodesKernel {
    pub(crate) fn new(layout: Layout) -> Self {
        let known = |code: u8| u32::from(code) < 1 << layout.codebook.bits();
        Self { layout, table: Table::new(|code| if known(code) { layout.codebook.value(code) } else { 0.0 }) }
    }

    pub(crate) fn needs(&self, dispatch: Dispatch) -> Needs {
        let Layout { group_size, biases: sums, .. } = self.layout;
        Needs {
            rows: TileRows { most: dispatch.run(MostRows), multiple: 1 },
            unit: Unit::Groups { elements: group_size, padded: self.layout.chunks() * CHUNK, sums },
            units_per_step: self.layout.units(),
            steps_together: 1,
        }
    }

    /// See [`crate::matmul::tile::TileKernel::run`].
    pub(crate) fn run(&self, dispatch: Dispatch, tile: &Tile<'_>) {
        match self.layout.code {
            Code::Nibble => dispatch.run(Multiply::<Nibbles>(tile, self, PhantomData)),
            Code::Signed => dispatch.run(Multiply::<Signed>(tile, self, PhantomData)),
            Code::Unsigned => dispatch.run(Multiply::<Unsigned>(tile, self, PhantomData)),
            Code::E4m3 => dispatch.run(Multiply::<E4m3>(tile, self, PhantomData)),
        }
    }
}

/// The most rows that a tile may have with an instruction set.
struct MostRows;

impl Kernel for MostRows {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        max_rows::<S>()
    }
}

/// A kind of code.
trait Codes {
    /// The values of vector `vector` of the panel for the first or the `SECOND` two elements of K of a chunk.
    ///
    /// # Safety
    /// `chunk` is where a panel's chunk begins, and `vector` is below 2.
    unsafe fn values<S: Simd, const SECOND: bool>(s: S, table: &Table, chunk: *const u8, vector: usize) -> [S::V; 2];
}

struct Nibbles;
struct Signed;
struct Unsigned;
struct E4m3;

impl Codes for Nibbles {
    #[inline(always)]
    unsafe fn values<S: Simd, const SECOND: bool>(s: S, table: &Table, chunk: *const u8, vector: usize) -> [S::V; 2] {
        // SAFETY: the caller vouches for the vector's part of the chunk.
        s.look_up::<SECOND>(table, unsafe { &*chunk.cast::<[u8; NIBBLES]>().add(vector) })
    }
}

macro_rules! bytes {
    ($name:ident, $type:ty, $load:ident) => {
        impl Codes for $name {
            #[inline(always)]
            unsafe fn values<S: Simd, const SECOND: bool>(
                s: S,
                _: &Table,
                chunk: *const u8,
                vector: usize,
            ) -> [S::V; 2] {
                // SAFETY: the caller vouches for the vector's part of the chunk.
                let codes = unsafe { &*chunk.cast::<[[$type; LANES]; CHUNK]>().add(vector) };
                let at = if SECOND { 2 } else { 0 };
                [s.$load(&codes[at]), s.$load(&codes[at + 1])]
            }
        }
    };
}

bytes!(Signed, i8, load_i8);
bytes!(Unsigned, u8, load_u8);
bytes!(E4m3, u8, load_e4m3);

/// One tile, whose pointers and rows the caller of [`CodesKernel::run`] vouches for.
struct Multiply<'a, C>(&'a Tile<'a>, &'a CodesKernel, PhantomData<C>);

impl<C: Codes> Kernel for Multiply<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_rows!(self.0.out.len(), ROWS => self.tile::<S, ROWS>(s));
    }
}

impl<C: Codes> Multiply<'_, C> {
    /// `ROWS` rows against the panel: all of it at once where the registers hold that, or else one half after the other.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize>(&self, s: S) {
        if ROWS > max_rows::<S>() {
            unreachable!("no tile has {ROWS} rows");
        } else if 2 * ROWS + 3 <= S::REGISTERS {
            self.vectors::<S, ROWS, 2>(s, 0);
        } else {
            self.vectors::<S, ROWS, 1>(s, 0);
            self.vectors::<S, ROWS, 1>(s, 1);
        }
    }

    /// `VECTORS` vectors of the panel's outputs from number `first` on.
    #[inline(always)]
    fn vectors<S: Simd, const ROWS: usize, const VECTORS: usize>(&self, s: S, first: usize) {
        let tile = self.0;
        // SAFETY: a tile has `ROWS` pointers to the panel's outputs, of whole vectors.
        let out = |row: usize, v: usize| unsafe { &mut *tile.out[row].add((first + v) * LANES).cast::<[f32; LANES]>() };
        if !tile.resume {
            for (row, v) in (0..ROWS).flat_map(|row| (0..VECTORS).map(move |v| (row, v))) {
                *out(row, v) = [0.0; LANES];
            }
        }
        // One row's additions wait for each other: a second group fills the time.
        let pairs = if ROWS * VECTORS <= 2 { tile.steps / 2 } else { 0 };
        for pair in 0..pairs {
            self.steps::<S, ROWS, VECTORS, 2>(s, first, 2 * pair);
        }
        for step in 2 * pairs..tile.steps {
            self.steps::<S, ROWS, VECTORS, 1>(s, first, step);
        }
        if !tile.bias.is_null() {
            for v in 0..VECTORS {
                // SAFETY: a bias that is not null has the panel's length.
                let bias = s.load(unsafe { &*tile.bias.add((first + v) * LANES).cast() });
                for row in 0..ROWS {
                    s.store(s.add(s.load(out(row, v)), bias), out(row, v));
                }
            }
        }
    }

    /// `STEPS` steps from `step` on: their groups are added up side by side, and taken into the outputs one after the other.
    #[inline(always)]
    fn steps<S: Simd, const ROWS: usize, const VECTORS: usize, const STEPS: usize>(
        &self,
        s: S,
        first: usize,
        step: usize,
    ) {
        let (tile, layout) = (self.0, &self.1.layout);
        let (step_bytes, units) = (layout.step_bytes(), layout.units());
        let scales_at = layout.chunks() * layout.chunk_bytes() + first * LANES * layout.scales.size();
        let biases_at = scales_at + PANEL * layout.scales.size();
        // SAFETY: a tile has `ROWS` pointers to the panel's outputs, of whole vectors.
        let out = |row: usize, v: usize| unsafe { &mut *tile.out[row].add((first + v) * LANES).cast::<[f32; LANES]>() };
        for (step, sums) in (step..).zip(self.groups::<S, ROWS, VECTORS, STEPS>(s, first, step)) {
            let codes = tile.weights.wrapping_add(step * step_bytes);
            let x = tile.x.wrapping_add(step * units * ROWS);
            for v in 0..VECTORS {
                // SAFETY: a step has the scales of the panel's outputs behind its codes, and the biases behind these.
                let scale = unsafe { load(s, layout.scales, codes.wrapping_add(scales_at), v) };
                for (row, sums) in sums.iter().enumerate() {
                    s.store(s.mul_add(scale, sums[v], s.load(out(row, v))), out(row, v));
                }
                if layout.biases {
                    // SAFETY: as above.
                    let bias = unsafe { load(s, layout.scales, codes.wrapping_add(biases_at), v) };
                    for row in 0..ROWS {
                        // SAFETY: a group's units of activation end with the sum of each row.
                        let sum = s.splat(f32::from_bits(unsafe { *x.add((units - 1) * ROWS + row) }));
                        s.store(s.mul_add(bias, sum, s.load(out(row, v))), out(row, v));
                    }
                }
            }
        }
    }

    /// The products of the groups of `STEPS` steps, each added up.
    #[inline(always)]
    fn groups<S: Simd, const ROWS: usize, const VECTORS: usize, const STEPS: usize>(
        &self,
        s: S,
        first: usize,
        step: usize,
    ) -> [[[S::V; VECTORS]; ROWS]; STEPS] {
        let (tile, CodesKernel { layout, table }) = (self.0, self.1);
        let (chunks, chunk_bytes) = (layout.chunks(), layout.chunk_bytes());
        let (step_bytes, step_units) = (layout.step_bytes(), layout.units() * ROWS);
        let ahead = tile.prefetch.bytes_per_step * STEPS / chunks;
        let mut prefetch = tile.prefetch.from.wrapping_add(step * tile.prefetch.bytes_per_step);
        let (mut codes, mut x) = (tile.weights.wrapping_add(step * step_bytes), tile.x.wrapping_add(step * step_units));
        let mut sums = [[[s.splat(0.0); VECTORS]; ROWS]; STEPS];
        for _ in 0..chunks {
            s.prefetch(Cache::First, prefetch);
            s.prefetch(Cache::First, prefetch.wrapping_add(ahead / 2));
            prefetch = prefetch.wrapping_add(ahead);
            for (step, sums) in sums.iter_mut().enumerate() {
                let (codes, x) = (codes.wrapping_add(step * step_bytes), x.wrapping_add(step * step_units));
                let mut values = [[s.splat(0.0); 2]; VECTORS];
                for (v, values) in values.iter_mut().enumerate() {
                    // SAFETY: a group has so many chunks of codes.
                    *values = unsafe { C::values::<S, false>(s, table, codes, first + v) };
                }
                add::<S, ROWS, VECTORS>(s, &values, x, sums);
                for (v, values) in values.iter_mut().enumerate() {
                    // SAFETY: as above.
                    *values = unsafe { C::values::<S, true>(s, table, codes, first + v) };
                }
                add::<S, ROWS, VECTORS>(s, &values, x.wrapping_add(2 * ROWS), sums);
            }
            codes = codes.wrapping_add(chunk_bytes);
            x = x.wrapping_add(CHUNK * ROWS);
        }
        sums
    }
}

/// Adds the products of two elements of K of each row.
#[inline(always)]
fn add<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    values: &[[S::V; 2]; VECTORS],
    x: *const u32,
    sums: &mut [[S::V; VECTORS]; ROWS],
) {
    for i in 0..2 {
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: a group has a unit of activation for each element of its chunks, and row.
            let x = s.splat(f32::from_bits(unsafe { *x.add(i * ROWS + row) }));
            for (sum, values) in sums.iter_mut().zip(values) {
                *sum = s.mul_add(values[i], x, *sum);
            }
        }
    }
}

/// Vector `v` of values of type `dtype` at `from`.
///
/// # Safety
/// It must be there.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, dtype: DType, from: *const u8, v: usize) -> S::V {
    // SAFETY: the caller vouches for it; a step's scales are aligned for their type, as steps and chunks are multiples of 64 bytes.
    unsafe {
        match dtype {
            DType::F16 => f16::load(s, &*from.cast::<[f16; LANES]>().add(v)),
            DType::BF16 => bf16::load(s, &*from.cast::<[bf16; LANES]>().add(v)),
            _ => f32::load(s, &*from.cast::<[f32; LANES]>().add(v)),
        }
    }
}
