//! Plain arrays, for machines without one of the other sets: correct everywhere, fast nowhere.

use super::{LANES, Planes, Simd, Table};
use half::{bf16, f16};
use std::array::from_fn;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

type V = [f32; LANES];

impl Simd for Portable {
    type V = V;
    type Table = Table;
    const REGISTERS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, from: &V) -> V {
        *from
    }

    #[inline(always)]
    fn store(self, v: V, to: &mut V) {
        *to = v;
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        from_fn(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    /// Rounds twice: without hardware, a multiply-add that rounds once would be a slow library call.
    #[inline(always)]
    fn mul_add(self, a: V, b: V, c: V) -> V {
        from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> V {
        from_fn(|i| widen_f16(from[i].to_bits()))
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> V {
        from_fn(|i| f32::from_bits(u32::from(from[i].to_bits()) << 16))
    }

    #[inline(always)]
    fn load_bf16_even(self, from: &[[bf16; 2]; LANES]) -> V {
        from_fn(|i| from[i][0].to_f32())
    }

    #[inline(always)]
    fn load_bf16_odd(self, from: &[[bf16; 2]; LANES]) -> V {
        from_fn(|i| from[i][1].to_f32())
    }

    #[inline(always)]
    fn table(self, table: &Table, _: u8) -> Table {
        *table
    }

    #[inline(always)]
    fn look_up<const BITS: u8, const SECOND: bool>(self, table: Table, planes: Planes<BITS>, vector: usize) -> V {
        let codes = planes.codes::<SECOND>(vector);
        self.join_pairs([0, 1].map(|i| from_fn(|lane| table.value(codes[2 * lane + i]))))
    }

    #[inline(always)]
    fn store_f16(self, v: V, to: &mut [f16; LANES]) {
        for i in 0..LANES {
            to[i] = f16::from_f32(v[i]);
        }
    }
}

/// The exact value of an f16, without a branch per element so that loops over it vectorise.
#[inline(always)]
pub(crate) fn widen_f16(half: u16) -> f32 {
    let half = u32::from(half);
    // Exponent and mantissa in f32's places, then the difference of the exponents' biases as an exact multiplication, which
    // also makes normal numbers of subnormal ones.
    let magnitude = f32::from_bits((half & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let special = if half & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | (half & 0x8000) << 16)
}
