//! Activations rearranged for the tile kernel: a tile's rows interleaved, element by element of K, in 32-bit units.
//! It knows nothing of weights.
//!
//! The kernel then reads one ascending stream whatever the number of rows, and rows whose distance is a power of two do not
//! fall into the same cache set. Matrices take 16 units of a row at a time.

use vllm_apple_ops::DType;

use crate::matmul::format::Unit;
use crate::simd::widen_f16;

/// K elements that are moved row after row before the next ones: a block's reads and writes stay in the first-level cache.
const BLOCK: usize = 64;

/// Writes `[units][rows]` for the rows of `x` (`[_, k]` of `dtype`) that `x_rows` names. Where a step of K has elements behind the last,
/// zeros stand in.
pub(crate) fn pack_tile(to: &mut [u32], unit: Unit, dtype: DType, x: &[u8], k: usize, x_rows: &[u32]) {
    let row_bytes = k * dtype.size();
    let row = |row: u32| &x[row as usize * row_bytes..][..row_bytes];
    match (unit, dtype) {
        (Unit::Groups { elements, padded, sums }, _) => {
            let rows = x_rows.len();
            let bytes = elements * dtype.size();
            for (group, to) in to.chunks_mut((padded + usize::from(sums)) * rows).enumerate() {
                let of_group = |x_row: u32| {
                    let row = row(x_row);
                    &row[row.len().min(group * bytes)..row.len().min((group + 1) * bytes)]
                };
                let (to, sums) = to.split_at_mut(padded * rows);
                interleave_floats(to, dtype, x_rows, of_group);
                for (r, sum) in sums.iter_mut().enumerate() {
                    let elements = to.iter().skip(r).step_by(rows);
                    *sum = elements.fold(0.0, |sum, &x| sum + f32::from_bits(x)).to_bits();
                }
            }
        }
        (Unit::Bf16Pairs16, _) => {
            for (r, &x_row) in x_rows.iter().enumerate() {
                let (whole, rest) = row(x_row).as_chunks::<64>();
                let mut last = [0; 64];
                last[..rest.len()].copy_from_slice(rest);
                let lines = to.as_chunks_mut::<16>().0.iter_mut().skip(r).step_by(x_rows.len());
                for (to, &from) in lines.zip(whole.iter().chain([&last])) {
                    *to = bytemuck::cast(from);
                }
            }
        }
        (Unit::Bf16Pair, _) => {
            interleave(to, x_rows, row, u32::from_le_bytes);
        }
        (Unit::F32, _) => interleave_floats(to, dtype, x_rows, row),
    }
}

/// Moves elements of type `dtype` of every row, widened to f32.
fn interleave_floats<'a>(to: &mut [u32], dtype: DType, x_rows: &[u32], row: impl Fn(u32) -> &'a [u8]) {
    match dtype {
        DType::BF16 => interleave(to, x_rows, row, |half: [u8; 2]| u32::from(u16::from_le_bytes(half)) << 16),
        DType::F16 => interleave(to, x_rows, row, |half: [u8; 2]| widen_f16(u16::from_le_bytes(half)).to_bits()),
        _ => interleave(to, x_rows, row, u32::from_le_bytes),
    }
}

/// Moves `SIZE` bytes of every row at a time through `convert`; where a row ends early, zeros stand in.
fn interleave<'a, const SIZE: usize>(
    to: &mut [u32],
    x_rows: &[u32],
    row: impl Fn(u32) -> &'a [u8],
    convert: impl Fn([u8; SIZE]) -> u32,
) {
    let rows = x_rows.len();
    for (block, to) in to.chunks_mut(BLOCK * rows).enumerate() {
        for (r, &x_row) in x_rows.iter().enumerate() {
            let x = row(x_row);
            let x = &x[x.len().min(block * BLOCK * SIZE)..];
            let (whole, rest) = x.as_chunks::<SIZE>();
            let mut last = [0; SIZE];
            last[..rest.len()].copy_from_slice(rest);
            let mut units = to.iter_mut().skip(r).step_by(rows);
            for (&x, to) in whole.iter().zip(units.by_ref()) {
                *to = convert(x);
            }
            for to in units {
                *to = convert(std::mem::replace(&mut last, [0; SIZE]));
            }
        }
    }
}
