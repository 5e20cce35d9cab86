//! Activations rounded to 8 bits, in the units of the tile kernel for integers.

use vllm_apple_ops::{Activations, DType};

use super::part;
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
    /// Of the activations, `[_, k]`, and those that are wanted.
    pub dtype: DType,
    pub x: &'a [u8],
    pub k: usize,
    pub x_rows: &'a [u32],
}

impl Kernel for PackInt8<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_float!(self.dtype, T => self.pack::<S, T>(s));
    }
}

impl PackInt8<'_> {
    #[inline(always)]
    fn pack<S: Simd, T: Element>(self, s: S) {
        let Self { to, in_rows, size, padded, above, factor, sums, x, k, x_rows, .. } = self;
        let (rows, chunks, row_bytes) = (x_rows.len(), padded / CHUNK, k * size_of::<T>());
        for (group, to) in to.chunks_mut((chunks + 2 + usize::from(sums)) * rows).enumerate() {
            let (bytes, rest) = to.split_at_mut(chunks * rows);
            for (r, &x_row) in x_rows.iter().enumerate() {
                let row = &x[x_row as usize * row_bytes..][..row_bytes];
                let of_group = part(row, group, size * size_of::<T>());
                let mut largest = s.splat(0.0);
                for x in of_group.chunks(size_of::<[T; LANES]>()) {
                    let x = load::<S, T>(s, x);
                    // What is no number leaves this as it is, and shows in the sum.
                    largest = s.max(s.max(x, s.sub(s.splat(0.0), x)), largest);
                }
                let (to_whole, scale) = Activations::factors(s.max_lane(largest));
                let mut sum = s.splat(0.0);
                let (start, distance) = if in_rows { (r * chunks, 1) } else { (r, rows) };
                for i in 0..chunks.div_ceil(LANES / CHUNK) {
                    let x = load::<S, T>(s, part(of_group, i, size_of::<[T; LANES]>()));
                    let whole = s.add(s.mul(x, s.splat(to_whole)), s.splat(WHOLE));
                    sum = s.add(sum, s.sub(whole, s.splat(WHOLE)));
                    let whole = s.low_bytes(whole);
                    let units = i * (LANES / CHUNK)..chunks.min((i + 1) * (LANES / CHUNK));
                    let to = bytes[start + units.start * distance..].iter_mut().step_by(distance).take(units.len());
                    for (unit, &whole) in to.zip(whole.as_chunks().0) {
                        *unit = u32::from_le_bytes(whole);
                    }
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

/// Up to 16 elements, wherever they lie, then zeros.
#[inline(always)]
fn load<S: Simd, T: Element>(s: S, from: &[u8]) -> S::V {
    if from.len() == size_of::<[T; LANES]>() {
        return T::load(s, &bytemuck::pod_read_unaligned(from));
    }
    let mut padded = [T::zeroed(); LANES];
    bytemuck::bytes_of_mut(&mut padded)[..from.len()].copy_from_slice(from);
    T::load(s, &padded)
}
