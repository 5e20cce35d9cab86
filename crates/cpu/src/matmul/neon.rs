//! Advanced SIMD (NEON) registers and weight formats for the tile kernel.

use std::arch::aarch64::{
    float32x4_t, vaddq_f32, vandq_u32, vdupq_n_f32, vdupq_n_u32, vfmaq_f32, vld1q_f32, vld1q_u32,
    vreinterpretq_f32_u32, vshlq_n_u32, vst1q_f32,
};

use crate::matmul::activations::widen_f16;
use crate::matmul::tile::{Format, PANEL, Simd, tile_kernels};

pub(crate) struct Neon;

impl Simd for Neon {
    type Reg = float32x4_t;
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> float32x4_t {
        // SAFETY: the caller vouches for the instruction set, here and below.
        unsafe { vdupq_n_f32(0.0) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> float32x4_t {
        // SAFETY: the caller vouches for 4 readable values.
        unsafe { vld1q_f32(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, reg: float32x4_t) {
        // SAFETY: the caller vouches for 4 writable values.
        unsafe { vst1q_f32(to, reg) }
    }

    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: as in `zero`.
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn splat(from: *const u32) -> float32x4_t {
        // SAFETY: the caller vouches for one readable value.
        unsafe { vreinterpretq_f32_u32(vdupq_n_u32(from.read())) }
    }

    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}
}

/// Pairs of bf16 widened to f32: first the even, then the odd elements of K.
struct Bf16Wide;

impl Format for Bf16Wide {
    type Simd = Neon;
    const UNITS: usize = 2;
    const STEP_BYTES: usize = PANEL * 4;

    #[inline(always)]
    unsafe fn weights(step: *const u8, vector: usize, unit: usize) -> float32x4_t {
        // SAFETY: the caller vouches for the step's bytes and the instruction set.
        unsafe {
            let pairs = vld1q_u32(step.add(vector * 16).cast());
            vreinterpretq_f32_u32(match unit {
                0 => vshlq_n_u32::<16>(pairs),
                _ => vandq_u32(pairs, vdupq_n_u32(0xffff_0000)),
            })
        }
    }

    #[inline(always)]
    unsafe fn accumulate(sum: float32x4_t, weights: float32x4_t, x: float32x4_t) -> float32x4_t {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { vfmaq_f32(sum, weights, x) }
    }
}

/// f16 widened to f32 by integer operations and one exact multiplication: Rust has no stable f16 vectors.
struct F16;

impl Format for F16 {
    type Simd = Neon;
    const UNITS: usize = 1;
    const STEP_BYTES: usize = PANEL * 2;

    #[inline(always)]
    unsafe fn weights(step: *const u8, vector: usize, _unit: usize) -> float32x4_t {
        // SAFETY: the caller vouches for the step's bytes and the instruction set.
        unsafe {
            let halves = step.add(vector * 8).cast::<[u16; 4]>().read_unaligned();
            Neon::load(halves.map(widen_f16).as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn accumulate(sum: float32x4_t, weights: float32x4_t, x: float32x4_t) -> float32x4_t {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { vfmaq_f32(sum, weights, x) }
    }
}

/// f32 as it is.
struct F32;

impl Format for F32 {
    type Simd = Neon;
    const UNITS: usize = 1;
    const STEP_BYTES: usize = PANEL * 4;

    #[inline(always)]
    unsafe fn weights(step: *const u8, vector: usize, _unit: usize) -> float32x4_t {
        // SAFETY: the caller vouches for the step's bytes and the instruction set.
        unsafe { Neon::load(step.cast::<f32>().add(vector * 4)) }
    }

    #[inline(always)]
    unsafe fn accumulate(sum: float32x4_t, weights: float32x4_t, x: float32x4_t) -> float32x4_t {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { vfmaq_f32(sum, weights, x) }
    }
}

/// The largest tile: 6 rows of 4 registers leave 8 of the 32 for weights and activations.
pub(crate) const TILE_ROWS: usize = 6;

macro_rules! kernels {
    ($name:ident, $peak:ident, $format:ty) => {
        tile_kernels!($name, $peak, $format, #[target_feature(enable = "neon")],
            [1 x 8, 2 x 8, 3 x 4, 4 x 4, 5 x 4, 6 x 4]);
    };
}

kernels!(bf16_wide, bf16_wide_peak, Bf16Wide);
kernels!(f16, f16_peak, F16);
kernels!(f32, f32_peak, F32);
