//! Numbers too small to be normal: Apple's GPUs take them for zeros and make zeros of them, and so does a thread here while it runs kernels. It
//! knows the processor's switch for that.

use std::arch::asm;

/// A thread that flushes them, until this is dropped.
pub struct Flushed {
    /// The register's content before.
    before: usize,
}

impl Flushed {
    /// This thread from here on.
    pub fn begin() -> Self {
        let before = read();
        write(before | SWITCH);
        Self { before }
    }
}

impl Drop for Flushed {
    fn drop(&mut self) {
        write(self.before);
    }
}

/// Of results (FTZ) and of operands (DAZ).
#[cfg(target_arch = "x86_64")]
const SWITCH: usize = 1 << 15 | 1 << 6;

/// Of both (FZ).
#[cfg(target_arch = "aarch64")]
const SWITCH: usize = 1 << 24;

#[cfg(target_arch = "x86_64")]
fn read() -> usize {
    let mut register = 0u32;
    // SAFETY: it writes the four bytes it is given.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut register, options(nostack, preserves_flags)) };
    register as usize
}

#[cfg(target_arch = "x86_64")]
fn write(register: usize) {
    let register = register as u32;
    // SAFETY: it reads the four bytes it is given, which the register had but for bits that all of these processors have.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const register, options(nostack, preserves_flags)) };
}

#[cfg(target_arch = "aarch64")]
fn read() -> usize {
    let register: usize;
    // SAFETY: it reads a register that every program may read.
    unsafe { asm!("mrs {}, fpcr", out(reg) register, options(nomem, nostack, preserves_flags)) };
    register
}

#[cfg(target_arch = "aarch64")]
fn write(register: usize) {
    // SAFETY: it changes how this thread computes with floats, which is what it is for.
    unsafe { asm!("msr fpcr, {}", in(reg) register, options(nostack, preserves_flags)) };
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn a_subnormal_number_is_zero_as_long_as_kernels_run() {
        let half = |x: f32| black_box(x) * black_box(0.5);
        assert!(half(f32::MIN_POSITIVE) > 0.0);
        let flushed = Flushed::begin();
        let (made, taken) = (half(f32::MIN_POSITIVE), black_box(1.0) / black_box(1e-39f32));
        drop(flushed);
        assert_eq!((made, taken), (0.0, f32::INFINITY));
        assert!(half(f32::MIN_POSITIVE) > 0.0);
    }
}
