//! Runs threadgroups on one host thread: resumes lanes until all of them wait, then lets those go on that have met. It knows the
//! rules of barriers and simdgroup operations, and reports their misuse; what memory holds is none of its business.

mod calls;
mod misuse;

use std::cell::{Cell, RefCell, UnsafeCell};
use std::io;

use misuse::location;

use super::arena::Arena;
use super::fiber::Fibers;
use super::grid::Grid;
use super::order::{Order, Picker};
use super::simdgroup::{Simdgroup, lanes, same_site};
use super::subnormals::Flushed;
use super::{MAX_SIMDGROUPS, MAX_THREADS, SIMDGROUP_SIZE, host};
use crate::abi::{MslArguments, MslThread};
use crate::checker::Checker;
use crate::finding::{FindingKind, Findings};
use crate::pipeline::Constants;

/// What all threadgroups of a dispatch share.
pub struct Launch<'a> {
    pub kernel: &'a str,
    pub invoke: unsafe extern "C" fn(*const MslArguments),
    pub grid: Grid,
    /// Buffers are bound; threadgroup arguments are added by the executor.
    pub arguments: MslArguments,
    /// `[[threadgroup(n)]]`: slot, name, bytes.
    pub threadgroup_arguments: &'a [(usize, String, usize)],
    pub order: Order,
    pub constants: &'a Constants,
}

// SAFETY: the argument's pointers are handed to kernels, which on a GPU run at the same time too: they answer for what they share.
unsafe impl Sync for Launch<'_> {}

/// What each thread of a threadgroup runs.
#[derive(Clone, Copy)]
struct Job {
    invoke: unsafe extern "C" fn(*const MslArguments),
    arguments: *const MslArguments,
}

/// What fibers run: one thread of one threadgroup.
///
/// # Safety
/// The context is an executor, which runs a dispatch.
unsafe fn run_thread(executor: *const u8, index: usize) {
    let executor: *const Executor = executor.cast();
    // SAFETY: the job is set, and its arguments live, while the dispatch runs. No reference lives on when the fiber gives way at the
    // end, because what comes next for it may be another dispatch.
    unsafe {
        let job = (*executor).job.get().expect("a dispatch runs");
        (job.invoke)(job.arguments);
        (*executor).simdgroups[index / SIMDGROUP_SIZE].retire(index % SIMDGROUP_SIZE);
        (*executor).give_way();
    }
}

/// One host thread's fibers and threadgroup memory.
pub struct Executor {
    fibers: Fibers,
    simdgroups: Box<[Simdgroup]>,
    threads: UnsafeCell<Vec<MslThread>>,
    pub(super) arena: Arena,
    /// Index of the thread that runs.
    current: Cell<usize>,
    order: Cell<Order>,
    /// What threads run; set while a dispatch does.
    job: Cell<Option<Job>>,
    /// Threads of the threadgroup that runs.
    size: Cell<u32>,
    /// The dispatch cannot go on.
    abandoned: Cell<bool>,
    findings: RefCell<Findings>,
    kernel: RefCell<String>,
    constants: Cell<*const Constants>,
    counts: Cell<Counts>,
    /// Who is told of accesses and barriers; null for nobody.
    checker: Cell<*mut Checker>,
    /// Code of the library runs outside of any thread.
    resolving: Cell<bool>,
    flags: Cell<u32>,
}

/// How often threads met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Threadgroups that ran.
    pub threadgroups: u64,
    /// Threads that ran.
    pub threads: u64,
    /// Threadgroup barriers, each counted once for its threadgroup.
    pub barriers: u64,
    /// Simdgroup operations and barriers, each counted once for its simdgroup.
    pub simdgroup_operations: u64,
    /// Those of them that multiply two 8x8 matrices.
    pub matrix_products: u64,
    /// The most threadgroup memory that a threadgroup used, in bytes.
    pub threadgroup_memory: usize,
    /// Dispatches that were given up, because an access would have harmed the host.
    pub abandoned: u64,
}

impl Counts {
    /// Counts of two parts of a dispatch.
    pub fn plus(self, other: Self) -> Self {
        Self {
            threadgroups: self.threadgroups + other.threadgroups,
            threads: self.threads + other.threads,
            barriers: self.barriers + other.barriers,
            simdgroup_operations: self.simdgroup_operations + other.simdgroup_operations,
            matrix_products: self.matrix_products + other.matrix_products,
            threadgroup_memory: self.threadgroup_memory.max(other.threadgroup_memory),
            abandoned: self.abandoned + other.abandoned,
        }
    }
}

// SAFETY: between runs the fibers are idle: nothing on their stacks belongs to a host thread. All pointers are its own or null.
unsafe impl Send for Executor {}

impl Executor {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            fibers: Fibers::new(MAX_THREADS, run_thread)?,
            simdgroups: (0..MAX_SIMDGROUPS).map(|_| Simdgroup::new()).collect(),
            threads: UnsafeCell::default(),
            arena: Arena::new()?,
            current: Cell::new(0),
            order: Cell::default(),
            job: Cell::new(None),
            size: Cell::new(0),
            abandoned: Cell::new(false),
            findings: RefCell::default(),
            kernel: RefCell::default(),
            constants: Cell::new(std::ptr::null()),
            counts: Cell::default(),
            checker: Cell::new(std::ptr::null_mut()),
            resolving: Cell::new(false),
            flags: Cell::new(0),
        })
    }

    /// Runs the threadgroups that `next` names until it names none; returns what was found and counted.
    ///
    /// # Errors
    /// The operating system's, when there is no memory for more stacks.
    ///
    /// # Safety
    /// The launch's kernel is one whose library was bound to [`host::HOST`], and its arguments are valid for it.
    pub unsafe fn run(
        &mut self,
        launch: &Launch<'_>,
        checker: Option<&mut Checker>,
        mut next: impl FnMut() -> Option<u64>,
    ) -> io::Result<(Findings, Counts)> {
        let most = launch.grid.threads_per_threadgroup.iter().product::<u32>() as usize;
        self.fibers.grow(most)?;
        self.threads.get_mut().resize(most, MslThread::default());
        launch.kernel.clone_into(self.kernel.get_mut());
        self.constants.set(launch.constants);
        self.abandoned.set(false);
        self.checker.set(checker.map_or(std::ptr::null_mut(), std::ptr::from_mut));
        let mut arguments = launch.arguments;
        self.arena.clear();
        for (slot, name, size) in launch.threadgroup_arguments {
            match self.arena.argument(name, *size) {
                Some(address) => arguments.threadgroup[*slot] = address.cast(),
                None => self.too_much_threadgroup_memory(None, *size),
            }
        }
        self.check_threadgroup_memory(None);
        self.job.set(Some(Job { invoke: launch.invoke, arguments: &arguments }));
        self.order.set(launch.order);
        self.fibers.set_context(std::ptr::from_ref(&*self).cast());
        let mut picker = Picker::new(launch.order);
        let _flushed = Flushed::begin();
        let current = host::enter(self);
        while !self.abandoned.get()
            && let Some(number) = next()
        {
            self.begin_threadgroup(&launch.grid, number);
            self.run_threadgroup(&mut picker);
        }
        drop(current);
        self.job.set(None);
        self.fibers.set_context(std::ptr::null());
        if self.abandoned.get() {
            self.fibers.reset();
            self.count(|counts| counts.abandoned += 1);
        }
        self.constants.set(std::ptr::null());
        self.checker.set(std::ptr::null_mut());
        let mut counts = self.counts.take();
        counts.threadgroup_memory = self.arena.used();
        Ok((self.findings.take(), counts))
    }

    fn begin_threadgroup(&self, grid: &Grid, number: u64) {
        let position = grid.position(number);
        let size = grid.size(position);
        let count = size.iter().product::<u32>() as usize;
        self.size.set(count as u32);
        // SAFETY: no fiber runs, so nobody reads the threads.
        let threads = unsafe { &mut *self.threads.get() };
        for (index, thread) in threads[..count].iter_mut().enumerate() {
            *thread = grid.thread(position, size, index as u32);
        }
        for (index, simdgroup) in self.simdgroups.iter().enumerate() {
            simdgroup.launch(count.saturating_sub(index * SIMDGROUP_SIZE).min(SIMDGROUP_SIZE));
        }
        self.arena.begin_threadgroup();
        self.tell(|checker| checker.begin_threadgroup(number, &self.arena));
        self.count(|counts| {
            counts.threadgroups += 1;
            counts.threads += count as u64;
        });
    }

    /// Tells the checker, if there is one.
    #[inline]
    fn tell<R>(&self, what: impl FnOnce(&mut Checker) -> R) -> Option<R> {
        // SAFETY: borrowed for as long as the dispatch runs, and nobody who is told tells others.
        unsafe { self.checker.get().as_mut() }.map(what)
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    fn run_threadgroup(&self, picker: &mut Picker) {
        let mut active = self.simdgroups_with(|simdgroup| simdgroup.live.get() != 0);
        loop {
            while active != 0 {
                let index = picker.pick(active);
                if !self.run_simdgroup(index, picker) {
                    active &= !(1 << index);
                }
                if self.abandoned.get() {
                    return;
                }
            }
            active = self.simdgroups_with(|simdgroup| simdgroup.at_barrier.get() != 0);
            if active == 0 {
                return;
            }
            self.pass_barrier(active);
        }
    }

    fn simdgroups_with(&self, condition: impl Fn(&Simdgroup) -> bool) -> u32 {
        let with = self.simdgroups.iter().enumerate().filter(|(_, simdgroup)| condition(simdgroup));
        with.fold(0, |mask, (index, _)| mask | 1 << index)
    }

    /// Runs lanes of a simdgroup; false once all of them have returned or wait at the threadgroup barrier.
    fn run_simdgroup(&self, index: usize, picker: &mut Picker) -> bool {
        let simdgroup = &self.simdgroups[index];
        loop {
            while simdgroup.runnable.get() != 0 {
                let lane = picker.pick(simdgroup.runnable.get());
                let thread = index * SIMDGROUP_SIZE + lane;
                self.current.set(thread);
                // SAFETY: this is not a fiber, and a dispatch runs.
                unsafe { self.fibers.enter(thread) };
                if self.abandoned.get() {
                    return false;
                }
                if self.order.get().interleaves() {
                    return true;
                }
            }
            let Some(meeting) = simdgroup.meeting() else { return false };
            self.check_meeting(index, &meeting);
            self.count(|counts| counts.simdgroup_operations += 1);
            if let Some(flags) = meeting.barrier {
                self.tell(|checker| checker.simdgroup_barrier(index, flags));
            }
            self.resolving.set(true);
            // SAFETY: no lane has run since the meeting was found.
            unsafe { simdgroup.resolve(&meeting) };
            self.resolving.set(false);
        }
    }

    /// Lets all threads that wait at the threadgroup barrier go on.
    fn pass_barrier(&self, active: u32) {
        let mut waiting = lanes(active).flat_map(|index| {
            lanes(self.simdgroups[index].at_barrier.get()).map(move |lane| index * SIMDGROUP_SIZE + lane)
        });
        let first = waiting.next().expect("a thread waits at the barrier");
        let site = self.site(first);
        let mut count = 1;
        for thread in waiting {
            count += 1;
            let other = self.site(thread);
            if !same_site(&site, &other) {
                let kind = FindingKind::DivergentBarrier { other: self.thread_id(thread), at: location(&other) };
                self.report(kind, Some(first), Some(&site));
            }
        }
        let total = self.size.get();
        if count < total {
            let kind = FindingKind::BarrierAfterReturn { waiting: count, returned: total - count };
            self.report(kind, Some(first), Some(&site));
        }
        self.tell(|checker| checker.threadgroup_barrier(self.flags.get()));
        self.count(|counts| counts.barriers += 1);
        lanes(active).for_each(|index| self.simdgroups[index].release());
    }
}
