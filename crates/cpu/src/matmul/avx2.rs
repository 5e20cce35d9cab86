//! AVX2 registers (with FMA and F16C) and weight formats for the tile kernel.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm256_add_ps, _mm256_and_si256,
    _mm256_castsi256_ps, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_set1_epi32,
    _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps,
};

use crate::matmul::tile::{Format, PANEL, Simd, tile_kernels};

pub(crate) struct Avx2;

impl Simd for Avx2 {
    type Reg = __m256;
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: the caller vouches for the instruction set, here and below.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        // SAFETY: the caller vouches for 8 readable values.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, reg: __m256) {
        // SAFETY: the caller vouches for 8 writable values.
        unsafe { _mm256_storeu_ps(to, reg) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as in `zero`.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn splat(from: *const u32) -> __m256 {
        // SAFETY: the caller vouches for one readable value.
        unsafe { _mm256_castsi256_ps(_mm256_set1_epi32(from.read().cast_signed())) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<{ _MM_HINT_T0 }>(at.cast()) }
    }
}

/// Pairs of bf16 widened to f32: first the even, then the odd elements of K.
struct Bf16Wide;

impl Format for Bf16Wide {
    type Simd = Avx2;
    const UNITS: usize = 2;
    const STEP_BYTES: usize = PANEL * 4;

    #[inline(always)]
    unsafe fn weights(step: *const u8, vector: usize, unit: usize) -> __m256 {
        // SAFETY: the caller vouches for the step's bytes and the instruction set.
        unsafe {
            let pairs: __m256i = _mm256_loadu_si256(step.add(vector * 32).cast());
            let wide = match unit {
                0 => _mm256_slli_epi32::<16>(pairs),
                _ => _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32.cast_signed())),
            };
            _mm256_castsi256_ps(wide)
        }
    }

    #[inline(always)]
    unsafe fn accumulate(sum: __m256, weights: __m256, x: __m256) -> __m256 {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { _mm256_fmadd_ps(weights, x, sum) }
    }
}

/// f16 widened to f32.
struct F16;

impl Format for F16 {
    type Simd = Avx2;
    const UNITS: usize = 1;
    const STEP_BYTES: usize = PANEL * 2;

    #[inline(always)]
    unsafe fn weights(step: *const u8, vector: usize, _unit: usize) -> __m256 {
        // SAFETY: the caller vouches for the step's bytes and the instruction set.
        unsafe {
            let halves: __m128i = _mm_loadu_si128(step.add(vector * 16).cast());
            _mm256_cvtph_ps(halves)
        }
    }

    #[inline(always)]
    unsafe fn accumulate(sum: __m256, weights: __m256, x: __m256) -> __m256 {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { _mm256_fmadd_ps(weights, x, sum) }
    }
}

/// f32 as it is.
struct F32;

impl Format for F32 {
    type Simd = Avx2;
    const UNITS: usize = 1;
    const STEP_BYTES: usize = PANEL * 4;

    #[inline(always)]
    unsafe fn weights(step: *const u8, vector: usize, _unit: usize) -> __m256 {
        // SAFETY: the caller vouches for the step's bytes and the instruction set.
        unsafe { Avx2::load(step.cast::<f32>().add(vector * 8)) }
    }

    #[inline(always)]
    unsafe fn accumulate(sum: __m256, weights: __m256, x: __m256) -> __m256 {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { _mm256_fmadd_ps(weights, x, sum) }
    }
}

/// The largest tile: 6 rows of 2 registers leave 4 of the 16 for weights and activations.
pub(crate) const TILE_ROWS: usize = 6;

macro_rules! kernels {
    ($name:ident, $peak:ident, $format:ty) => {
        tile_kernels!($name, $peak, $format, #[target_feature(enable = "avx2,fma,f16c")],
            [1 x 4, 2 x 4, 3 x 2, 4 x 2, 5 x 2, 6 x 2]);
    };
}

kernels!(bf16_wide, bf16_wide_peak, Bf16Wide);
kernels!(f16, f16_peak, F16);
kernels!(f32, f32_peak, F32);
