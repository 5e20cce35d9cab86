//! AVX-512: a vector is one register.

use super::{Kernel, LANES, Simd};
use half::{bf16, f16};
use std::arch::x86_64::*;

/// Proof that the machine has AVX-512 F, BW and VL: only [`run`] makes one.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// Runs `kernel` compiled for this set.
///
/// # Safety
/// The machine must have it.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) {
    kernel.run(Avx512(()));
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

impl Simd for Avx512 {
    type V = __m512;
    const WIDE: bool = true;

    op!(add(a, b) = _mm512_add_ps);
    op!(sub(a, b) = _mm512_sub_ps);
    op!(mul(a, b) = _mm512_mul_ps);
    op!(div(a, b) = _mm512_div_ps);
    op!(max(a, b) = _mm512_max_ps);
    op!(min(a, b) = _mm512_min_ps);
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
    fn zero_below(self, v: __m512, x: __m512, limit: __m512) -> __m512 {
        // SAFETY: `self` proves that the machine has AVX-512.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, limit), v) }
    }

    #[inline(always)]
    fn add_exponent(self, v: __m512, n: __m512) -> __m512 {
        // SAFETY: `self` proves that the machine has AVX-512.
        unsafe {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), shifted))
        }
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
    fn store_f16(self, v: __m512, to: &mut [f16; LANES]) {
        // SAFETY: `self` proves that the machine has AVX-512; 32 bytes are written to as many.
        unsafe {
            let halves = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), halves);
        }
    }
}
