//! How many rows and groups of a quantised weight an instruction set's registers hold the sums of. It multiplies nothing.

use super::kinds::Codes;
use super::order;
use crate::matmul::tile::max_rows;
use crate::simd::{Kernel, Simd};

/// The most rows that a tile may have with an instruction set.
pub(super) struct MostRows;

impl Kernel for MostRows {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        most_rows::<S>()
    }
}

/// The most rows of a tile: those whose sums of 16 outputs fit the registers, beside the values of two elements and an activation; where that is one
/// row, as many as of floats.
pub(super) const fn most_rows<S: Simd>() -> usize {
    let (rows, of_floats) = (S::REGISTERS - 3, max_rows::<S>());
    if 1 < rows && rows < of_floats { rows } else { of_floats }
}

/// Groups that are added up side by side, of `sums` vectors each: the additions of few rows wait for each other, and other groups fill the time, as far
/// as half of the registers hold their sums. Of codes that are looked up nothing else fills it; four groups of bytes take longer than two.
pub(super) const fn side_by_side<S: Simd, C: Codes, const ORDER: u8>(sums: usize) -> usize {
    match S::REGISTERS / 2 / sums {
        _ if ORDER == order::LIKE_MATRICES => 1,
        4.. if C::BITS > 0 => 4,
        2.. => 2,
        _ => 1,
    }
}
