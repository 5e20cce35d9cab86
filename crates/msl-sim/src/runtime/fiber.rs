//! Fibers: a stack of its own for each GPU thread, entered and left in a few nanoseconds. It knows how to go from one to another, and
//! not what they wait for.
//!
//! A fiber goes straight to the next one instead of back to whoever started it: then processors predict where returns lead, because
//! all lanes of a simdgroup are at the same place. That makes it several times faster.

use std::cell::Cell;
use std::io;

use super::MAX_FRAME;
use super::memory::Mapping;
use super::switch::{Start, prepare, switch};

/// Address space of one stack, its guard page included. Only touched pages cost memory.
const STACK_SIZE: usize = 256 * 1024;
/// How far down from its end a stack may begin.
const MOST_STAGGER: usize = 64 * 1024;
/// Two of the largest functions that call each other, and the host whom they call, fit.
const _: () = assert!(2 * MAX_FRAME + MOST_STAGGER + 48 * 1024 <= STACK_SIZE);

/// What fiber `index` does, over and over: `body(context, index)`.
type Body = unsafe fn(*const u8, usize);

/// What all fibers call.
struct Task {
    body: Body,
    context: Cell<*const u8>,
}

/// The fibers of one host thread: as many as the largest threadgroup so far had threads.
pub struct Fibers {
    /// Where each fiber that does not run is on its stack.
    paused: Box<[Cell<*mut u8>]>,
    /// Where the host is on its own stack, while a fiber runs.
    host: Cell<*mut u8>,
    count: usize,
    task: Box<Task>,
    stacks: Mapping,
}

/// Where fibers begin.
unsafe extern "C" fn fiber_main(task: *const u8, index: usize) -> ! {
    let task: *const Task = task.cast();
    loop {
        // SAFETY: the task lives as long as the fibers, and the context as long as they run.
        unsafe { ((*task).body)((*task).context.get(), index) };
    }
}

impl Fibers {
    /// Room for `capacity` fibers that call `body`.
    pub fn new(capacity: usize, body: Body) -> io::Result<Self> {
        Ok(Self {
            paused: vec![Cell::new(std::ptr::null_mut()); capacity].into(),
            host: Cell::new(std::ptr::null_mut()),
            count: 0,
            task: Box::new(Task { body, context: Cell::new(std::ptr::null()) }),
            stacks: Mapping::new(capacity * STACK_SIZE)?,
        })
    }

    /// What `body` is called with from here on.
    pub fn set_context(&self, context: *const u8) {
        self.task.context.set(context);
    }

    /// Makes sure that there are `count` fibers, at most the capacity.
    pub fn grow(&mut self, count: usize) -> io::Result<()> {
        assert!(count <= self.paused.len());
        while self.count < count {
            self.stacks.guard_page(self.count * STACK_SIZE)?;
            self.start(self.count);
            self.count += 1;
        }
        Ok(())
    }

    fn start(&self, index: usize) {
        // Stacks that all begin at the same offset in a page compete for the same few cache sets: stagger them.
        let stagger = index * 1088 % MOST_STAGGER / 64 * 64;
        let context = std::ptr::from_ref(&*self.task).cast();
        // SAFETY: the stack is this fiber's alone, has room beyond the stagger, and is aligned as pages and the stagger are.
        unsafe {
            let top = self.stacks.as_ptr().add((index + 1) * STACK_SIZE - stagger);
            self.paused[index].set(prepare(top, Start { main: fiber_main, context, index }));
        }
    }

    /// Lets fiber `index` run, until a fiber calls [`Fibers::leave`].
    ///
    /// # Safety
    /// Not called by a fiber. The fiber is one that `grow` made, and what it does is sound to do now.
    pub unsafe fn enter(&self, index: usize) {
        // SAFETY: the fiber is paused, because none runs.
        unsafe { switch(self.host.as_ptr(), self.paused[index].get()) };
    }

    /// Pauses fiber `from` and goes on with the paused fiber `to`.
    ///
    /// # Safety
    /// Called by fiber `from`.
    #[inline(always)]
    pub unsafe fn change(&self, from: usize, to: usize) {
        // SAFETY: only one fiber runs: `to`, which is another, is paused.
        unsafe { switch(self.paused[from].as_ptr(), self.paused[to].get()) };
    }

    /// Pauses fiber `from` and goes on where `enter` was called.
    ///
    /// # Safety
    /// Called by fiber `from`.
    #[inline(always)]
    pub unsafe fn leave(&self, from: usize) {
        // SAFETY: a fiber runs, so the host is where `enter` left it.
        unsafe { switch(self.paused[from].as_ptr(), self.host.get()) };
    }

    /// Forgets what all fibers were doing. Their frames are kernel code, which has nothing to clean up.
    pub fn reset(&mut self) {
        (0..self.count).for_each(|index| self.start(index));
    }

    /// Whether an address lies on one of the stacks.
    pub fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.stacks.as_ptr() as usize) < self.paused.len() * STACK_SIZE
    }
}
