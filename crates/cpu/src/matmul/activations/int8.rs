//! Activations rounded to 8 bits, in the units of the tile kernel for integers.

use std::marker::PhantomData;

use vllm_apple_ops::Activations;

use super::{Source, part};
use crate::matmul::tile::MAX_TILE_ROWS;
use crate::simd::{CHUNK, Element, Kernel, LANES, Simd, with_float};

/// Added to a float of less than 2^22, it leaves the nearest whole number in the last bits, of two the even one.
const WHOLE: f32 = (3 << 22) as f32;

/// Writes [`crate::matmul::format::Unit::Int8Groups`] for rows of activations: `[units][rows]`, or with `in_rows` a group's elements `[rows][units]` and
/// what follows them as without.
pub(in crate::matmul) struct PackInt8<'a> {
    pub to: &'a mut [u32],
    /// As the unit says.
    pub in_rows: bool,
    pub size: usize,
    pub padded: usize,
    pub above: i32,
    pub factor: f32,
    pub sums: bool,
    pub swapped: bool,
    pub source: Source<'a>,
}

impl Kernel for PackInt8<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_float!(self.source.dtype, T => self.pack::<S, T>(s));
    }
}

impl PackInt8<'_> {
    #[inline(always)]
    fn pack<S: Simd, T: Element>(self, s: S) {
        let Self { to, in_rows, size, padded, above, factor, sums, swapped, source } = self;
        let (rows, chunks) = (source.rows.len(), padded / CHUNK);
        let mut factors = [(0.0, 0.0); MAX_TILE_ROWS];
        for (group, to) in to.chunks_mut((chunks + 2 + usize::from(sums)) * rows).enumerate() {
            let (bytes, rest) = to.split_at_mut(chunks * rows);
            let of_group = |x_row: u32| Group::<T>::new(part(source.row(x_row), group, size * size_of::<T>()));
            // Of all rows first: what follows of a row waits for them.
            for (factors, &x_row) in factors.iter_mut().zip(source.rows) {
                let of_group = of_group(x_row);
                let mut largest = s.splat(0.0);
                for x in of_group.whole() {
                    largest = larger(s, T::load(s, &x), largest);
                }
                if let Some(x) = of_group.last() {
                    largest = larger(s, T::load(s, &x), largest);
                }
                *factors = Activations::factors(s.max_lane(largest));
            }
            let (start, distance) = if in_rows { (chunks, 1) } else { (1, rows) };
            // By reference: a copy of what has just been written waits until it is in the cache.
            for (r, (&x_row, &(to_whole, scale))) in source.rows.iter().zip(&factors).enumerate() {
                let of_group = of_group(x_row);
                let to_whole = s.splat(to_whole);
                let mut sum = s.splat(0.0);
                let mut unit = r * start;
                for x in of_group.whole() {
                    let (whole, x) = round(s, s.mul(T::load(s, &x), to_whole), swapped);
                    sum = s.add(sum, x);
                    for whole in whole {
                        bytes[unit] = whole;
                        unit += distance;
                    }
                }
                let mut last = [0; LANES / CHUNK];
                if let Some(x) = of_group.last() {
                    let (whole, x) = round(s, s.mul(T::load(s, &x), to_whole), swapped);
                    sum = s.add(sum, x);
                    last = whole;
                }
                let mut last = last.into_iter();
                while unit < if in_rows { (r + 1) * chunks } else { bytes.len() } {
                    bytes[unit] = last.next().unwrap_or(0);
                    unit += distance;
                }
                let sum = s.sum(sum);
                let scale = if sum.is_nan() { f32::NAN } else { scale };
                rest[r] = (-above * sum as i32).cast_unsigned();
                rest[rows + r] = (scale / factor).to_bits();
                if sums {
                    rest[2 * rows + r] = (scale * sum).to_bits();
                }
            }
        }
    }
}

/// A row's elements of a group, wherever they lie.
struct Group<'a, T> {
    whole: &'a [u8],
    last: &'a [u8],
    element: PhantomData<T>,
}

impl<'a, T: Element> Group<'a, T> {
    #[inline(always)]
    fn new(bytes: &'a [u8]) -> Self {
        let vector = size_of::<[T; LANES]>();
        let (whole, last) = bytes.split_at(bytes.len() / vector * vector);
        Self { whole, last, element: PhantomData }
    }

    /// Whole vectors.
    #[inline(always)]
    fn whole(&self) -> impl Iterator<Item = [T; LANES]> {
        self.whole.chunks_exact(size_of::<[T; LANES]>()).map(bytemuck::pod_read_unaligned)
    }

    /// What is left, and zeros.
    #[inline(always)]
    fn last(&self) -> Option<[T; LANES]> {
        if self.last.is_empty() {
            return None;
        }
        let mut last = [T::zeroed(); LANES];
        bytemuck::bytes_of_mut(&mut last)[..self.last.len()].copy_from_slice(self.last);
        Some(last)
    }
}

/// The larger of the magnitude of `x` and of `largest`. What is no number leaves this as it is, and shows in the sum.
#[inline(always)]
fn larger<S: Simd>(s: S, x: S::V, largest: S::V) -> S::V {
    s.max(s.max(x, s.sub(s.splat(0.0), x)), largest)
}

/// The nearest whole numbers, of at most 8 bits: as bytes, of which each four's second and third may change places, and as floats.
#[inline(always)]
fn round<S: Simd>(s: S, x: S::V, swapped: bool) -> ([u32; LANES / CHUNK], S::V) {
    let whole = s.add(x, s.splat(WHOLE));
    let mut bytes = s.low_bytes(whole);
    if swapped {
        bytes = std::array::from_fn(|i| bytes[[0, 2, 1, 3][i % CHUNK] + i / CHUNK * CHUNK]);
    }
    (bytemuck::cast(bytes), s.sub(whole, s.splat(WHOLE)))
}
