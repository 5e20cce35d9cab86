//! A fork-join thread pool for kernels: runs numbered items on all threads. It knows nothing of what an item computes.
//!
//! A decode step is a few hundred short parallel loops one after another, so what matters is the time from one loop to the
//! next. Workers therefore spin for a moment before they sleep, a run allocates nothing, and the caller works too: it never
//! waits for a worker that has not yet begun, only for those still inside an item.

mod spin;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use spin::Spin;

/// The body of a parallel loop: called with an item's number and the number of the thread that runs it.
type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// How long a thread spins for work before it sleeps, at most. Longer than the gap between two kernels of a step.
const SPIN_LONGEST: Duration = Duration::from_micros(100);
/// The spin of a thread whose recent waits all ended in sleep: an idle or overloaded machine is not worth heating.
const SPIN_SHORTEST: Duration = Duration::from_micros(5);

/// With more items per thread, workers help each other. With so few they would look at all others' progress at once for little: the caller helps
/// who is late.
const FEW_ITEMS: usize = 3;

/// Layout of `Newest::state`: whether the run still admits workers, how many threads share it, and its number.
const OPEN: u64 = 1;
const SHARING_MASK: u64 = 0xffff << 1;
const RUN_ONE: u64 = 1 << 17;
const RUN_MASK: u64 = !(RUN_ONE - 1);

/// Of `Progress::entered`.
const INSIDE: u64 = 1;

thread_local! {
    /// Set while this thread runs items, so that a nested run is reported rather than deadlocking.
    static INSIDE_RUN: Cell<bool> = const { Cell::new(false) };
}

/// A fixed set of threads that run parallel loops. The thread that calls [`Pool::run`] is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Serialises callers: one loop at a time.
    turn: Mutex<()>,
}

/// Keeps each contended word on cache lines of its own (two, because of adjacent-line prefetching).
#[repr(align(128))]
struct Padded<T>(T);

struct Shared {
    newest: Padded<Newest>,
    /// Of each thread, the caller's first.
    threads: Vec<Padded<Progress>>,
    /// Whether each worker sleeps.
    asleep: Vec<Padded<AtomicBool>>,
    /// The caller, while it sleeps until a worker leaves.
    caller_sleeps: AtomicBool,
    caller: Mutex<Option<Thread>>,
    /// Whether a body has panicked in this run.
    failed: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    shutdown: AtomicBool,
}

/// The newest run: in one cache line, which the caller alone writes.
struct Newest {
    /// See [`OPEN`].
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
}

/// What a thread tells the others of a run.
#[derive(Default)]
struct Progress {
    /// The last run that a worker has entered or was about to, as in `Newest::state`, and whether it is [`INSIDE`].
    entered: AtomicU64,
    /// A run's number, its last 32 bits, and how far the thread's own items have been taken in it, by whomever.
    taken: AtomicU64,
}

#[derive(Clone, Copy)]
struct Job {
    body: *const Body<'static>,
    items: usize,
    /// Threads that have some of the items: the first ones.
    sharing: usize,
}

// SAFETY: `job` is written only by the holder of `Pool::turn` while no worker is inside a run, and read only by workers that
// are inside an open run, so accesses never overlap.
unsafe impl Sync for Newest {}
// SAFETY: the body it points to is `Sync`, and the pointer is only followed during the run that published it.
unsafe impl Send for Job {}

impl Pool {
    /// A pool of `threads` threads, of which `threads - 1` are new: the caller of [`Pool::run`] is the other one.
    ///
    /// # Panics
    /// For more than 65,535 threads.
    #[must_use]
    pub fn new(threads: NonZeroUsize) -> Self {
        assert!(u16::try_from(threads.get()).is_ok(), "a pool of {threads} threads");
        let shared = Arc::new(Shared {
            newest: Padded(Newest { state: AtomicU64::new(0), job: UnsafeCell::new(None) }),
            threads: (0..threads.get()).map(|_| Padded(Progress::default())).collect(),
            asleep: (1..threads.get()).map(|_| Padded(AtomicBool::new(false))).collect(),
            caller_sleeps: AtomicBool::new(false),
            caller: Mutex::new(None),
            failed: AtomicBool::new(false),
            panic: Mutex::new(None),
            shutdown: AtomicBool::new(false),
        });
        let workers = (1..threads.get()).map_while(|worker| spawn_worker(&shared, worker)).collect();
        Self { shared, workers, turn: Mutex::new(()) }
    }

    /// A pool for loops of equal parts: with one thread per physical core that this process may use (affinity and cgroup quota respected), and none
    /// for Apple's efficiency cores.
    #[must_use]
    pub fn with_available_parallelism() -> Self {
        Self::new(crate::cores::to_compute_with())
    }

    /// A pool for loops of many and different parts, such as kernels to compile: with one thread per processor that this process may use.
    #[must_use]
    pub fn with_all_processors() -> Self {
        Self::new(crate::cores::all())
    }

    /// How many threads run items, the caller included. Worker numbers are below this.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body(item, worker)` once for every item below `items`, on all threads, and returns when all calls have ended.
    ///
    /// Each thread has a run of neighbouring items, and takes them in ascending order; who is done helps others with theirs. No two calls with
    /// the same `worker` overlap, so per-worker scratch needs no lock.
    ///
    /// # Panics
    /// Passes on a panic of a body, after the other threads have stopped. Panics if called from inside a body, or for 2^32 items and more.
    pub fn run(&self, items: usize, body: &Body<'_>) {
        if items == 0 {
            return;
        }
        let _inside = InsideRun::enter();
        let _turn = lock(&self.turn);
        if items == 1 || self.workers.is_empty() {
            (0..items).for_each(|item| body(item, 0));
            return;
        }
        assert!(u32::try_from(items).is_ok(), "a parallel loop of {items} items");
        // SAFETY: only the lifetime changes. `close_and_wait` returns after the last worker has left, before `body` ends.
        let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        let job = Job { body, items, sharing: self.threads().min(items) };
        let run = self.publish(job);
        let caller_panic = self.shared.work_through(job, 0, run).err();
        self.close_and_wait(job, run);
        if self.shared.failed.load(Ordering::Relaxed) {
            self.shared.failed.store(false, Ordering::Relaxed);
            let worker_panic = lock(&self.shared.panic).take();
            if let Some(payload) = caller_panic.or(worker_panic) {
                resume_unwind(payload);
            }
        }
    }

    /// Splits `0..len` into ranges of about `grain` and runs `body(range, worker)` on all of them.
    pub fn run_ranges(&self, len: usize, grain: usize, body: &(dyn Fn(Range<usize>, usize) + Sync)) {
        let grain = grain.max(1);
        self.run(len.div_ceil(grain), &|item, worker| {
            let start = item * grain;
            body(start..len.min(start + grain), worker);
        });
    }

    /// Opens a run and returns its number.
    fn publish(&self, job: Job) -> u64 {
        let shared = &*self.shared;
        // SAFETY: we hold `turn` and the previous run was left by all workers, and none can enter it any more, so nobody else touches `job`.
        unsafe { *shared.newest.0.job.get() = Some(job) };
        let mut run = (shared.newest.0.state.load(Ordering::Relaxed) & RUN_MASK).wrapping_add(RUN_ONE);
        if number(run) == 0 {
            // After 2^32 runs a number comes again: nobody may take it for the old one's.
            shared.threads.iter().for_each(|thread| thread.0.taken.store(0, Ordering::Relaxed));
            run = run.wrapping_add(RUN_ONE);
        }
        shared.newest.0.state.store(run | (job.sharing as u64) << 1 | OPEN, Ordering::SeqCst);
        self.wake_sleepers(job.sharing - 1);
        run
    }

    /// Returns when no worker is inside a run any more and none can enter it.
    fn close_and_wait(&self, job: Job, run: u64) {
        let shared = &*self.shared;
        let workers = &shared.threads[1..job.sharing];
        // Who has not entered must not do so later: it sees that the run is closed, or is seen below, as one of the two comes second.
        if workers.iter().any(|worker| worker.0.entered.load(Ordering::Relaxed) & !INSIDE != run) {
            shared.newest.0.state.store(run, Ordering::SeqCst);
        }
        for Padded(Progress { entered, .. }) in workers {
            let mut spin = Spin::new(SPIN_LONGEST);
            while entered.load(Ordering::SeqCst) & INSIDE != 0 {
                if !spin.turn() {
                    shared.sleep_until_left(entered);
                }
            }
        }
    }

    /// Wakes at most `limit` sleeping workers. They look for what they are woken for after they have set their flag, and this comes after that: one
    /// of the two sees the other.
    fn wake_sleepers(&self, limit: usize) {
        for (asleep, worker) in self.shared.asleep.iter().zip(&self.workers).take(limit) {
            // Looked at first, so that all have the flags of those who are awake in their caches.
            if asleep.0.load(Ordering::SeqCst) && asleep.0.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::SeqCst);
        self.wake_sleepers(self.workers.len());
        for worker in self.workers.drain(..) {
            // Bodies' panics are caught, so a worker thread itself never panics.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Takes the thread's own items and then those of others that it helps, until none is left; after a panic also the other threads find none.
    fn work_through(&self, job: Job, thread: usize, run: u64) -> Result<(), Box<dyn Any + Send>> {
        let Job { body, items, sharing } = job;
        // SAFETY: the publisher keeps the body alive until all workers have left the run.
        let body = unsafe { &*body };
        let result = catch_unwind(AssertUnwindSafe(|| {
            let owners = if items > FEW_ITEMS * sharing || thread == 0 { sharing } else { 1 };
            for owner in (thread..sharing).chain(0..thread).take(owners) {
                let [start, end] = [owner, owner + 1].map(|owner| (items * owner / sharing) as u32);
                while let Some(item) = self.take(owner, run, start..end) {
                    body(item, thread);
                }
            }
        }));
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }

    /// The next item of those that `owner` has in a run, if one is left.
    fn take(&self, owner: usize, run: u64, items: Range<u32>) -> Option<usize> {
        if self.failed.load(Ordering::Relaxed) {
            return None;
        }
        let taken = &self.threads[owner].0.taken;
        let mut seen = taken.load(Ordering::Relaxed);
        loop {
            let next = if (seen >> 32) as u32 == number(run) { seen as u32 } else { items.start };
            if next >= items.end {
                return None;
            }
            let now = u64::from(number(run)) << 32 | u64::from(next + 1);
            match taken.compare_exchange_weak(seen, now, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(next as usize),
                Err(now) => seen = now,
            }
        }
    }

    fn worker_loop(&self, worker: usize) {
        INSIDE_RUN.set(true);
        let mut seen = 0;
        let mut spin_for = SPIN_LONGEST;
        while let Some(run) = self.wait_for_run(worker, seen, &mut spin_for) {
            seen = run;
            // SAFETY: we are inside an open run (acquired through `state`), so the publisher has written `job` and will not
            // write it again before we leave.
            if let Some(job) = unsafe { *self.newest.0.job.get() }
                && let Err(payload) = self.work_through(job, worker, run)
            {
                let mut first = lock(&self.panic);
                // Dropped, another might panic itself, and this thread would never leave.
                match *first {
                    None => *first = Some(payload),
                    Some(_) => std::mem::forget(payload),
                }
            }
            self.leave(worker, run);
        }
    }

    /// Tells the caller that a worker is no longer inside a run.
    fn leave(&self, worker: usize, run: u64) {
        self.threads[worker].0.entered.store(run, Ordering::SeqCst);
        if self.caller_sleeps.load(Ordering::SeqCst)
            && let Some(caller) = lock(&self.caller).as_ref()
        {
            caller.unpark();
        }
    }

    /// Puts the caller to sleep until the worker whose `entered` this is has left.
    fn sleep_until_left(&self, entered: &AtomicU64) {
        *lock(&self.caller) = Some(thread::current());
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while entered.load(Ordering::SeqCst) & INSIDE != 0 {
            thread::park();
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// Waits for a run newer than `seen` and enters it, returning its number; `None` when the pool is being dropped.
    fn wait_for_run(&self, worker: usize, mut seen: u64, spin_for: &mut Duration) -> Option<u64> {
        let mut spin = Spin::new(*spin_for);
        loop {
            if self.shutdown.load(Ordering::Relaxed) {
                return None;
            }
            let state = self.newest.0.state.load(Ordering::Acquire);
            let run = state & RUN_MASK;
            if run != seen && state & OPEN != 0 {
                if (state & SHARING_MASK) >> 1 <= worker as u64 {
                    // Too little for this one, which stays awake for the next.
                    seen = run;
                    spin = Spin::new(*spin_for);
                    continue;
                }
                self.threads[worker].0.entered.store(run | INSIDE, Ordering::SeqCst);
                if self.newest.0.state.load(Ordering::SeqCst) == state {
                    return Some(run);
                }
                self.leave(worker, seen);
                continue;
            }
            if !spin.turn() {
                self.sleep(worker, seen);
                // Spinning pays only where the wait turned out short.
                *spin_for = match spin.elapsed() < 2 * SPIN_LONGEST {
                    true => SPIN_LONGEST,
                    false => (*spin_for / 2).max(SPIN_SHORTEST),
                };
                spin = Spin::new(*spin_for);
            }
        }
    }

    fn sleep(&self, worker: usize, seen: u64) {
        let asleep = &self.asleep[worker - 1].0;
        asleep.store(true, Ordering::SeqCst);
        while asleep.load(Ordering::SeqCst) && !self.shutdown.load(Ordering::SeqCst) {
            let state = self.newest.0.state.load(Ordering::SeqCst);
            if state & OPEN != 0 && state & RUN_MASK != seen {
                break;
            }
            thread::park();
        }
        asleep.store(false, Ordering::SeqCst);
    }
}

/// The last 32 bits of a run's number.
fn number(run: u64) -> u32 {
    (run / RUN_ONE) as u32
}

/// Marks this thread as being inside a run until dropped.
struct InsideRun;

impl InsideRun {
    fn enter() -> Self {
        assert!(!INSIDE_RUN.replace(true), "Pool::run was called from inside a running body: nested parallel loops");
        Self
    }
}

impl Drop for InsideRun {
    fn drop(&mut self) {
        INSIDE_RUN.set(false);
    }
}

/// A thread that the system refuses is done without: results do not depend on how many there are.
fn spawn_worker(shared: &Arc<Shared>, worker: usize) -> Option<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    thread::Builder::new().name(format!("cpu-{worker}")).spawn(move || shared.worker_loop(worker)).ok()
}

/// None of these locks guards data that a panic could leave half-written.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
