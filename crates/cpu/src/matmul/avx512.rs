//! AVX-512 registers and weight formats for the tile kernel, with and without the bf16 dot product.

use std::arch::x86_64::{
    __m256i, __m512, __m512bh, __m512i, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm512_add_ps, _mm512_and_si512,
    _mm512_castsi512_ps, _mm512_cvtph_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_storeu_ps,
};

use crate::matmul::tile::{Format, PANEL, Simd, tile_kernels};

pub(crate) struct Avx512;

impl Simd for Avx512 {
    type Reg = __m512;
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the caller vouches for the instruction set, here and below.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: the caller vouches for 16 readable values.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, reg: __m512) {
        // SAFETY: the caller vouches for 16 writable values.
        unsafe { _mm512_storeu_ps(to, reg) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as in `zero`.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn splat(from: *const u32) -> __m512 {
        // SAFETY: the caller vouches for one readable value.
        unsafe { _mm512_castsi512_ps(_mm512_set1_epi32(from.read().cast_signed())) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<{ _MM_HINT_T0 }>(at.cast()) }
    }
}

/// Pairs of bf16 multiplied by the dot product instruction.
struct Bf16Dot;

impl Format for Bf16Dot {
    type Simd = Avx512;
    const UNITS: usize = 1;
    const STEP_BYTES: usize = PANEL * 4;

    #[inline(always)]
    unsafe fn weights(step: *const u8, vector: usize, _unit: usize) -> __m512 {
        // SAFETY: the caller vouches for the step's bytes and the instruction set.
        unsafe { Avx512::load(step.cast::<f32>().add(vector * 16)) }
    }

    #[inline(always)]
    unsafe fn accumulate(sum: __m512, weights: __m512, x: __m512) -> __m512 {
        // SAFETY: registers of the same size without invalid values; the caller vouches for the instruction set.
        unsafe {
            let (weights, x) =
                (std::mem::transmute::<__m512, __m512bh>(weights), std::mem::transmute::<__m512, __m512bh>(x));
            _mm512_dpbf16_ps(sum, weights, x)
        }
    }
}

/// Pairs of bf16 widened to f32: first the even, then the odd elements of K.
struct Bf16Wide;

impl Format for Bf16Wide {
    type Simd = Avx512;
    const UNITS: usize = 2;
    const STEP_BYTES: usize = PANEL * 4;

    #[inline(always)]
    unsafe fn weights(step: *const u8, vector: usize, unit: usize) -> __m512 {
        // SAFETY: the caller vouches for the step's bytes and the instruction set.
        unsafe {
            let pairs: __m512i = _mm512_loadu_si512(step.add(vector * 64).cast());
            let wide = match unit {
                0 => _mm512_slli_epi32::<16>(pairs),
                _ => _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32.cast_signed())),
            };
            _mm512_castsi512_ps(wide)
        }
    }

    #[inline(always)]
    unsafe fn accumulate(sum: __m512, weights: __m512, x: __m512) -> __m512 {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { _mm512_fmadd_ps(weights, x, sum) }
    }
}

/// f16 widened to f32.
struct F16;

impl Format for F16 {
    type Simd = Avx512;
    const UNITS: usize = 1;
    const STEP_BYTES: usize = PANEL * 2;

    #[inline(always)]
    unsafe fn weights(step: *const u8, vector: usize, _unit: usize) -> __m512 {
        // SAFETY: the caller vouches for the step's bytes and the instruction set.
        unsafe {
            let halves: __m256i = _mm256_loadu_si256(step.add(vector * 32).cast());
            _mm512_cvtph_ps(halves)
        }
    }

    #[inline(always)]
    unsafe fn accumulate(sum: __m512, weights: __m512, x: __m512) -> __m512 {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { _mm512_fmadd_ps(weights, x, sum) }
    }
}

/// f32 as it is.
struct F32;

impl Format for F32 {
    type Simd = Avx512;
    const UNITS: usize = 1;
    const STEP_BYTES: usize = PANEL * 4;

    #[inline(always)]
    unsafe fn weights(step: *const u8, vector: usize, _unit: usize) -> __m512 {
        // SAFETY: the caller vouches for the step's bytes and the instruction set.
        unsafe { Avx512::load(step.cast::<f32>().add(vector * 16)) }
    }

    #[inline(always)]
    unsafe fn accumulate(sum: __m512, weights: __m512, x: __m512) -> __m512 {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { _mm512_fmadd_ps(weights, x, sum) }
    }
}

/// The largest tile: 12 rows of 2 registers leave 8 of the 32 for weights and activations.
pub(crate) const TILE_ROWS: usize = 12;

macro_rules! kernels {
    ($name:ident, $peak:ident, $format:ty, $features:literal) => {
        tile_kernels!($name, $peak, $format, #[target_feature(enable = $features)],
            [1 x 2, 2 x 2, 3 x 2, 4 x 2, 5 x 2, 6 x 2, 7 x 2, 8 x 2, 9 x 2, 10 x 2, 11 x 2, 12 x 2]);
    };
}

kernels!(bf16_dot, bf16_dot_peak, Bf16Dot, "avx512f,avx512bw,avx512vl,avx512bf16");
kernels!(bf16_wide, bf16_wide_peak, Bf16Wide, "avx512f,avx512bw,avx512vl");
kernels!(f16, f16_peak, F16, "avx512f,avx512bw,avx512vl");
kernels!(f32, f32_peak, F32, "avx512f,avx512bw,avx512vl");
