//! The signal of reading a mapped weights file where the file ends by now: an error that names the file, and exit code 1, instead of
//! a process that is just gone. It knows addresses and messages, not what is mapped.
//!
//! Nobody can go on from there: the read is an instruction of some kernel on some thread, and has no value. Faults at any other
//! address are left to the handlers before this one, Rust's own for overflowing stacks among them.

use crate::load::mapped_file::Stamp;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A mapped file as the signal handler knows it. Never freed, because a handler may be reading it; there is one per opened file.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Older mappings.
    next: *const Mapping,
    start: usize,
    len: usize,
    file: RawFd,
    opened: Stamp,
    /// What to say if the file has changed, and if it has not: the handler can format nothing.
    changed: String,
    unreadable: String,
    /// Whether it is still mapped.
    live: AtomicBool,
}

// SAFETY: all but `live` never changes once others can see it, and `next` is null or such a mapping.
unsafe impl Sync for Mapping {}

/// The newest mapping.
static MAPPINGS: AtomicPtr<Mapping> = AtomicPtr::new(ptr::null_mut());

/// Signals of reads that cannot be: Linux sends the first, macOS either. And who was told about them before.
const SIGNALS: [c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];
static PREVIOUS: [OnceLock<libc::sigaction>; 2] = [OnceLock::new(), OnceLock::new()];

impl Mapping {
    /// Explains faults in `bytes`, which are those of `file`, until [`Mapping::unregister`].
    pub(crate) fn register(path: &Path, bytes: &[u8], file: RawFd, opened: Stamp) -> &'static Self {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        install();
        let path = path.display();
        let mapping = Box::leak(Box::new(Self {
            next: MAPPINGS.load(Ordering::Acquire),
            start: bytes.as_ptr().addr(),
            len: bytes.len(),
            file,
            opened,
            changed: format!(
                "error: the weights file {path} changed while it was in use: what was there to be read is gone; {}\n",
                crate::load::error::CHANGED_REMEDY
            ),
            unreadable: format!(
                "error: the weights file {path} could not be read while it was in use: the disk or the network that holds it \
                 failed; restart when the file can be read\n"
            ),
            live: AtomicBool::new(true),
        }));
        MAPPINGS.store(mapping, Ordering::Release);
        mapping
    }

    /// To be called before the memory is unmapped.
    pub(crate) fn unregister(&self) {
        self.live.store(false, Ordering::Release);
    }

    /// The mapping that an address lies in.
    fn find(address: usize) -> Option<&'static Self> {
        let mut at: *const Self = MAPPINGS.load(Ordering::Acquire);
        // SAFETY: null, or a mapping that is never freed.
        while let Some(mapping) = unsafe { at.as_ref() } {
            if mapping.live.load(Ordering::Acquire) && address.wrapping_sub(mapping.start) < mapping.len {
                return Some(mapping);
            }
            at = mapping.next;
        }
        None
    }

    /// What a fault in it means; `None` if that is none of the file's.
    fn explain(&self, signal: c_int) -> Option<&str> {
        let mut now = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `fstat` may be called in signal handlers, and fills `now` if it returns 0.
        let now = unsafe { (libc::fstat(self.file, now.as_mut_ptr()) == 0).then(|| now.assume_init()) };
        let now = now.map(|now| Stamp { len: now.st_size, seconds: now.st_mtime, nanoseconds: now.st_mtime_nsec });
        match signal {
            _ if now.is_some_and(|now| now != self.opened) => Some(&self.changed),
            libc::SIGBUS => Some(&self.unreadable),
            _ => None,
        }
    }
}

/// Makes [`on_fault`] the handler of this process, once.
fn install() {
    for (signal, previous) in SIGNALS.into_iter().zip(&PREVIOUS) {
        if previous.get().is_some() {
            continue;
        }
        let mut old = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: only asks, and fills `old` if it returns 0.
        let old = unsafe { (libc::sigaction(signal, ptr::null(), old.as_mut_ptr()) == 0).then(|| old.assume_init()) };
        let Some(mut action) = old else { continue };
        // Before the handler can run.
        let _ = previous.set(action);
        action.sa_sigaction = on_fault as *const () as libc::sighandler_t;
        // On the stack that Rust gives its threads for this, where the fault may be that there is no other. It is the least that the system
        // takes: where a thread multiplies matrices (AMX), their registers leave a handler next to nothing of it.
        let may_be_overflow = signal == libc::SIGSEGV || !cfg!(target_os = "linux");
        action.sa_flags = libc::SA_SIGINFO | if may_be_overflow { libc::SA_ONSTACK } else { 0 };
        // SAFETY: the handler has the signature that SA_SIGINFO asks for, and does only what a signal handler may.
        // Fails only for signals that do not exist; then these faults remain what they are without a handler.
        let _ = unsafe { libc::sigaction(signal, &action, ptr::null_mut()) };
    }
}

/// Runs in the thread that read, in the middle of anything: it may call only what POSIX lists as async-signal-safe, and not allocate.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes a valid description. Signals that a process sent, with codes up to 0, have no address.
    let address = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr().addr()) };
    if let Some(message) = address.and_then(Mapping::find).and_then(|mapping| mapping.explain(signal)) {
        end(message);
    }
    pass_on(signal, info, context);
}

/// Ends the process with a message.
fn end(message: &str) -> ! {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if ENDING.swap(true, Ordering::AcqRel) {
        // Threads that compute together fault together: one message is enough.
        loop {
            // SAFETY: async-signal-safe, and has no arguments.
            unsafe { libc::pause() };
        }
    }
    let mut rest = message.as_bytes();
    while !rest.is_empty() {
        // SAFETY: async-signal-safe, and the bytes are there.
        match usize::try_from(unsafe { libc::write(libc::STDERR_FILENO, rest.as_ptr().cast(), rest.len()) }) {
            Ok(written) if written > 0 => rest = &rest[written.min(rest.len())..],
            _ => break,
        }
    }
    // SAFETY: async-signal-safe. Destructors must not run: other threads are in the middle of something.
    unsafe { libc::_exit(1) }
}

/// Does what would have been done without this file.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let index = SIGNALS.iter().position(|&s| s == signal);
    let previous =
        index.and_then(|i| PREVIOUS[i].get()).filter(|p| ![libc::SIG_DFL, libc::SIG_IGN].contains(&p.sa_sigaction));
    match previous {
        Some(previous) if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with SA_SIGINFO, what is installed is a function of this type.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(previous.sa_sigaction) };
            handler(signal, info, context);
        }
        Some(previous) => {
            // SAFETY: without it, of this one.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(previous.sa_sigaction) };
            handler(signal);
        }
        // The instruction is tried again when the handler returns, and then ends the process.
        None => {
            // SAFETY: async-signal-safe, and the default is a valid action.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}
