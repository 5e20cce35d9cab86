//! Instructions whose intrinsics are unstable, by their names for the assembler. It does not know what the caller is compiled for, so that it is told.

use std::arch::aarch64::*;
use std::arch::asm;

/// The f32 of four f16: stable Rust has no vectors of these.
///
/// # Safety
/// The machine must have Advanced SIMD.
#[inline(always)]
pub(super) unsafe fn widen_f16(from: uint16x4_t) -> float32x4_t {
    let to;
    // SAFETY: the caller vouches for the instruction, which changes `to` alone.
    unsafe {
        asm!(
            "fcvtl {to:v}.4s, {from:v}.4h",
            to = lateout(vreg) to,
            from = in(vreg) from,
            options(pure, nomem, nostack)
        );
    }
    to
}

/// The nearest f16, or of two the even one.
///
/// # Safety
/// The machine must have Advanced SIMD.
#[inline(always)]
pub(super) unsafe fn narrow_f16(from: float32x4_t) -> uint16x4_t {
    let to;
    // SAFETY: the caller vouches for the instruction, which changes `to` alone.
    unsafe {
        asm!(
            "fcvtn {to:v}.4h, {from:v}.4s",
            to = lateout(vreg) to,
            from = in(vreg) from,
            options(pure, nomem, nostack)
        );
    }
    to
}

/// `bfdot`: in each lane the products of a pair of bf16.
///
/// # Safety
/// The machine must have the instruction.
#[inline(always)]
pub(super) unsafe fn bfdot(mut sum: float32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: the caller vouches for the instruction, which changes `sum` alone.
    unsafe {
        asm!(
            ".arch_extension bf16",
            "bfdot {sum:v}.4s, {a:v}.8h, {b:v}.8h",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// `bfmmla`: two rows by two outputs, each sum that of two `bfdot`s after each other. Not `pure`, as compilers then leave loads of weights
/// where they are written, between two of them; before them all, they took more registers than there are.
///
/// # Safety
/// The machine must have the instruction.
#[inline(always)]
pub(super) unsafe fn bfmmla(mut sums: float32x4_t, rows: uint32x4_t, outputs: uint32x4_t) -> float32x4_t {
    // SAFETY: the caller vouches for the instruction, which changes `sums` alone.
    unsafe {
        asm!(
            ".arch_extension bf16",
            "bfmmla {sums:v}.4s, {rows:v}.8h, {outputs:v}.8h",
            sums = inout(vreg) sums,
            rows = in(vreg) rows,
            outputs = in(vreg) outputs,
            options(nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// `sdot`: in each lane the products of four signed bytes.
///
/// # Safety
/// The machine must have the instruction.
#[inline(always)]
pub(super) unsafe fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller vouches for the instruction, which changes `sum` alone.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// `smmla`: two rows by two outputs, of each of which there are eight signed bytes. Not `pure`, as [`bfmmla`].
///
/// # Safety
/// The machine must have the instruction.
#[inline(always)]
pub(super) unsafe fn smmla(mut sums: int32x4_t, rows: uint32x4_t, outputs: uint32x4_t) -> int32x4_t {
    // SAFETY: the caller vouches for the instruction, which changes `sums` alone.
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "smmla {sums:v}.4s, {rows:v}.16b, {outputs:v}.16b",
            sums = inout(vreg) sums,
            rows = in(vreg) rows,
            outputs = in(vreg) outputs,
            options(nomem, nostack, preserves_flags)
        );
    }
    sums
}
