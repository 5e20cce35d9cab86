//! Changes stacks: the few instructions that only assembly can say. It knows which registers a call preserves, and nothing of why
//! one changes stacks.

use std::arch::naked_asm;

/// What a new stack begins with: `main` is called there with these, and must not return.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    pub main: unsafe extern "C" fn(*const u8, usize) -> !,
    pub context: *const u8,
    pub index: usize,
}

/// Saves the registers that calls preserve, and where the stack is in `*save`; goes on where the stack `to` was saved.
///
/// # Safety
/// `to` was saved by this function or made by [`prepare`], on a stack that is still there, and is used only once.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn switch(save: *mut *mut u8, to: *mut u8) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn begin() {
    naked_asm!("mov rdi, r12", "mov rsi, r13", "call r14", "ud2")
}

/// What [`switch`] takes off a stack, lowest address first.
#[cfg(target_arch = "x86_64")]
fn frame(start: Start) -> [usize; 8] {
    let [r15, rbx, rbp, nowhere] = [0; 4];
    [r15, start.main as usize, start.index, start.context as usize, rbx, rbp, begin as *const () as usize, nowhere]
}

/// As above.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn switch(save: *mut *mut u8, to: *mut u8) {
    naked_asm!(
        "sub sp, sp, #160",
        "stp x19, x20, [sp, #0]",
        "stp x21, x22, [sp, #16]",
        "stp x23, x24, [sp, #32]",
        "stp x25, x26, [sp, #48]",
        "stp x27, x28, [sp, #64]",
        "stp x29, x30, [sp, #80]",
        "stp d8, d9, [sp, #96]",
        "stp d10, d11, [sp, #112]",
        "stp d12, d13, [sp, #128]",
        "stp d14, d15, [sp, #144]",
        "mov x9, sp",
        "str x9, [x0]",
        "mov sp, x1",
        "ldp x19, x20, [sp, #0]",
        "ldp x21, x22, [sp, #16]",
        "ldp x23, x24, [sp, #32]",
        "ldp x25, x26, [sp, #48]",
        "ldp x27, x28, [sp, #64]",
        "ldp x29, x30, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "add sp, sp, #160",
        "ret",
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn begin() {
    naked_asm!("mov x0, x19", "mov x1, x20", "blr x21", "brk #1")
}

#[cfg(target_arch = "aarch64")]
fn frame(start: Start) -> [usize; 20] {
    let mut registers = [0; 20];
    registers[0] = start.context as usize;
    registers[1] = start.index;
    registers[2] = start.main as usize;
    registers[11] = begin as *const () as usize; // x30, where `switch` returns to
    registers
}

/// Prepares a stack whose highest address is `top`, a multiple of 16; what to [`switch`] to.
///
/// # Safety
/// The 256 bytes below `top` may be written to.
pub unsafe fn prepare(top: *mut u8, start: Start) -> *mut u8 {
    let frame = frame(start);
    // So that the stack is aligned to 16 bytes when `begin` runs: on x86-64, which has taken off seven of the eight words then.
    let unused = if cfg!(target_arch = "x86_64") { size_of::<usize>() } else { 0 };
    // SAFETY: the caller's promise; the frame and the padding have at most 176 bytes.
    unsafe {
        let at = top.sub(16).sub(size_of_val(&frame)).add(unused);
        at.cast::<usize>().copy_from_nonoverlapping(frame.as_ptr(), frame.len());
        at
    }
}
