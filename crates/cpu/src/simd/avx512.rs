//! AVX-512, with and without the dot products of bf16 or of bytes: a vector is one register.

use super::{CHUNK, Kernel, LANES, Planes, Simd, Table};
use half::{bf16, f16};
use std::arch::x86_64::*;
use std::mem::transmute;

/// Proof that the machine has AVX-512 F, BW and VL, the dot product of bf16 if `BF16`, and that of bytes if `VNNI`: only [`run`], [`run_bf16`] and
/// [`run_vnni`] make one.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const BF16: bool, const VNNI: bool>(());

/// Runs `kernel` compiled for this set.
///
/// # Safety
/// The machine must have it.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<false, false>(()))
}

/// Runs `kernel` compiled for this set with the dot product of bf16.
///
/// # Safety
/// The machine must have them.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn run_bf16<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<true, false>(()))
}

/// Runs `kernel` compiled for this set with the dot product of bytes.
///
/// # Safety
/// The machine must have them.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn run_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<false, true>(()))
}

/// One intrinsic on registers.
macro_rules! op {
    ($name:ident($($arg:ident),+) = $intrinsic:ident) => {
        #[inline(always)]
        fn $name(self, $($arg: __m512),+) -> __m512 {
            // SAFETY: `self` proves that the machine has AVX-512.
            unsafe { $intrinsic($($arg),+) }
        }
    };
}

impl<const BF16: bool, const VNNI: bool> Simd for Avx512<BF16, VNNI> {
    type V = __m512;
    /// The first 32 values, the second, and the first 16 in f32.
    type Table = [__m512i; 3];
    type Bytes = __m512i;
    type Sums = __m512i;
    type Totals = __m512i;
    const REGISTERS: usize = 32;
    const BF16_DOT: bool = BF16;
    const UNSIGNED_BYTES: bool = true;

    op!(add(a, b) = _mm512_add_ps);
    op!(sub(a, b) = _mm512_sub_ps);
    op!(mul(a, b) = _mm512_mul_ps);
    op!(div(a, b) = _mm512_div_ps);
    op!(max(a, b) = _mm512_max_ps);
    op!(mul_add(a, b, c) = _mm512_fmadd_ps);

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves that the machine has AVX-512.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m512 {
        // SAFETY: as above; 16 f32 are read from as many.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: __m512, to: &mut [f32; LANES]) {
        // SAFETY: as above; 16 f32 are written to as many.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> __m512 {
        // SAFETY: `self` proves that the machine has AVX-512; 32 bytes are read from as many.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> __m512 {
        // SAFETY: `self` proves that the machine has AVX-512; 32 bytes are read from as many.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn load_bf16_even(self, from: &[[bf16; 2]; LANES]) -> __m512 {
        // SAFETY: `self` proves that the machine has AVX-512; 64 bytes are read from as many.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_loadu_si512(from.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn load_bf16_odd(self, from: &[[bf16; 2]; LANES]) -> __m512 {
        // SAFETY: `self` proves that the machine has AVX-512; 64 bytes are read from as many.
        unsafe {
            let high = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(from.as_ptr().cast()), high))
        }
    }

    #[inline(always)]
    fn dot_bf16(self, sum: __m512, a: __m512, b: __m512) -> __m512 {
        assert!(BF16, "there is no bf16 dot product in this instruction set");
        // SAFETY: `self` proves that the machine has the dot product; the bits of a lane are those of two bf16.
        unsafe { _mm512_dpbf16_ps(sum, transmute::<__m512, __m512bh>(a), transmute::<__m512, __m512bh>(b)) }
    }

    #[inline(always)]
    fn table(self, table: &Table, _: u8) -> Self::Table {
        let values = table.values.as_ptr();
        // SAFETY: `self` proves that the machine has AVX-512; as many values are read as there are.
        unsafe {
            let [first, second] = [_mm512_loadu_si512(values.cast()), _mm512_loadu_si512(values.add(32).cast())];
            [first, second, _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(first)))]
        }
    }

    /// A look-up of 32 bits takes the lowest 4 of each lane, where codes of 4 bits are or can be shifted to: less work than to split pairs.
    #[inline(always)]
    fn look_up_values<const BITS: u8, const SECOND: bool>(
        self,
        table: Self::Table,
        planes: Planes<BITS>,
        vector: usize,
    ) -> [__m512; 2] {
        if BITS != 4 {
            return self.split_pairs(self.look_up::<BITS, SECOND>(table, planes, vector));
        }
        // SAFETY: `self` proves that the machine has AVX-512; as many bytes are read as there are.
        unsafe {
            let nibbles = _mm512_loadu_si512(planes.nibbles().as_ptr().cast());
            let values = _mm512_castsi512_ps(table[2]);
            let [one, other] = match (vector, SECOND) {
                (0, false) => [nibbles, _mm512_srli_epi32::<16>(nibbles)],
                (0, true) => [_mm512_srli_epi32::<8>(nibbles), _mm512_srli_epi32::<24>(nibbles)],
                (_, false) => [_mm512_srli_epi32::<4>(nibbles), _mm512_srli_epi32::<20>(nibbles)],
                (_, true) => [_mm512_srli_epi32::<12>(nibbles), _mm512_srli_epi32::<28>(nibbles)],
            };
            [_mm512_permutexvar_ps(one, values), _mm512_permutexvar_ps(other, values)]
        }
    }

    #[inline(always)]
    fn look_up<const BITS: u8, const SECOND: bool>(
        self,
        [first, second, _]: Self::Table,
        planes: Planes<BITS>,
        vector: usize,
    ) -> __m512 {
        let quarter = 2 * vector + usize::from(SECOND);
        // SAFETY: `self` proves that the machine has AVX-512; as many bytes are read as there are.
        unsafe {
            let wide = |bytes: &[u8; 32]| _mm512_cvtepu8_epi16(_mm256_loadu_si256(bytes.as_ptr().cast()));
            // Where a code's lowest bits begin. What is above them matters only where other bits belong: the table repeats.
            let mut codes = _mm512_setzero_si512();
            if BITS & 4 != 0 {
                let nibbles = _mm512_loadu_si512(planes.nibbles().as_ptr().cast());
                codes = match (vector, SECOND) {
                    (0, false) => nibbles,
                    (0, true) => _mm512_srli_epi16::<8>(nibbles),
                    (_, false) => _mm512_srli_epi16::<4>(nibbles),
                    (_, true) => _mm512_srli_epi16::<12>(nibbles),
                };
            }
            if BITS & 2 != 0 {
                let twos = wide(planes.twos());
                let twos = match 2 * quarter as i32 - i32::from(BITS & 4) {
                    -4 => _mm512_slli_epi16::<4>(twos),
                    -2 => _mm512_slli_epi16::<2>(twos),
                    0 => twos,
                    2 => _mm512_srli_epi16::<2>(twos),
                    4 => _mm512_srli_epi16::<4>(twos),
                    _ => _mm512_srli_epi16::<6>(twos),
                };
                // The first operand's bits say which of the other two's to take.
                let select = |codes| _mm512_ternarylogic_epi32::<0b1100_1010>(_mm512_set1_epi16(15), codes, twos);
                codes = if BITS & 4 != 0 { select(codes) } else { twos };
            }
            if BITS & 1 != 0 {
                let bit = 1 << (BITS & 6);
                codes = _mm512_and_si512(codes, _mm512_set1_epi16(bit - 1));
                codes = _mm512_mask_add_epi16(codes, planes.ones(quarter), codes, _mm512_set1_epi16(bit));
            }
            _mm512_castsi512_ps(match BITS {
                6 => _mm512_permutex2var_epi16(first, codes, second),
                _ => _mm512_permutexvar_epi16(codes, first),
            })
        }
    }

    #[inline(always)]
    fn split_pairs(self, pairs: __m512) -> [__m512; 2] {
        // SAFETY: `self` proves that the machine has AVX-512.
        unsafe {
            let (pairs, upper) = (_mm512_castps_si512(pairs), _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(_mm512_and_si512(pairs, upper))]
        }
    }

    #[inline(always)]
    fn join_pairs(self, [first, second]: [__m512; 2]) -> __m512 {
        // SAFETY: `self` proves that the machine has AVX-512.
        unsafe {
            let first = _mm512_srli_epi32::<16>(_mm512_castps_si512(first));
            _mm512_castsi512_ps(_mm512_or_si512(first, _mm512_castps_si512(second)))
        }
    }

    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> __m512 {
        // SAFETY: `self` proves that the machine has AVX-512; 16 bytes are read from as many.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn load_e4m3(self, from: &[u8; LANES]) -> __m512 {
        // SAFETY: `self` proves that the machine has AVX-512; 16 bytes are read from as many.
        unsafe {
            // Sign twice, exponent and fraction; the second sign is where the highest bit of a float16's exponent is.
            let halves = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.as_ptr().cast())));
            let halves = _mm256_and_si256(halves, _mm256_set1_epi16(0xbfff_u16.cast_signed()));
            self.mul(_mm512_cvtph_ps(halves), self.splat(256.0))
        }
    }

    #[inline(always)]
    fn load_codes<const BITS: u8>(self, planes: Planes<BITS>, vector: usize) -> __m512i {
        // SAFETY: `self` proves that the machine has AVX-512; as many bytes are read as there are.
        unsafe {
            // A lane has bytes for two elements, and what follows in those the bits of the other two.
            let wide = |bytes: &[u8; 32]| _mm512_cvtepu16_epi32(_mm256_loadu_si256(bytes.as_ptr().cast()));
            let mut codes = _mm512_setzero_si512();
            if BITS & 4 != 0 {
                let nibbles = _mm512_loadu_si512(planes.nibbles().as_ptr().cast());
                let nibbles = if vector == 0 { nibbles } else { _mm512_srli_epi16::<4>(nibbles) };
                if BITS == 4 {
                    return _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
                }
                let ascending = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
                let nibbles = _mm512_shuffle_epi8(nibbles, _mm512_broadcast_i32x4(ascending));
                codes = _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
            }
            if BITS & 2 != 0 {
                let twos = wide(planes.twos());
                let twos = if vector == 0 { twos } else { _mm512_srli_epi32::<4>(twos) };
                let both = _mm512_or_si512(twos, _mm512_slli_epi32::<14>(twos));
                let both = _mm512_and_si512(both, _mm512_set1_epi8(3));
                codes = _mm512_or_si512(codes, if BITS & 4 != 0 { _mm512_slli_epi32::<4>(both) } else { both });
            }
            if BITS & 1 != 0 {
                let bit = (1 << (BITS & 6)) as i8;
                let ones = |quarter| _mm512_cvtepu16_epi32(_mm256_maskz_set1_epi8(planes.ones(quarter), bit));
                let (first, second) = (ones(2 * vector), ones(2 * vector + 1));
                codes = _mm512_or_si512(codes, _mm512_or_si512(first, _mm512_slli_epi32::<16>(second)));
            }
            codes
        }
    }

    #[inline(always)]
    fn load_bytes(self, from: &[[u8; LANES]; CHUNK], flip: u8) -> __m512i {
        // SAFETY: `self` proves that the machine has AVX-512; 64 bytes are read from as many.
        unsafe {
            let bytes =
                _mm512_xor_si512(_mm512_loadu_si512(from.as_ptr().cast()), _mm512_set1_epi8(flip.cast_signed()));
            // Four lanes of each element to a quarter of the register, and there a lane's elements together.
            let quarters = _mm512_permutexvar_epi32(transmute::<[u32; 16], __m512i>(QUARTERS), bytes);
            let together = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            _mm512_shuffle_epi8(quarters, _mm512_broadcast_i32x4(together))
        }
    }

    #[inline(always)]
    fn look_up_bytes(self, table: __m512i, codes: __m512i) -> __m512i {
        // SAFETY: `self` proves that the machine has AVX-512.
        unsafe { _mm512_shuffle_epi8(table, codes) }
    }

    #[inline(always)]
    fn read_bytes(self, from: &[u8; CHUNK * LANES]) -> __m512i {
        // SAFETY: `self` proves that the machine has AVX-512; 64 bytes are read from as many.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn write_bytes(self, bytes: __m512i, to: &mut [u8; CHUNK * LANES]) {
        // SAFETY: as above; 64 bytes are written to as many.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), bytes) }
    }

    #[inline(always)]
    fn no_sums(self) -> __m512i {
        // SAFETY: `self` proves that the machine has AVX-512.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn dot_bytes(self, _: u8, sums: __m512i, codes: __m512i, x: u32) -> __m512i {
        assert!(VNNI, "there is no dot product of bytes in this instruction set");
        // SAFETY: `self` proves that the machine has the dot product.
        unsafe { _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(x.cast_signed())) }
    }

    #[inline(always)]
    fn splat_totals(self, x: i32) -> __m512i {
        // SAFETY: `self` proves that the machine has AVX-512.
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    fn load_totals(self, from: &[i32; LANES]) -> __m512i {
        // SAFETY: as above; 64 bytes are read from as many.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn add_sums(self, _: u8, totals: __m512i, sums: __m512i) -> __m512i {
        self.add_totals(totals, sums)
    }

    #[inline(always)]
    fn add_totals(self, a: Self::Totals, b: Self::Totals) -> Self::Totals {
        // SAFETY: as above.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn totals_to_f32(self, totals: __m512i) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(totals) }
    }

    #[inline(always)]
    fn low_bytes(self, v: __m512) -> [u8; LANES] {
        let mut bytes = [0; LANES];
        // SAFETY: `self` proves that the machine has AVX-512; 16 bytes are written to as many.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(_mm512_castps_si512(v))) };
        bytes
    }

    #[inline(always)]
    fn store_f16(self, v: __m512, to: &mut [f16; LANES]) {
        // SAFETY: `self` proves that the machine has AVX-512; 32 bytes are written to as many.
        unsafe {
            let halves = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), halves);
        }
    }

    #[inline(always)]
    fn store_bf16_terms(self, v: [__m512; 2], large: &mut [bf16; 2 * LANES], small: &mut [bf16; 2 * LANES]) {
        if !BF16 {
            let (large, small) = (large.as_chunks_mut().0, small.as_chunks_mut().0);
            for ((v, large), small) in v.into_iter().zip(large).zip(small) {
                self.store_bf16(v, large);
                self.store_bf16(self.sub(v, self.load_bf16(large)), small);
            }
            return;
        }
        // SAFETY: `self` proves that the machine has AVX-512 and its bf16; 64 bytes are written to as many, twice.
        unsafe {
            let bits: __m512i = transmute(_mm512_cvtne2ps_pbh(v[1], v[0]));
            let halves = [_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64::<1>(bits)];
            let wide = halves.map(|half| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half))));
            _mm512_storeu_si512(large.as_mut_ptr().cast(), bits);
            let rest: __m512i =
                transmute(_mm512_cvtne2ps_pbh(_mm512_sub_ps(v[1], wide[1]), _mm512_sub_ps(v[0], wide[0])));
            _mm512_storeu_si512(small.as_mut_ptr().cast(), rest);
        }
    }

    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        // SAFETY: `self` proves that the machine has AVX-512.
        unsafe { _mm512_reduce_max_ps(v) }
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: `self` proves that the machine has AVX-512.
        unsafe {
            let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
            let eight = _mm256_add_ps(_mm512_castps512_ps256(v), upper);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
}

/// Words of four bytes, of four elements after each other: quarters of a register get a word of each.
const QUARTERS: [u32; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];
