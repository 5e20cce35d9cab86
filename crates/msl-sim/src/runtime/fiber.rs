//! Fibers: a stack of its own for each GPU thread, entered and left in a few nanoseconds. It knows how to run a kernel's thread
//! until it waits, and not what it waits for.

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::num::NonZeroUsize;

use corosensei::stack::{Stack, StackPointer};
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::memory::Mapping;
use crate::abi::MslArguments;

/// Address space of one stack, its guard page included. Only touched pages cost memory.
const STACK_SIZE: usize = 256 * 1024;

/// What a fiber is to run.
pub struct Job {
    pub invoke: unsafe extern "C" fn(*const MslArguments),
    pub arguments: *const MslArguments,
}

/// Why a fiber gave way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// It waits, and is to be resumed.
    Waits,
    /// The kernel returned.
    Returned,
}

type FiberYielder = Yielder<*const Job, Pause>;

struct FiberStack {
    base: StackPointer,
    limit: StackPointer,
}

// SAFETY: the lowest page between limit and base is a guard page (see `Fibers::grow`), the rest belongs to this fiber alone.
unsafe impl Stack for FiberStack {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        self.limit
    }
}

type Fiber = Coroutine<*const Job, Pause, (), FiberStack>;

/// The fibers of one host thread: as many as the largest threadgroup so far had threads.
pub struct Fibers {
    fibers: Vec<UnsafeCell<Fiber>>,
    /// Where each fiber suspends itself; it says so when it first runs.
    yielders: Box<[Cell<*const FiberYielder>]>,
    stacks: Mapping,
}

impl Fibers {
    /// Room for `capacity` fibers.
    pub fn new(capacity: usize) -> io::Result<Self> {
        Ok(Self {
            fibers: Vec::new(),
            yielders: vec![Cell::new(std::ptr::null()); capacity].into(),
            stacks: Mapping::new(capacity * STACK_SIZE)?,
        })
    }

    /// Makes sure that there are `count` fibers, at most the capacity.
    pub fn grow(&mut self, count: usize) -> io::Result<()> {
        assert!(count <= self.yielders.len());
        while self.fibers.len() < count {
            let index = self.fibers.len();
            self.stacks.guard_page(index * STACK_SIZE)?;
            self.fibers.push(UnsafeCell::new(self.start(index)));
        }
        Ok(())
    }

    fn start(&self, index: usize) -> Fiber {
        let low = self.stacks.as_ptr() as usize + index * STACK_SIZE;
        // Stacks that all begin at the same offset in a page compete for the same few cache sets: stagger them.
        let stagger = index * 1088 % (64 * 1024) / 64 * 64;
        let stack = FiberStack {
            base: NonZeroUsize::new(low + STACK_SIZE - stagger).expect("not at 0"),
            limit: NonZeroUsize::new(low).expect("not at 0"),
        };
        let slot: *const Cell<*const FiberYielder> = &self.yielders[index];
        Coroutine::with_stack(stack, move |yielder: &FiberYielder, mut job: *const Job| {
            // SAFETY: the slots live as long as the fibers, and only the host thread that runs them uses them.
            unsafe { (*slot).set(yielder) };
            loop {
                // SAFETY: who resumes an idle fiber passes a job that lives until the fiber has paused with `Returned`.
                unsafe { ((*job).invoke)((*job).arguments) };
                job = yielder.suspend(Pause::Returned);
            }
        })
    }

    /// Runs fiber `index` until it pauses. An idle fiber begins with `job`.
    ///
    /// # Safety
    /// Not from inside this fiber. `job` lives until the fiber has returned or is reset.
    #[inline(always)]
    pub unsafe fn resume(&self, index: usize, job: *const Job) -> Pause {
        // SAFETY: the fiber is not running, so nobody else borrows it.
        match unsafe { (*self.fibers[index].get()).resume(job) } {
            CoroutineResult::Yield(pause) => pause,
            CoroutineResult::Return(()) => unreachable!("a fiber's loop does not end"),
        }
    }

    /// Gives way from inside fiber `index`.
    ///
    /// # Safety
    /// Called by code that runs on that fiber.
    #[inline(always)] // Returns after a switch are mispredicted: the fewer, the faster.
    pub unsafe fn wait(&self, index: usize) {
        // SAFETY: the fiber runs, so it has set its yielder, which lives on its stack as long as the fiber.
        unsafe { (*self.yielders[index].get()).suspend(Pause::Waits) };
    }

    /// Forgets what all fibers were doing.
    pub fn reset(&mut self) {
        for index in 0..self.fibers.len() {
            self.forget(index);
            self.fibers[index] = UnsafeCell::new(self.start(index));
        }
    }

    fn forget(&mut self, index: usize) {
        // SAFETY: the frames on the stack are kernel code, which has nothing to clean up, and the loop of `start`, likewise.
        unsafe { self.fibers[index].get_mut().force_reset() };
    }

    /// Whether an address lies on one of the stacks.
    pub fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.stacks.as_ptr() as usize) < self.yielders.len() * STACK_SIZE
    }
}

impl Drop for Fibers {
    fn drop(&mut self) {
        for index in 0..self.fibers.len() {
            self.forget(index);
        }
    }
}
