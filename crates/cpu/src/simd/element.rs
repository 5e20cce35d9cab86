//! The float types in memory, as vectors of f32.

use std::sync::atomic::{Ordering, compiler_fence};

use super::{LANES, Simd};
use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

/// A float type that tensors hold.
pub(crate) trait Element: Pod + Send + Sync {
    const IS_BF16: bool = false;
    /// Elements that lie together for each lane in the KV cache: pairs of bf16, which are widened with the least work.
    const TOGETHER: usize = if Self::IS_BF16 { 2 } else { 1 };

    fn load<S: Simd>(s: S, from: &[Self; LANES]) -> S::V;
    /// Rounds to nearest even.
    fn store<S: Simd>(s: S, v: S::V, to: &mut [Self; LANES]);
}

macro_rules! element {
    ($type:ty, $load:ident, $store:ident $(, $is:ident)?) => {
        impl Element for $type {
            $(const $is: bool = true;)?

            #[inline(always)]
            fn load<S: Simd>(s: S, from: &[Self; LANES]) -> S::V {
                s.$load(from)
            }

            #[inline(always)]
            fn store<S: Simd>(s: S, v: S::V, to: &mut [Self; LANES]) {
                s.$store(v, to);
            }
        }
    };
}

element!(f32, load, store);
element!(f16, load_f16, store_f16);
element!(bf16, load_bf16, store_bf16, IS_BF16);

/// Has the compiler load again what it has loaded before: of two vectors that are made from one, each is then made where it is used, and
/// accumulators have the registers. A hint, on which no result depends.
#[inline(always)]
pub(crate) fn load_again() {
    compiler_fence(Ordering::SeqCst);
}

/// A vector of the KV cache: the first or the second (`which` is 1) elements of 16 pairs of bf16, or 16 elements or those that lie `distance`
/// behind.
///
/// # Safety
/// The elements must be there.
#[inline(always)]
pub(crate) unsafe fn load_one<S: Simd, T: Element>(s: S, from: *const T, distance: usize, which: usize) -> S::V {
    // SAFETY: the caller vouches for the elements.
    unsafe {
        if T::IS_BF16 {
            let pairs = &*from.cast::<[[bf16; 2]; LANES]>();
            if which == 0 { s.load_bf16_even(pairs) } else { s.load_bf16_odd(pairs) }
        } else {
            T::load(s, &*from.add(which * distance).cast())
        }
    }
}

/// Up to 16 elements, then zeros.
#[inline(always)]
pub(crate) fn load_padded<S: Simd, T: Element>(s: S, from: &[T]) -> S::V {
    if let Ok(from) = from.try_into() {
        return T::load(s, from);
    }
    let mut padded = [T::zeroed(); LANES];
    padded[..from.len()].copy_from_slice(from);
    T::load(s, &padded)
}

/// The first `to.len()` lanes, up to 16.
#[inline(always)]
pub(crate) fn store_part<S: Simd, T: Element>(s: S, v: S::V, to: &mut [T]) {
    if let Ok(to) = (&mut *to).try_into() {
        return T::store(s, v, to);
    }
    let mut padded = [<T as Zeroable>::zeroed(); LANES];
    T::store(s, v, &mut padded);
    to.copy_from_slice(&padded[..to.len()]);
}

/// Evaluates an expression with `$T` standing for the Rust type of a float dtype.
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            vllm_apple_ops::DType::F16 => {
                type $T = half::f16;
                $body
            }
            vllm_apple_ops::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            _ => {
                type $T = f32;
                $body
            }
        }
    };
}
pub(crate) use with_float;
