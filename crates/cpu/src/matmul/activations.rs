//! Activations rearranged for the tile kernel: a tile's rows interleaved, element by element of K, in 32-bit units.
//! It knows nothing of weights.
//!
//! The kernel then reads one ascending stream whatever the number of rows, and rows whose distance is a power of two do not
//! fall into the same cache set. Matrices take 16 units of a row at a time, or of bytes a row's part of a group.

mod int8;

use std::ops::Range;

use half::bf16;
pub(super) use int8::PackInt8;
use vllm_apple_ops::DType;

use crate::matmul::format::{Elements, LINE, TINY, Unit};
use crate::simd::widen_f16;

/// Units of each row that are moved before the next ones: a block's reads and writes stay in the first-level cache.
const BLOCK: usize = 64;

/// Rows whose units are written together.
const TOGETHER: usize = 4;

/// [`TINY`] in bf16.
const TINY_BITS: u16 = (TINY.to_bits() >> 16) as u16;

/// Some elements of some rows.
pub(super) struct Source<'a> {
    /// `[_, k]` of `dtype`.
    pub x: &'a [u8],
    pub dtype: DType,
    pub k: usize,
    /// Those that are wanted.
    pub rows: &'a [u32],
    /// Of each, pieces of a unit.
    pub elements: Range<usize>,
}

impl<'a> Source<'a> {
    /// The wanted elements of a row.
    fn row(&self, row: u32) -> &'a [u8] {
        let size = self.dtype.size();
        &self.x[row as usize * self.k * size..][self.elements.start * size..self.elements.end * size]
    }
}

/// Writes `[units][rows]`. Where a step of K has elements behind the last, zeros stand in.
pub(crate) fn pack(to: &mut [u32], unit: Unit, source: &Source<'_>) {
    let (dtype, x_rows, k) = (source.dtype, source.rows, source.elements.len());
    let row = |x_row: u32| source.row(x_row);
    match (unit, dtype) {
        (Unit::Groups { size, padded, elements, sums }, _) => {
            let rows = x_rows.len();
            let units = if elements == Elements::Bf16Pairs { padded / 2 } else { padded };
            // Groups that nothing lies between are as one.
            let (size, units) = if size == padded && !sums { (k, to.len() / rows) } else { (size, units) };
            for (group, to) in to.chunks_mut((units + usize::from(sums)) * rows).enumerate() {
                let of_group = |x_row: u32| part(row(x_row), group, size * dtype.size());
                let (to, sums) = to.split_at_mut(units * rows);
                match elements {
                    Elements::Bf16Pairs => interleave(to, x_rows, of_group, u32::from_le_bytes),
                    _ => interleave_floats(to, dtype, x_rows, of_group),
                }
                if elements == Elements::F32WithoutTiny {
                    for x in &mut *to {
                        *x = without_tiny(f32::from_bits(*x)).to_bits();
                    }
                }
                for (r, sum) in sums.iter_mut().enumerate() {
                    let units = to.iter().skip(r).step_by(rows);
                    *sum = match elements {
                        Elements::Bf16Pairs => sum_of(units.flat_map(|&pair| bf16_pair(pair))),
                        _ => sum_of(units.map(|&x| f32::from_bits(x))),
                    };
                }
            }
        }
        (Unit::Int8Groups { .. }, _) => unreachable!("instruction sets round them: see `PackInt8`"),
        (Unit::Bf16Pairs16, _) => {
            for (r, &x_row) in x_rows.iter().enumerate() {
                lines(to, r, x_rows.len(), row(x_row));
            }
        }
        (Unit::GroupsOfPairs16 { size, blocks, sums }, _) => {
            let rows = x_rows.len();
            // As above.
            let is_whole = size == blocks * 2 * LINE && !sums;
            let (size, blocks) = if is_whole { (k, to.len() / (LINE * rows)) } else { (size, blocks) };
            for (group, to) in to.chunks_mut((blocks + usize::from(sums)) * LINE * rows).enumerate() {
                let (to, sums) = to.split_at_mut(blocks * LINE * rows);
                for (r, &x_row) in x_rows.iter().enumerate() {
                    lines(to, r, rows, part(row(x_row), group, size * dtype.size()));
                }
                for elements in bytemuck::cast_slice_mut::<u32, [bf16; 2 * LINE]>(to) {
                    *elements = elements.map(|x| if x.to_bits() & 0x7fff < TINY_BITS { bf16::ZERO } else { x });
                }
                for (r, sum) in sums.iter_mut().take(rows).enumerate() {
                    let lines = to.as_chunks::<LINE>().0.iter().skip(r).step_by(rows);
                    *sum = sum_of(lines.flatten().flat_map(|&pair| bf16_pair(pair)));
                }
            }
        }
        (Unit::Bf16Pair, _) => {
            interleave(to, x_rows, row, u32::from_le_bytes);
        }
        (Unit::F32, _) => interleave_floats(to, dtype, x_rows, row),
    }
}

/// Part `index` of a row, of `bytes` bytes if there are so many.
fn part(row: &[u8], index: usize, bytes: usize) -> &[u8] {
    &row[row.len().min(index * bytes)..row.len().min((index + 1) * bytes)]
}

fn bf16_pair(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}

/// The bits of the sum, in ascending order.
fn sum_of(elements: impl Iterator<Item = f32>) -> u32 {
    elements.fold(0.0, |sum, x| sum + x).to_bits()
}

/// Zero for what is below [`TINY`].
fn without_tiny(x: f32) -> f32 {
    if x.abs() < TINY { 0.0 } else { x }
}

/// Moves a row's units, [`LINE`] at a time, to row `r` of `rows`, and zeros to what is left there.
fn lines(to: &mut [u32], r: usize, rows: usize, row: &[u8]) {
    let (whole, rest) = row.as_chunks::<{ LINE * size_of::<u32>() }>();
    let mut last = [0; LINE * size_of::<u32>()];
    last[..rest.len()].copy_from_slice(rest);
    let mut to = to.as_chunks_mut::<LINE>().0.iter_mut().skip(r).step_by(rows);
    for (&from, to) in whole.iter().zip(to.by_ref()) {
        *to = bytemuck::cast(from);
    }
    for to in to {
        *to = bytemuck::cast(std::mem::replace(&mut last, [0; LINE * size_of::<u32>()]));
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
    if let &[x_row] = x_rows {
        let (whole, rest) = row(x_row).as_chunks();
        return take(to, whole, rest, convert);
    }
    let mut units = [[0; BLOCK]; TOGETHER];
    let mut pairs = [[0; BLOCK]; TOGETHER / 2];
    for (block, to) in to.chunks_mut(BLOCK * rows).enumerate() {
        let count = to.len() / rows;
        for (x_rows, first) in x_rows.chunks(TOGETHER).zip((0..).step_by(TOGETHER)) {
            for (units, &x_row) in units.iter_mut().zip(x_rows) {
                let x = row(x_row);
                let (whole, rest) = x[x.len().min(block * BLOCK * SIZE)..].as_chunks();
                take(&mut units[..count], whole, rest, &convert);
            }
            let units = units.each_ref().map(|units| &units[..count]);
            put(&units[..x_rows.len()], &mut pairs, &mut to[first..], rows);
        }
    }
}

/// The units of `whole` and what is left of a row, and zeros.
#[inline(always)]
fn take<const SIZE: usize>(units: &mut [u32], whole: &[[u8; SIZE]], rest: &[u8], convert: impl Fn([u8; SIZE]) -> u32) {
    if let Some(whole) = whole.get(..units.len()) {
        for (unit, &x) in units.iter_mut().zip(whole) {
            *unit = convert(x);
        }
        return;
    }
    let mut last = [0; SIZE];
    last[..rest.len()].copy_from_slice(rest);
    let mut whole = whole.iter().chain([&last]);
    for unit in units {
        *unit = whole.next().map_or(0, |&x| convert(x));
    }
}

/// Writes the units of some rows where those of `rows` lie together. `pairs` is for its own use.
#[inline(always)]
fn put(units: &[&[u32]], pairs: &mut [[u64; BLOCK]; TOGETHER / 2], to: &mut [u32], rows: usize) {
    match units {
        // By pairs, which compilers make of vectors.
        [a, b, c, d] => {
            for (pairs, [first, second]) in pairs.iter_mut().zip([[a, b], [c, d]]) {
                for (pair, (&first, &second)) in pairs.iter_mut().zip(first.iter().zip(second.iter())) {
                    *pair = u64::from(first) | u64::from(second) << 32;
                }
            }
            for (to, (&ab, &cd)) in to.chunks_mut(rows).zip(pairs[0].iter().zip(&pairs[1])) {
                to[..TOGETHER].copy_from_slice(&bytemuck::cast::<_, [u32; TOGETHER]>([ab, cd]));
            }
        }
        _ => {
            for (u, to) in to.chunks_mut(rows).enumerate() {
                for (to, units) in to.iter_mut().zip(units) {
                    *to = units[u];
                }
            }
        }
    }
}
