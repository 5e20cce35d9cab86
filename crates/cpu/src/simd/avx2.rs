//! AVX2 with FMA and F16C, with and without the dot product of bytes: a vector is two registers.

use super::{CHUNK, Kernel, LANES, Planes, Simd, Table};
use half::{bf16, f16};
use std::arch::x86_64::*;

/// Proof that the machine has AVX2, FMA and F16C, and AVX-VNNI if `VNNI`: only [`run`] and [`run_vnni`] make one.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>(());

/// Runs `kernel` compiled for this set.
///
/// # Safety
/// The machine must have it.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2::<false>(()))
}

/// Runs `kernel` compiled for this set with the dot product of bytes.
///
/// # Safety
/// The machine must have them.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) unsafe fn run_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2::<true>(()))
}

type V = [__m256; 2];

/// The last bits of such a number are whole ones.
const FLOAT: f32 = (1 << 23) as f32;

/// One intrinsic on both registers.
macro_rules! op {
    ($name:ident($($arg:ident),+) = $intrinsic:ident) => {
        #[inline(always)]
        fn $name(self, $($arg: V),+) -> V {
            // SAFETY: `self` proves that the machine has AVX2 and FMA.
            unsafe { [$intrinsic($($arg[0]),+), $intrinsic($($arg[1]),+)] }
        }
    };
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type V = V;
    /// Of up to 4 bits, the lower and the upper bytes of the values, twice. Others' values are whole numbers one after the other: what is to be taken
    /// from floats in whose last bits the codes are.
    type Table = [__m256i; 2];
    type Bytes = [__m256i; 2];
    /// Without the dot product, of codes of up to 4 bits two of 16 bits in each lane, or else one of 32.
    type Sums = [__m256i; 2];
    type Totals = [__m256i; 2];
    const REGISTERS: usize = 8;
    const UNSIGNED_BYTES: bool = VNNI;

    op!(add(a, b) = _mm256_add_ps);
    op!(sub(a, b) = _mm256_sub_ps);
    op!(mul(a, b) = _mm256_mul_ps);
    op!(div(a, b) = _mm256_div_ps);
    op!(max(a, b) = _mm256_max_ps);
    op!(mul_add(a, b, c) = _mm256_fmadd_ps);

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        // SAFETY: `self` proves that the machine has AVX2.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> V {
        // SAFETY: as above; 16 f32 are read from as many.
        unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] }
    }

    #[inline(always)]
    fn store(self, v: V, to: &mut [f32; LANES]) {
        // SAFETY: as above; 16 f32 are written to as many.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), v[1]);
        }
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> V {
        let from: *const __m128i = from.as_ptr().cast();
        // SAFETY: `self` proves that the machine has F16C; 32 bytes are read from as many.
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from.add(1)))] }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> V {
        let from: *const __m128i = from.as_ptr().cast();
        // SAFETY: `self` proves that the machine has AVX2; 32 bytes are read from as many.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(1)));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high))]
        }
    }

    #[inline(always)]
    fn load_bf16_even(self, from: &[[bf16; 2]; LANES]) -> V {
        let from: *const __m256i = from.as_ptr().cast();
        // SAFETY: `self` proves that the machine has AVX2; 64 bytes are read from as many.
        unsafe {
            let (low, high) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high))]
        }
    }

    #[inline(always)]
    fn load_bf16_odd(self, from: &[[bf16; 2]; LANES]) -> V {
        let from: *const __m256i = from.as_ptr().cast();
        // SAFETY: `self` proves that the machine has AVX2; 64 bytes are read from as many.
        unsafe {
            let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            let (low, high) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
            [_mm256_castsi256_ps(_mm256_and_si256(low, upper)), _mm256_castsi256_ps(_mm256_and_si256(high, upper))]
        }
    }

    #[inline(always)]
    fn table(self, table: &Table, bits: u8) -> Self::Table {
        let values: *const __m128i = table.values.as_ptr().cast();
        // SAFETY: `self` proves that the machine has AVX2; values are read that are there.
        unsafe {
            if bits > 4 {
                return [_mm256_castps_si256(_mm256_set1_ps(FLOAT - table.value(0))); 2];
            }
            let (first, second, bytes) =
                (_mm_loadu_si128(values), _mm_loadu_si128(values.add(1)), _mm_set1_epi16(0xff));
            let low = _mm_packus_epi16(_mm_and_si128(first, bytes), _mm_and_si128(second, bytes));
            let high = _mm_packus_epi16(_mm_srli_epi16::<8>(first), _mm_srli_epi16::<8>(second));
            [_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high)]
        }
    }

    #[inline(always)]
    fn look_up<const BITS: u8, const SECOND: bool>(self, table: Self::Table, planes: Planes<BITS>, vector: usize) -> V {
        if BITS > 4 {
            return self.join_pairs(self.look_up_values::<BITS, SECOND>(table, planes, vector));
        }
        // SAFETY: `self` proves that the machine has AVX2; as many bytes are read as there are.
        unsafe {
            let halves = |codes| (_mm256_shuffle_epi8(table[0], codes), _mm256_shuffle_epi8(table[1], codes));
            let low = |(low, high)| _mm256_castsi256_ps(_mm256_unpacklo_epi8(low, high));
            let high = |(low, high)| _mm256_castsi256_ps(_mm256_unpackhi_epi8(low, high));
            if BITS == 4 {
                // The other two elements are looked up with these.
                let [first, second] = pairs_of_lanes(planes, vector);
                let pairs = |codes| if SECOND { high(halves(codes)) } else { low(halves(codes)) };
                [pairs(first), pairs(second)]
            } else {
                let halves = halves(codes::<BITS, SECOND>(planes, vector));
                [low(halves), high(halves)]
            }
        }
    }

    #[inline(always)]
    fn look_up_values<const BITS: u8, const SECOND: bool>(
        self,
        table: Self::Table,
        planes: Planes<BITS>,
        vector: usize,
    ) -> [V; 2] {
        if BITS <= 4 {
            return self.split_pairs(self.look_up::<BITS, SECOND>(table, planes, vector));
        }
        // SAFETY: as above.
        unsafe {
            let codes = codes::<BITS, SECOND>(planes, vector);
            let first = _mm256_and_si256(codes, _mm256_set1_epi16(0xff));
            let second = _mm256_srli_epi16::<8>(codes);
            let upper = _mm256_set1_epi16((FLOAT.to_bits() >> 16) as i16);
            let least = _mm256_castsi256_ps(table[0]);
            let low = |codes| _mm256_sub_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(codes, upper)), least);
            let high = |codes| _mm256_sub_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(codes, upper)), least);
            [[low(first), high(first)], [low(second), high(second)]]
        }
    }

    #[inline(always)]
    fn split_pairs(self, pairs: V) -> [V; 2] {
        // SAFETY: `self` proves that the machine has AVX2.
        unsafe {
            let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            let first = |pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(pairs)));
            let second = |pairs| _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs), upper));
            [[first(pairs[0]), first(pairs[1])], [second(pairs[0]), second(pairs[1])]]
        }
    }

    #[inline(always)]
    fn join_pairs(self, [first, second]: [V; 2]) -> V {
        // SAFETY: `self` proves that the machine has AVX2.
        unsafe {
            let join = |first, second| {
                let first = _mm256_srli_epi32::<16>(_mm256_castps_si256(first));
                _mm256_or_ps(_mm256_castsi256_ps(first), second)
            };
            [join(first[0], second[0]), join(first[1], second[1])]
        }
    }

    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> V {
        let from: *const i8 = from.as_ptr();
        // SAFETY: `self` proves that the machine has AVX2; 16 bytes are read from as many.
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }

    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> V {
        let from: *const u8 = from.as_ptr();
        // SAFETY: as above.
        unsafe {
            let low = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
            let high = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(8).cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }

    #[inline(always)]
    fn load_e4m3(self, from: &[u8; LANES]) -> V {
        // SAFETY: `self` proves that the machine has AVX2 and F16C; 16 bytes are read from as many.
        unsafe {
            // Sign twice, exponent and fraction; the second sign is where the highest bit of a float16's exponent is.
            let halves = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.as_ptr().cast())));
            let halves = _mm256_and_si256(halves, _mm256_set1_epi16(0xbfff_u16.cast_signed()));
            let [low, high] = [_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves)];
            self.mul([_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)], self.splat(256.0))
        }
    }

    #[inline(always)]
    fn load_codes<const BITS: u8>(self, planes: Planes<BITS>, vector: usize) -> Self::Bytes {
        // SAFETY: `self` proves that the machine has AVX2; as many bytes are read as there are.
        unsafe {
            if BITS == 4 {
                return nibbles(planes, vector);
            }
            let (first, second) = (codes::<BITS, false>(planes, vector), codes::<BITS, true>(planes, vector));
            [_mm256_unpacklo_epi16(first, second), _mm256_unpackhi_epi16(first, second)]
        }
    }

    #[inline(always)]
    fn load_bytes(self, from: &[[u8; LANES]; CHUNK], flip: u8) -> Self::Bytes {
        // SAFETY: `self` proves that the machine has AVX2; 16 bytes are read from as many.
        unsafe {
            let row = |i: usize| _mm_loadu_si128(from[i].as_ptr().cast());
            let low = |i: usize| _mm_unpacklo_epi8(row(i), row(i + 1));
            let high = |i: usize| _mm_unpackhi_epi8(row(i), row(i + 1));
            let lanes = |first, second| {
                let [low, high] = [_mm_unpacklo_epi16(first, second), _mm_unpackhi_epi16(first, second)];
                _mm256_xor_si256(_mm256_set_m128i(high, low), _mm256_set1_epi8(flip.cast_signed()))
            };
            [lanes(low(0), low(2)), lanes(high(0), high(2))]
        }
    }

    #[inline(always)]
    fn look_up_bytes(self, table: Self::Bytes, codes: Self::Bytes) -> Self::Bytes {
        // SAFETY: `self` proves that the machine has AVX2.
        unsafe { [_mm256_shuffle_epi8(table[0], codes[0]), _mm256_shuffle_epi8(table[1], codes[1])] }
    }

    #[inline(always)]
    fn read_bytes(self, from: &[u8; CHUNK * LANES]) -> Self::Bytes {
        let from: *const __m256i = from.as_ptr().cast();
        // SAFETY: `self` proves that the machine has AVX2; 64 bytes are read from as many.
        unsafe { [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))] }
    }

    #[inline(always)]
    fn write_bytes(self, bytes: Self::Bytes, to: &mut [u8; CHUNK * LANES]) {
        let to: *mut __m256i = to.as_mut_ptr().cast();
        // SAFETY: as above; 64 bytes are written to as many.
        unsafe {
            _mm256_storeu_si256(to, bytes[0]);
            _mm256_storeu_si256(to.add(1), bytes[1]);
        }
    }

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        // SAFETY: `self` proves that the machine has AVX2.
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    #[inline(always)]
    fn dot_bytes(self, bits: u8, sums: Self::Sums, codes: Self::Bytes, x: u32) -> Self::Sums {
        // SAFETY: as above.
        unsafe {
            let x = _mm256_set1_epi32(x.cast_signed());
            let dot = |sum, codes| {
                if VNNI {
                    return _mm256_dpbusd_avx_epi32(sum, codes, x);
                }
                // Neither sum of two products is more than 16 bits hold, nor are PARTIAL_DOTS of them where codes have 4 bits.
                let pairs = match bits {
                    ..=6 => _mm256_maddubs_epi16(codes, x),
                    _ => _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)),
                };
                match bits {
                    ..=4 => _mm256_add_epi16(sum, pairs),
                    _ => _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))),
                }
            };
            [dot(sums[0], codes[0]), dot(sums[1], codes[1])]
        }
    }

    #[inline(always)]
    fn splat_totals(self, x: i32) -> Self::Totals {
        // SAFETY: as above.
        unsafe { [_mm256_set1_epi32(x); 2] }
    }

    #[inline(always)]
    fn load_totals(self, from: &[i32; LANES]) -> Self::Totals {
        let from: *const __m256i = from.as_ptr().cast();
        // SAFETY: as above; 64 bytes are read from as many.
        unsafe { [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))] }
    }

    #[inline(always)]
    fn add_sums(self, bits: u8, totals: Self::Totals, sums: Self::Sums) -> Self::Totals {
        // SAFETY: as above.
        unsafe {
            let wide = |sum| if bits <= 4 && !VNNI { _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) } else { sum };
            [_mm256_add_epi32(totals[0], wide(sums[0])), _mm256_add_epi32(totals[1], wide(sums[1]))]
        }
    }

    #[inline(always)]
    fn add_totals(self, a: Self::Totals, b: Self::Totals) -> Self::Totals {
        // SAFETY: as above.
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    fn totals_to_f32(self, totals: Self::Totals) -> V {
        // SAFETY: as above.
        unsafe { [_mm256_cvtepi32_ps(totals[0]), _mm256_cvtepi32_ps(totals[1])] }
    }

    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        // SAFETY: as above.
        unsafe {
            let eight = _mm256_max_ps(v[0], v[1]);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        // SAFETY: as above.
        unsafe {
            let eight = _mm256_add_ps(v[0], v[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    fn low_bytes(self, v: V) -> [u8; LANES] {
        let mut bytes = [0; LANES];
        // SAFETY: `self` proves that the machine has AVX2; 16 bytes are written to as many.
        unsafe {
            let low = |v| _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0xff));
            // Quarters of 4 lanes of the first and the second register in turn, then of the first before those of the second.
            let pairs = _mm256_packus_epi32(low(v[0]), low(v[1]));
            let pairs = _mm256_permute4x64_epi64::<0b11_01_10_00>(pairs);
            let packed = _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), packed);
        }
        bytes
    }

    #[inline(always)]
    fn store_f16(self, v: V, to: &mut [f16; LANES]) {
        let to: *mut __m128i = to.as_mut_ptr().cast();
        // SAFETY: `self` proves that the machine has F16C; 32 bytes are written to as many.
        unsafe {
            _mm_storeu_si128(to, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(to.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
        }
    }
}

/// The plane of 4 bits of [`Planes`], a byte each, the first and the other eight lanes.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn nibbles<const BITS: u8>(planes: Planes<BITS>, vector: usize) -> [__m256i; 2] {
    let plane: *const __m256i = planes.nibbles().as_ptr().cast();
    let half = |half: usize| {
        // SAFETY: the caller vouches for AVX2; as many bytes are read as there are.
        unsafe {
            let both = _mm256_loadu_si256(plane.add(half));
            let nibbles = if vector == 0 { both } else { _mm256_srli_epi16::<4>(both) };
            _mm256_and_si256(nibbles, _mm256_set1_epi8(15))
        }
    };
    [half(0), half(1)]
}

/// [`nibbles`], in a half of a register four lanes with elements 0 and 1, and then with the others.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn pairs_of_lanes<const BITS: u8>(planes: Planes<BITS>, vector: usize) -> [__m256i; 2] {
    // SAFETY: the caller vouches for it.
    unsafe {
        let [first, second] = nibbles(planes, vector);
        let pairs = _mm256_setr_epi64x(
            0x0e0c_0a08_0604_0200,
            0x0f0d_0b09_0705_0301,
            0x0e0c_0a08_0604_0200,
            0x0f0d_0b09_0705_0301,
        );
        [_mm256_shuffle_epi8(first, pairs), _mm256_shuffle_epi8(second, pairs)]
    }
}

/// The codes of [`Planes`], a byte each, four lanes after the other: 0 to 3, 8 to 11, 4 to 7 and 12 to 15, so that unpacking leaves lanes as they are numbered.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn codes<const BITS: u8, const SECOND: bool>(planes: Planes<BITS>, vector: usize) -> __m256i {
    // SAFETY: the caller vouches for AVX2; as many bytes are read as there are.
    unsafe {
        let quarter = 2 * vector + usize::from(SECOND);
        let mut codes = _mm256_setzero_si256();
        if BITS & 4 != 0 {
            let [first, second] = pairs_of_lanes(planes, vector);
            codes = if SECOND { _mm256_unpackhi_epi64(first, second) } else { _mm256_unpacklo_epi64(first, second) };
        }
        if BITS & 2 != 0 {
            let twos = _mm256_loadu_si256(planes.twos().as_ptr().cast());
            let twos = _mm256_permute4x64_epi64::<0b11_01_10_00>(twos);
            let twos = match 2 * quarter as i32 - i32::from(BITS & 4) {
                -4 => _mm256_slli_epi16::<4>(twos),
                -2 => _mm256_slli_epi16::<2>(twos),
                0 => twos,
                2 => _mm256_srli_epi16::<2>(twos),
                4 => _mm256_srli_epi16::<4>(twos),
                _ => _mm256_srli_epi16::<6>(twos),
            };
            codes = _mm256_or_si256(codes, _mm256_and_si256(twos, _mm256_set1_epi8(3 << (BITS & 4))));
        }
        if BITS & 1 != 0 {
            // Each byte gets that byte of the word which has its bit, and keeps that bit.
            let word = _mm256_set1_epi32(planes.ones(quarter).cast_signed());
            let of = _mm256_setr_epi64x(0, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0x0303_0303_0303_0303);
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(word, of), bit), bit);
            codes = _mm256_or_si256(codes, _mm256_and_si256(set, _mm256_set1_epi8(1 << (BITS & 6))));
        }
        codes
    }
}
