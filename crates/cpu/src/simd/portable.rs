//! Plain arrays, for machines without one of the other sets, and for Arm, whose compiler makes NEON of them.

use super::{LANES, Simd};
use half::{bf16, f16};
use std::array::from_fn;

/// `FUSED` says whether the machine has a multiply-add that rounds once; elsewhere it would be a slow library call.
#[derive(Clone, Copy)]
pub(crate) struct Portable<const FUSED: bool>;

type V = [f32; LANES];

impl<const FUSED: bool> Simd for Portable<FUSED> {
    type V = V;
    const WIDE: bool = false;

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

    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn mul_add(self, a: V, b: V, c: V) -> V {
        from_fn(|i| if FUSED { a[i].mul_add(b[i], c[i]) } else { a[i] * b[i] + c[i] })
    }

    #[inline(always)]
    fn zero_below(self, v: V, x: V, limit: V) -> V {
        from_fn(|i| if x[i] >= limit[i] { v[i] } else { 0.0 })
    }

    #[inline(always)]
    fn add_exponent(self, v: V, n: V) -> V {
        from_fn(|i| f32::from_bits(v[i].to_bits().wrapping_add(n[i].to_bits() << 23)))
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> V {
        from_fn(|i| from[i].to_f32())
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> V {
        from_fn(|i| f32::from_bits(u32::from(from[i].to_bits()) << 16))
    }

    #[inline(always)]
    fn store_f16(self, v: V, to: &mut [f16; LANES]) {
        for i in 0..LANES {
            to[i] = f16::from_f32(v[i]);
        }
    }
}
