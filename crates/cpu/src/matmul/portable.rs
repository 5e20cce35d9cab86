//! Plain Rust "registers" and weight formats for the tile kernel: correct everywhere, fast nowhere.

use crate::matmul::activations::widen_f16;
use crate::matmul::tile::{Format, PANEL, Simd, tile_kernels};

/// Four lanes, which compilers turn into one 128-bit register where there is one.
pub(crate) struct Portable;

type Lanes = [f32; 4];

impl Simd for Portable {
    type Reg = Lanes;
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Lanes {
        [0.0; 4]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Lanes {
        // SAFETY: the caller vouches for 4 readable values.
        unsafe { from.cast::<Lanes>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, reg: Lanes) {
        // SAFETY: the caller vouches for 4 writable values.
        unsafe { to.cast::<Lanes>().write_unaligned(reg) }
    }

    #[inline(always)]
    unsafe fn add(a: Lanes, b: Lanes) -> Lanes {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    unsafe fn splat(from: *const u32) -> Lanes {
        // SAFETY: the caller vouches for one readable value.
        [f32::from_bits(unsafe { from.read() }); 4]
    }

    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}
}

/// Two roundings per step, as a fused multiply-add without hardware would be a slow library call.
#[inline(always)]
fn multiply_add(sum: Lanes, weights: Lanes, x: Lanes) -> Lanes {
    std::array::from_fn(|lane| sum[lane] + weights[lane] * x[lane])
}

/// Pairs of bf16 widened to f32: first the even, then the odd elements of K.
struct Bf16Wide;

impl Format for Bf16Wide {
    type Simd = Portable;
    const UNITS: usize = 2;
    const STEP_BYTES: usize = PANEL * 4;

    #[inline(always)]
    unsafe fn weights(step: *const u8, vector: usize, unit: usize) -> Lanes {
        // SAFETY: the caller vouches for the step's bytes.
        let pairs = unsafe { step.add(vector * 16).cast::<[u32; 4]>().read_unaligned() };
        pairs.map(|pair| f32::from_bits(if unit == 0 { pair << 16 } else { pair & 0xffff_0000 }))
    }

    #[inline(always)]
    unsafe fn accumulate(sum: Lanes, weights: Lanes, x: Lanes) -> Lanes {
        multiply_add(sum, weights, x)
    }
}

/// f16 widened to f32.
struct F16;

impl Format for F16 {
    type Simd = Portable;
    const UNITS: usize = 1;
    const STEP_BYTES: usize = PANEL * 2;

    #[inline(always)]
    unsafe fn weights(step: *const u8, vector: usize, _unit: usize) -> Lanes {
        // SAFETY: the caller vouches for the step's bytes.
        let halves = unsafe { step.add(vector * 8).cast::<[u16; 4]>().read_unaligned() };
        halves.map(widen_f16)
    }

    #[inline(always)]
    unsafe fn accumulate(sum: Lanes, weights: Lanes, x: Lanes) -> Lanes {
        multiply_add(sum, weights, x)
    }
}

/// f32 as it is.
struct F32;

impl Format for F32 {
    type Simd = Portable;
    const UNITS: usize = 1;
    const STEP_BYTES: usize = PANEL * 4;

    #[inline(always)]
    unsafe fn weights(step: *const u8, vector: usize, _unit: usize) -> Lanes {
        // SAFETY: the caller vouches for the step's bytes.
        unsafe { Portable::load(step.cast::<f32>().add(vector * 4)) }
    }

    #[inline(always)]
    unsafe fn accumulate(sum: Lanes, weights: Lanes, x: Lanes) -> Lanes {
        multiply_add(sum, weights, x)
    }
}

/// The largest tile: 2 rows of 4 registers.
pub(crate) const TILE_ROWS: usize = 2;

tile_kernels!(bf16_wide, bf16_wide_peak, Bf16Wide, [1 x 4, 2 x 4]);
tile_kernels!(f16, f16_peak, F16, [1 x 4, 2 x 4]);
tile_kernels!(f32, f32_peak, F32, [1 x 4, 2 x 4]);
