//! Advanced SIMD of 64-bit Arm, with and without the products of bf16 or of bytes: a vector is four registers.

mod instructions;
mod rows;

use super::{CHUNK, Kernel, LANES, Planes, Simd, Table};
use half::{bf16, f16};
use instructions::{bfdot, bfmmla, narrow_f16, sdot, smmla, widen_f16};
use rows::{dot_four_outputs, two_rows};
use std::arch::aarch64::*;

/// Proof that the machine has Advanced SIMD, the products of bf16 if `BF16`, and instructions that add so many products of bytes to a sum as `BYTES`
/// says: only [`run`], [`run_bf16`], [`run_dotprod`] and [`run_i8mm`] make one.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const BF16: bool, const BYTES: usize>(());

/// Products of bytes that are added up at most without further extensions, by `sdot`, and by `smmla`.
const PAIRS: usize = 2;
const DOTS: usize = 4;
const MATRICES: usize = 8;

/// Runs `kernel` compiled for this set.
///
/// # Safety
/// The machine must have it.
#[target_feature(enable = "neon")]
#[inline(never)] // Every machine has it, so that it could be: `tools/kernel-calls.sh` looks for its symbol.
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon::<false, PAIRS>(()))
}

/// Runs `kernel` compiled for this set with the products of bf16.
///
/// # Safety
/// The machine must have them.
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn run_bf16<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon::<true, PAIRS>(()))
}

/// Runs `kernel` compiled for this set with the dot product of bytes.
///
/// # Safety
/// The machine must have it.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn run_dotprod<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon::<false, DOTS>(()))
}

/// Runs `kernel` compiled for this set with the products of matrices of bytes besides.
///
/// # Safety
/// The machine must have them.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(super) unsafe fn run_i8mm<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon::<false, MATRICES>(()))
}

type V = [float32x4_t; 4];

/// One intrinsic on all four registers.
macro_rules! op {
    ($name:ident($($arg:ident),+) = $intrinsic:ident($($operand:ident),+)) => {
        #[inline(always)]
        fn $name(self, $($arg: V),+) -> V {
            // SAFETY: `self` proves that the machine has Advanced SIMD.
            unsafe { [$intrinsic($($operand[0]),+), $intrinsic($($operand[1]),+), $intrinsic($($operand[2]),+), $intrinsic($($operand[3]),+)] }
        }
    };
}

/// All four registers. Not `map`, which compilers call once there are many of them, with vectors in memory.
#[inline(always)]
fn four<T>(register: impl Fn(usize) -> T) -> [T; 4] {
    [register(0), register(1), register(2), register(3)]
}

/// What the plane of 4 bits of [`Planes`] has for four outputs of both vectors.
///
/// # Safety
/// The machine must have Advanced SIMD.
#[inline(always)]
unsafe fn four_lanes<const BITS: u8>(planes: Planes<BITS>, number: usize) -> uint8x16_t {
    assert!(number < 4);
    // SAFETY: the caller vouches for Advanced SIMD; as many bytes are read as there are.
    unsafe { vld1q_u8(planes.nibbles().as_ptr().add(16 * number)) }
}

/// A vector's part of bytes of that.
///
/// # Safety
/// The machine must have Advanced SIMD.
#[inline(always)]
unsafe fn nibbles(bytes: uint8x16_t, vector: usize) -> uint8x16_t {
    // SAFETY: the caller vouches for Advanced SIMD.
    unsafe { if vector == 0 { vandq_u8(bytes, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(bytes) } }
}

/// The codes of [`Planes`] for eight outputs, a byte each.
///
/// # Safety
/// The machine must have Advanced SIMD.
#[inline(always)]
unsafe fn codes<const BITS: u8, const SECOND: bool>(planes: Planes<BITS>, vector: usize, half: usize) -> uint8x16_t {
    let quarter = 2 * vector + usize::from(SECOND);
    // SAFETY: the caller vouches for Advanced SIMD; as many bytes are read as there are.
    unsafe {
        let mut codes = vdupq_n_u8(0);
        if BITS & 4 != 0 {
            let (first, second) = (four_lanes(planes, 2 * half), four_lanes(planes, 2 * half + 1));
            codes = nibbles(if SECOND { vuzp2q_u8(first, second) } else { vuzp1q_u8(first, second) }, vector);
        }
        if BITS & 2 != 0 {
            let left = vdupq_n_s8((BITS & 4) as i8 - 2 * quarter as i8);
            let twos = vshlq_u8(vld1q_u8(planes.twos().as_ptr().add(16 * half)), left);
            codes = vorrq_u8(codes, vandq_u8(twos, vdupq_n_u8(3 << (BITS & 4))));
        }
        if BITS & 1 != 0 {
            let [low, high] = ((planes.ones(quarter) >> (16 * half)) as u16).to_le_bytes();
            let bits = vcombine_u8(vdup_n_u8(low), vdup_n_u8(high));
            let set = vtstq_u8(bits, vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201)));
            codes = vorrq_u8(codes, vandq_u8(set, vdupq_n_u8(1 << (BITS & 6))));
        }
        codes
    }
}

impl<const BF16: bool, const BYTES: usize> Simd for Neon<BF16, BYTES> {
    type V = V;
    /// The lower bytes of the values, and the upper ones.
    type Table = [uint8x16x4_t; 2];
    type Bytes = [int8x16_t; 4];
    type Sums = [int32x4_t; 4];
    type Totals = [int32x4_t; 4];
    const REGISTERS: usize = 8;
    const BF16_DOT: bool = BF16;
    const BF16_ROWS: bool = BF16;
    const BYTE_ROWS: bool = BYTES == MATRICES;

    op!(add(a, b) = vaddq_f32(a, b));
    op!(sub(a, b) = vsubq_f32(a, b));
    op!(mul(a, b) = vmulq_f32(a, b));
    op!(div(a, b) = vdivq_f32(a, b));
    op!(mul_add(a, b, c) = vfmaq_f32(c, a, b));

    // Not the instructions of these names, which answer NaN where the other sets answer `b`.
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        // SAFETY: `self` proves that the machine has Advanced SIMD, here and below.
        unsafe { four(|i| vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i])) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        // SAFETY: as above.
        unsafe { [vdupq_n_f32(x); 4] }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> V {
        // SAFETY: as above; 16 f32 are read from as many.
        unsafe { four(|i| vld1q_f32(from.as_ptr().add(4 * i))) }
    }

    #[inline(always)]
    fn store(self, v: V, to: &mut [f32; LANES]) {
        for (v, to) in v.into_iter().zip(to.as_chunks_mut::<4>().0) {
            // SAFETY: as above; 4 f32 are written to as many.
            unsafe { vst1q_f32(to.as_mut_ptr(), v) }
        }
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> V {
        let from: *const u16 = from.as_ptr().cast();
        // SAFETY: as above; 16 f16 are read from as many.
        unsafe { four(|i| widen_f16(vld1_u16(from.add(4 * i)))) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> V {
        let from: *const u16 = from.as_ptr().cast();
        // SAFETY: as above; 16 u16 are read from as many.
        unsafe { four(|i| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.add(4 * i))))) }
    }

    #[inline(always)]
    fn load_bf16_even(self, from: &[[bf16; 2]; LANES]) -> V {
        let from: *const u32 = from.as_ptr().cast();
        // SAFETY: as above; 16 pairs are read from as many.
        unsafe { four(|i| vreinterpretq_f32_u32(vshlq_n_u32::<16>(vld1q_u32(from.add(4 * i))))) }
    }

    #[inline(always)]
    fn load_bf16_odd(self, from: &[[bf16; 2]; LANES]) -> V {
        let from: *const u32 = from.as_ptr().cast();
        // SAFETY: as above; 16 pairs are read from as many.
        unsafe { four(|i| vreinterpretq_f32_u32(vandq_u32(vld1q_u32(from.add(4 * i)), vdupq_n_u32(0xffff_0000)))) }
    }

    #[inline(always)]
    fn table(self, table: &Table, _: u8) -> Self::Table {
        let values: *const u8 = table.values.as_ptr().cast();
        // SAFETY: as above; as many values are read as there are.
        unsafe {
            let (a, b, c, d) =
                (vld2q_u8(values), vld2q_u8(values.add(32)), vld2q_u8(values.add(64)), vld2q_u8(values.add(96)));
            [uint8x16x4_t(a.0, b.0, c.0, d.0), uint8x16x4_t(a.1, b.1, c.1, d.1)]
        }
    }

    #[inline(always)]
    fn look_up<const BITS: u8, const SECOND: bool>(
        self,
        [low, high]: Self::Table,
        planes: Planes<BITS>,
        vector: usize,
    ) -> V {
        let mut pairs = self.splat(0.0);
        for half in 0..2 {
            // SAFETY: as above.
            unsafe {
                let codes = codes::<BITS, SECOND>(planes, vector, half);
                let (low, high) = match BITS {
                    ..=4 => (vqtbl1q_u8(low.0, codes), vqtbl1q_u8(high.0, codes)),
                    5 => {
                        let (low, high) = (uint8x16x2_t(low.0, low.1), uint8x16x2_t(high.0, high.1));
                        (vqtbl2q_u8(low, codes), vqtbl2q_u8(high, codes))
                    }
                    _ => (vqtbl4q_u8(low, codes), vqtbl4q_u8(high, codes)),
                };
                pairs[2 * half] = vreinterpretq_f32_u8(vzip1q_u8(low, high));
                pairs[2 * half + 1] = vreinterpretq_f32_u8(vzip2q_u8(low, high));
            }
        }
        pairs
    }

    #[inline(always)]
    fn split_pairs(self, pairs: V) -> [V; 2] {
        // SAFETY: as above.
        unsafe {
            let upper = vdupq_n_u32(0xffff_0000);
            [
                four(|i| vreinterpretq_f32_u32(vshlq_n_u32::<16>(vreinterpretq_u32_f32(pairs[i])))),
                four(|i| vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pairs[i]), upper))),
            ]
        }
    }

    #[inline(always)]
    fn join_pairs(self, [first, second]: [V; 2]) -> V {
        let join = |i: usize| {
            // SAFETY: as above.
            unsafe {
                let (first, second) = (vreinterpretq_u32_f32(first[i]), vreinterpretq_u32_f32(second[i]));
                vreinterpretq_f32_u32(vsriq_n_u32::<16>(second, first))
            }
        };
        four(join)
    }

    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> V {
        // SAFETY: as above; 16 bytes are read from as many.
        unsafe {
            let bytes = vld1q_s8(from.as_ptr());
            let [low, high] = [vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes))];
            let words = [vget_low_s16(low), vget_high_s16(low), vget_low_s16(high), vget_high_s16(high)];
            let mut values = [vdupq_n_f32(0.0); 4];
            for (value, words) in values.iter_mut().zip(words) {
                *value = vcvtq_f32_s32(vmovl_s16(words));
            }
            values
        }
    }

    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> V {
        // SAFETY: as above.
        unsafe {
            let bytes = vld1q_u8(from.as_ptr());
            let [low, high] = [vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes))];
            let words = [vget_low_u16(low), vget_high_u16(low), vget_low_u16(high), vget_high_u16(high)];
            let mut values = [vdupq_n_f32(0.0); 4];
            for (value, words) in values.iter_mut().zip(words) {
                *value = vcvtq_f32_u32(vmovl_u16(words));
            }
            values
        }
    }

    #[inline(always)]
    fn dot_bf16(self, sum: V, a: V, b: V) -> V {
        assert!(BF16, "there is no bf16 dot product in this instruction set");
        // SAFETY: `self` proves that the machine has the dot product.
        unsafe { four(|i| bfdot(sum[i], a[i], b[i])) }
    }

    #[inline(always)]
    fn dot_bf16_rows<const VECTORS: usize, const ROWS: usize>(
        self,
        sums: &mut [[V; VECTORS]; ROWS],
        weights: impl Fn(usize, usize) -> V,
        x: [&[u32; ROWS]; 2],
    ) {
        assert!(BF16, "there is no bf16 dot product in this instruction set");
        assert!(ROWS <= 6, "a tile of {ROWS} rows, of which six are written out");
        let last = [&x[0][ROWS - 1], &x[1][ROWS - 1]];
        // SAFETY: `self` proves that the machine has the instructions. Written out: sums of loops that a compiler leaves are in memory.
        unsafe {
            let rows = [two_rows(x, 0), two_rows(x, 2), two_rows(x, 4)];
            let weights = |v, i: usize| [0, 1].map(|n| vreinterpretq_u32_f32(weights(n, v)[i]));
            let dot = |sum, weights, x| bfdot(sum, vreinterpretq_f32_u32(weights), vreinterpretq_f32_u32(x));
            for v in 0..VECTORS {
                dot_four_outputs(sums, [v, 0], weights(v, 0), rows, last, |s, x, w| bfmmla(s, x, w), dot);
                dot_four_outputs(sums, [v, 1], weights(v, 1), rows, last, |s, x, w| bfmmla(s, x, w), dot);
                dot_four_outputs(sums, [v, 2], weights(v, 2), rows, last, |s, x, w| bfmmla(s, x, w), dot);
                dot_four_outputs(sums, [v, 3], weights(v, 3), rows, last, |s, x, w| bfmmla(s, x, w), dot);
            }
        }
    }

    #[inline(always)]
    fn pair_rows<const VECTORS: usize, const ROWS: usize>(self, sums: &mut [[V; VECTORS]; ROWS]) {
        for [first, second] in sums.as_chunks_mut::<2>().0 {
            for (first, second) in first.as_flattened_mut().iter_mut().zip(second.as_flattened_mut()) {
                // SAFETY: as above.
                unsafe {
                    let (one, other) = (vreinterpretq_u64_f32(*first), vreinterpretq_u64_f32(*second));
                    *first = vreinterpretq_f32_u64(vzip1q_u64(one, other));
                    *second = vreinterpretq_f32_u64(vzip2q_u64(one, other));
                }
            }
        }
    }

    #[inline(always)]
    fn load_e4m3(self, from: &[u8; LANES]) -> V {
        // SAFETY: as above.
        let values = unsafe {
            let bytes = vreinterpretq_s8_u8(vld1q_u8(from.as_ptr()));
            let [low, high] = [vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes))];
            let words = [vget_low_s16(low), vget_high_s16(low), vget_low_s16(high), vget_high_s16(high)];
            // Five times the sign, exponent and fraction; all but the first of the signs are where an f32 has its exponent's upper bits.
            let mask = vdupq_n_s32(0x87ff_ffff_u32.cast_signed());
            four(|i| vreinterpretq_f32_s32(vandq_s32(vshlq_n_s32::<20>(vmovl_s16(words[i])), mask)))
        };
        // Exponents of f32 begin 2^-120 lower.
        self.mul(values, self.splat(f32::from_bits((127 + 120) << 23)))
    }

    #[inline(always)]
    fn load_codes<const BITS: u8>(self, planes: Planes<BITS>, vector: usize) -> Self::Bytes {
        // SAFETY: as above.
        unsafe {
            if BITS == 4 {
                return four(|i| vreinterpretq_s8_u8(nibbles(four_lanes(planes, i), vector)));
            }
            let mut lanes = [vdupq_n_s8(0); 4];
            for half in 0..2 {
                let first = vreinterpretq_u16_u8(codes::<BITS, false>(planes, vector, half));
                let second = vreinterpretq_u16_u8(codes::<BITS, true>(planes, vector, half));
                lanes[2 * half] = vreinterpretq_s8_u16(vzip1q_u16(first, second));
                lanes[2 * half + 1] = vreinterpretq_s8_u16(vzip2q_u16(first, second));
            }
            lanes
        }
    }

    #[inline(always)]
    fn load_bytes(self, from: &[[u8; LANES]; CHUNK], flip: u8) -> Self::Bytes {
        // SAFETY: as above; 16 bytes are read from as many.
        unsafe {
            let row = |i: usize| veorq_u8(vld1q_u8(from[i].as_ptr()), vdupq_n_u8(flip));
            let low = |i| vreinterpretq_u16_u8(vzip1q_u8(row(i), row(i + 1)));
            let high = |i| vreinterpretq_u16_u8(vzip2q_u8(row(i), row(i + 1)));
            [
                vreinterpretq_s8_u16(vzip1q_u16(low(0), low(2))),
                vreinterpretq_s8_u16(vzip2q_u16(low(0), low(2))),
                vreinterpretq_s8_u16(vzip1q_u16(high(0), high(2))),
                vreinterpretq_s8_u16(vzip2q_u16(high(0), high(2))),
            ]
        }
    }

    #[inline(always)]
    fn look_up_bytes(self, table: Self::Bytes, codes: Self::Bytes) -> Self::Bytes {
        // SAFETY: as above.
        unsafe { four(|i| vqtbl1q_s8(table[i], vreinterpretq_u8_s8(codes[i]))) }
    }

    #[inline(always)]
    fn read_bytes(self, from: &[u8; CHUNK * LANES]) -> Self::Bytes {
        // SAFETY: as above; 64 bytes are read from as many.
        unsafe { four(|i| vld1q_s8(from.as_ptr().add(16 * i).cast())) }
    }

    #[inline(always)]
    fn write_bytes(self, bytes: Self::Bytes, to: &mut [u8; CHUNK * LANES]) {
        for (bytes, to) in bytes.into_iter().zip(to.as_chunks_mut::<16>().0) {
            // SAFETY: as above; 16 bytes are written to as many.
            unsafe { vst1q_s8(to.as_mut_ptr().cast(), bytes) }
        }
    }

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        self.splat_totals(0)
    }

    #[inline(always)]
    fn dot_bytes(self, _: u8, sums: Self::Sums, codes: Self::Bytes, x: u32) -> Self::Sums {
        // SAFETY: as above, and that the machine has the dot product.
        unsafe {
            let x = vreinterpretq_s8_u32(vdupq_n_u32(x));
            let dot = |i: usize| {
                if BYTES >= DOTS {
                    return sdot(sums[i], codes[i], x);
                }
                let low = vpaddlq_s16(vmull_s8(vget_low_s8(codes[i]), vget_low_s8(x)));
                let high = vpaddlq_s16(vmull_s8(vget_high_s8(codes[i]), vget_high_s8(x)));
                vaddq_s32(sums[i], vpaddq_s32(low, high))
            };
            four(dot)
        }
    }

    #[inline(always)]
    fn dot_bytes_rows<const VECTORS: usize, const ROWS: usize>(
        self,
        sums: &mut [[Self::Sums; VECTORS]; ROWS],
        codes: impl Fn(usize, usize) -> Self::Bytes,
        x: [&[u32; ROWS]; 2],
    ) {
        assert!(BYTES == MATRICES, "there is no dot product of two rows of bytes in this instruction set");
        assert!(ROWS <= 6, "a tile of {ROWS} rows, of which six are written out");
        let last = [&x[0][ROWS - 1], &x[1][ROWS - 1]];
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe {
            let rows = [two_rows(x, 0), two_rows(x, 2), two_rows(x, 4)];
            let codes = |v, i: usize| [0, 1].map(|n| vreinterpretq_u32_s8(codes(n, v)[i]));
            let dot = |sum, codes, x| sdot(sum, vreinterpretq_s8_u32(codes), vreinterpretq_s8_u32(x));
            for v in 0..VECTORS {
                dot_four_outputs(sums, [v, 0], codes(v, 0), rows, last, |s, x, w| smmla(s, x, w), dot);
                dot_four_outputs(sums, [v, 1], codes(v, 1), rows, last, |s, x, w| smmla(s, x, w), dot);
                dot_four_outputs(sums, [v, 2], codes(v, 2), rows, last, |s, x, w| smmla(s, x, w), dot);
                dot_four_outputs(sums, [v, 3], codes(v, 3), rows, last, |s, x, w| smmla(s, x, w), dot);
            }
        }
    }

    #[inline(always)]
    fn pair_sums<const VECTORS: usize, const ROWS: usize>(self, sums: &mut [[Self::Sums; VECTORS]; ROWS]) {
        for [first, second] in sums.as_chunks_mut::<2>().0 {
            for (first, second) in first.as_flattened_mut().iter_mut().zip(second.as_flattened_mut()) {
                // SAFETY: as above.
                unsafe {
                    let (one, other) = (vreinterpretq_u64_s32(*first), vreinterpretq_u64_s32(*second));
                    *first = vreinterpretq_s32_u64(vzip1q_u64(one, other));
                    *second = vreinterpretq_s32_u64(vzip2q_u64(one, other));
                }
            }
        }
    }

    #[inline(always)]
    fn splat_totals(self, x: i32) -> Self::Totals {
        // SAFETY: as above.
        unsafe { [vdupq_n_s32(x); 4] }
    }

    #[inline(always)]
    fn add_sums(self, _: u8, totals: Self::Totals, sums: Self::Sums) -> Self::Totals {
        // SAFETY: as above.
        unsafe { four(|i| vaddq_s32(totals[i], sums[i])) }
    }

    #[inline(always)]
    fn add_totals(self, a: Self::Totals, b: Self::Totals) -> Self::Totals {
        // SAFETY: as above.
        unsafe { four(|i| vaddq_s32(a[i], b[i])) }
    }

    #[inline(always)]
    fn totals_to_f32(self, totals: Self::Totals) -> V {
        // SAFETY: as above.
        unsafe { four(|i| vcvtq_f32_s32(totals[i])) }
    }

    #[inline(always)]
    fn store_f16(self, v: V, to: &mut [f16; LANES]) {
        for (v, to) in v.into_iter().zip(to.as_chunks_mut::<4>().0) {
            // SAFETY: as above; 4 f16 are written to as many.
            unsafe { vst1_u16(to.as_mut_ptr().cast(), narrow_f16(v)) }
        }
    }
}
