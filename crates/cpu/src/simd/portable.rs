//! Plain arrays, for machines without one of the other sets: correct everywhere, fast nowhere.

use super::{CHUNK, LANES, Planes, Simd, Table};
use half::{bf16, f16};
use std::array::from_fn;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

type V = [f32; LANES];

impl Simd for Portable {
    type V = V;
    type Table = Table;
    type Bytes = [[i8; CHUNK]; LANES];
    type Sums = [i32; LANES];
    type Totals = [i32; LANES];
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
    fn load_codes<const BITS: u8>(self, planes: Planes<BITS>, vector: usize) -> Self::Bytes {
        let (first, second) = (planes.codes::<false>(vector), planes.codes::<true>(vector));
        from_fn(|lane| {
            let at = 2 * lane;
            let codes = if BITS == 4 {
                [first[at], second[at], first[at + 1], second[at + 1]]
            } else {
                [first[at], first[at + 1], second[at], second[at + 1]]
            };
            codes.map(u8::cast_signed)
        })
    }

    #[inline(always)]
    fn load_bytes(self, from: &[[u8; LANES]; CHUNK], flip: u8) -> Self::Bytes {
        from_fn(|lane| from_fn(|i| (from[i][lane] ^ flip).cast_signed()))
    }

    #[inline(always)]
    fn look_up_bytes(self, table: Self::Bytes, codes: Self::Bytes) -> Self::Bytes {
        from_fn(|lane| from_fn(|i| table.as_flattened()[usize::from(codes[lane][i].cast_unsigned() & 15)]))
    }

    #[inline(always)]
    fn read_bytes(self, from: &[u8; CHUNK * LANES]) -> Self::Bytes {
        bytemuck::cast(*from)
    }

    #[inline(always)]
    fn write_bytes(self, bytes: Self::Bytes, to: &mut [u8; CHUNK * LANES]) {
        *to = bytemuck::cast(bytes);
    }

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        [0; LANES]
    }

    #[inline(always)]
    fn dot_bytes(self, _: u8, sums: Self::Sums, codes: Self::Bytes, x: u32) -> Self::Sums {
        let x = x.to_le_bytes().map(u8::cast_signed);
        from_fn(|lane| (0..CHUNK).fold(sums[lane], |sum, i| sum + i32::from(codes[lane][i]) * i32::from(x[i])))
    }

    #[inline(always)]
    fn splat_totals(self, x: i32) -> Self::Totals {
        [x; LANES]
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn load_totals(self, from: &[i32; LANES]) -> Self::Totals {
        *from
    }

    #[inline(always)]
    fn add_sums(self, _: u8, totals: Self::Totals, sums: Self::Sums) -> Self::Totals {
        from_fn(|lane| totals[lane] + sums[lane])
    }

    #[inline(always)]
    fn add_totals(self, a: Self::Totals, b: Self::Totals) -> Self::Totals {
        from_fn(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    fn totals_to_f32(self, totals: Self::Totals) -> V {
        totals.map(|total| total as f32)
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
