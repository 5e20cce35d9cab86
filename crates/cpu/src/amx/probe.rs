//! Whether this process can use the matrix extensions. A processor may show them while the kernel has not given them to this process, or
//! while the virtual machine around it lacks them: the instructions are tried.

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Whether the instructions of this module's parent work here. Asks Linux for them, once per process.
pub(crate) fn works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| processor_has_them() && permitted() && tried::works())
}

/// What the processor and the state that the system saves say.
fn processor_has_them() -> bool {
    // OSXSAVE: `xgetbv` may be used.
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & 1 << 27 == 0 {
        return false;
    }
    // AMX-BF16, AMX-TILE and AMX-INT8.
    let features = __cpuid_count(7, 0).edx;
    if [22, 24, 25].into_iter().any(|bit| features & 1 << bit == 0) {
        return false;
    }
    // Configuration and data of tiles.
    const TILES: u64 = 3 << 17;
    // SAFETY: OSXSAVE says that the instruction is there.
    unsafe { xcr0() & TILES == TILES }
}

/// # Safety
/// The processor must have `xgetbv`.
#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: the caller vouches for it.
    unsafe { _xgetbv(0) }
}

/// Asks for the large state that tiles are: without, Linux ends a process that uses them.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and changes what this process may use, for threads to come as well.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

#[cfg(target_os = "linux")]
mod tried {
    //! The instructions, under a handler for the signal of those that are none: it goes on behind them.

    use std::arch::asm;
    use std::ffi::{c_int, c_void};
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use crate::amx::WHOLE;

    /// Where the tried instructions begin and end; 0 while nothing is tried.
    static BEGIN: AtomicU64 = AtomicU64::new(0);
    static END: AtomicU64 = AtomicU64::new(0);
    static FAILED: AtomicBool = AtomicBool::new(false);

    pub(super) fn works() -> bool {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        let mut before = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: a zeroed action is an empty mask and no flags; the handler has the signature that SA_SIGINFO asks for.
        let installed = unsafe {
            let set = action.assume_init_mut();
            set.sa_sigaction = on_illegal as *const () as libc::sighandler_t;
            set.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGILL, set, before.as_mut_ptr()) == 0
        };
        if !installed {
            return false;
        }
        // SAFETY: the instructions use registers alone; one that does not exist is left by the handler at `3`.
        unsafe {
            asm!(
                "lea {at}, [rip + 2f]",
                "mov [{begin}], {at}",
                "lea {at}, [rip + 3f]",
                "mov [{end}], {at}",
                "2:",
                "ldtilecfg [{configuration}]",
                "tilezero tmm0",
                "tilezero tmm4",
                "tilezero tmm6",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbsud tmm0, tmm4, tmm6",
                "tilerelease",
                "3:",
                at = out(reg) _,
                begin = in(reg) BEGIN.as_ptr(),
                end = in(reg) END.as_ptr(),
                configuration = in(reg) &raw const WHOLE,
                out("tmm0") _, out("tmm4") _, out("tmm6") _,
                options(nostack)
            );
        }
        BEGIN.store(0, Ordering::Relaxed);
        // SAFETY: `before` is what the first call told.
        unsafe { libc::sigaction(libc::SIGILL, before.as_ptr(), ptr::null_mut()) };
        !FAILED.load(Ordering::Relaxed)
    }

    extern "C" fn on_illegal(signal: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: a handler with SA_SIGINFO gets the interrupted thread's registers, which it may change.
        let at = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
        let (begin, end) = (BEGIN.load(Ordering::Relaxed).cast_signed(), END.load(Ordering::Relaxed).cast_signed());
        if begin != 0 && (begin..end).contains(at) {
            FAILED.store(true, Ordering::Relaxed);
            *at = end;
        } else {
            // Another thread's: it meets the same instruction again, and the usual end.
            // SAFETY: the default action needs no handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod tried {
    pub(super) fn works() -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    /// Where the instructions do not exist, trying them ends in an answer, not in the process's end.
    #[test]
    fn trying_the_instructions_ends() {
        let first = super::tried::works();
        assert!(!first || super::processor_has_them());
    }
}
