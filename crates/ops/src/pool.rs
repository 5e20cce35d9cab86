//! A fork-join thread pool for kernels: runs numbered items on all threads. It knows nothing of what an item computes.
//!
//! A decode step is a few hundred short parallel loops one after another, so what matters is the time from one loop to the
//! next. Workers therefore spin for a moment before they sleep, a run allocates nothing, and the caller works too: it never
//! waits for a worker that has not yet begun, only for those still inside an item.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// The body of a parallel loop: called with an item's number and the number of the thread that runs it.
type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// How long a thread spins for work before it sleeps, at most. Longer than the gap between two kernels of a step.
const SPIN_LONGEST: Duration = Duration::from_micros(100);
/// The spin of a thread whose recent waits all ended in sleep: an idle or overloaded machine is not worth heating.
const SPIN_SHORTEST: Duration = Duration::from_micros(5);

/// Layout of `Shared::state`: epoch, then whether the run still admits workers, then how many are inside it.
const ACTIVE_MASK: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const EPOCH_ONE: u64 = 1 << 17;

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
    state: Padded<AtomicU64>,
    next_item: Padded<AtomicUsize>,
    job: UnsafeCell<Option<Job>>,
    sleepers: Vec<Padded<Sleeper>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    shutdown: AtomicBool,
}

struct Sleeper {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

#[derive(Clone)]
struct Job {
    body: *const Body<'static>,
    items: usize,
    caller: Thread,
}

// SAFETY: `job` is written only by the holder of `Pool::turn` while no worker is inside a run, and read only by workers that
// entered an open run through `state` (acquire), so accesses never overlap. The body it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the raw pointer is only followed during the run that published it.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads, of which `threads - 1` are new: the caller of [`Pool::run`] is the other one.
    #[must_use]
    pub fn new(threads: NonZeroUsize) -> Self {
        let sleepers = (1..threads.get())
            .map(|_| Padded(Sleeper { asleep: AtomicBool::new(false), thread: Mutex::new(None) }))
            .collect();
        let shared = Arc::new(Shared {
            state: Padded(AtomicU64::new(0)),
            next_item: Padded(AtomicUsize::new(0)),
            job: UnsafeCell::new(None),
            sleepers,
            panic: Mutex::new(None),
            shutdown: AtomicBool::new(false),
        });
        let workers = (1..threads.get()).map_while(|worker| spawn_worker(&shared, worker)).collect();
        Self { shared, workers, turn: Mutex::new(()) }
    }

    /// A pool with one thread per physical core that this process may use (affinity and cgroup quota respected).
    #[must_use]
    pub fn with_available_parallelism() -> Self {
        Self::new(crate::cores::to_compute_with())
    }

    /// How many threads run items, the caller included. Worker numbers are below this.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body(item, worker)` once for every item below `items`, on all threads, and returns when all calls have ended.
    ///
    /// Threads take items in ascending order as they become free. No two calls with the same `worker` overlap, so per-worker
    /// scratch needs no lock.
    ///
    /// # Panics
    /// Passes on the first panic of a body, after the other threads have stopped. Panics if called from inside a body.
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
        self.publish(items, body);
        let caller_panic = self.shared.work_through(body, items, 0).err();
        self.close_and_wait();
        let worker_panic = lock(&self.shared.panic).take();
        if let Some(payload) = caller_panic.or(worker_panic) {
            resume_unwind(payload);
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

    fn publish(&self, items: usize, body: &Body<'_>) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. `close_and_wait` returns after the last worker has left, before `body` ends.
        let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        // SAFETY: we hold `turn` and the previous run was closed and left by all workers, so nobody else touches `job`.
        unsafe { *shared.job.get() = Some(Job { body, items, caller: thread::current() }) };
        shared.next_item.0.store(0, Ordering::Relaxed);
        let epoch = shared.state.0.load(Ordering::Relaxed) & !(OPEN | ACTIVE_MASK);
        shared.state.0.store(epoch.wrapping_add(EPOCH_ONE) | OPEN, Ordering::Release);
        shared.wake_sleepers(items - 1);
    }

    fn close_and_wait(&self) {
        let state = &self.shared.state.0;
        let mut active = state.fetch_and(!OPEN, Ordering::AcqRel) & ACTIVE_MASK;
        let mut spin = Spin::new(SPIN_LONGEST);
        while active > 0 {
            if !spin.turn() {
                thread::park();
            }
            active = state.load(Ordering::Acquire) & ACTIVE_MASK;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::SeqCst);
        self.shared.wake_sleepers(self.workers.len());
        for worker in self.workers.drain(..) {
            // Bodies' panics are caught, so a worker thread itself never panics.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Wakes at most `limit` sleeping workers.
    fn wake_sleepers(&self, limit: usize) {
        // Pairs with the fence in `sleep`: either we see the sleeper's flag or it sees the new state.
        fence(Ordering::SeqCst);
        for sleeper in self.sleepers.iter().take(limit) {
            if sleeper.0.asleep.swap(false, Ordering::SeqCst)
                && let Some(thread) = lock(&sleeper.0.thread).as_ref()
            {
                thread.unpark();
            }
        }
    }

    /// Takes items until none is left; after a panic also the other threads find none.
    fn work_through(&self, body: &Body<'_>, items: usize, worker: usize) -> Result<(), Box<dyn Any + Send>> {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let item = self.next_item.0.fetch_add(1, Ordering::Relaxed);
                if item >= items {
                    break;
                }
                body(item, worker);
            }
        }));
        if result.is_err() {
            // Half the range, so that later increments cannot wrap around to zero.
            self.next_item.0.store(usize::MAX / 2, Ordering::Relaxed);
        }
        result
    }

    fn worker_loop(&self, worker: usize) {
        INSIDE_RUN.set(true);
        let mut seen = 0;
        let mut spin_for = SPIN_LONGEST;
        while let Some(epoch) = self.wait_for_run(worker, seen, &mut spin_for) {
            seen = epoch;
            // SAFETY: we are inside an open run (acquired through `state`), so the publisher has written `job` and will not
            // write it again before we leave.
            let job = unsafe { (*self.job.get()).clone() };
            if let Some(job) = job {
                // SAFETY: the publisher keeps the body alive until all workers have left the run.
                let body = unsafe { &*job.body };
                if let Err(payload) = self.work_through(body, job.items, worker) {
                    lock(&self.panic).get_or_insert(payload);
                }
                let before = self.state.0.fetch_sub(1, Ordering::AcqRel);
                if before & (OPEN | ACTIVE_MASK) == 1 {
                    job.caller.unpark();
                }
            }
        }
    }

    /// Waits for a run newer than `seen` and enters it, returning its epoch; `None` when the pool is being dropped.
    fn wait_for_run(&self, worker: usize, seen: u64, spin_for: &mut Duration) -> Option<u64> {
        let mut spin = Spin::new(*spin_for);
        loop {
            if self.shutdown.load(Ordering::Relaxed) {
                return None;
            }
            let state = self.state.0.load(Ordering::Acquire);
            let epoch = state & !(OPEN | ACTIVE_MASK);
            if epoch != seen && state & OPEN != 0 {
                let entered = self.state.0.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
                if entered.is_ok() {
                    return Some(epoch);
                }
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
        let sleeper = &self.sleepers[worker - 1].0;
        lock(&sleeper.thread).get_or_insert_with(thread::current);
        sleeper.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while sleeper.asleep.load(Ordering::SeqCst) && !self.shutdown.load(Ordering::SeqCst) {
            let state = self.state.0.load(Ordering::Acquire);
            if state & OPEN != 0 && state & !(OPEN | ACTIVE_MASK) != seen {
                break;
            }
            thread::park();
        }
        sleeper.asleep.store(false, Ordering::SeqCst);
    }
}

/// Busy-waits up to a time limit.
struct Spin {
    limit: Duration,
    start: Option<Instant>,
    turns: u32,
}

impl Spin {
    fn new(limit: Duration) -> Self {
        Self { limit, start: None, turns: 0 }
    }

    /// Spins a little; false when the time is up. The clock is read only every 32nd turn.
    fn turn(&mut self) -> bool {
        std::hint::spin_loop();
        self.turns += 1;
        if !self.turns.is_multiple_of(32) {
            return true;
        }
        self.start.get_or_insert_with(Instant::now).elapsed() < self.limit
    }

    fn elapsed(&self) -> Duration {
        self.start.map_or(Duration::ZERO, |start| start.elapsed())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(NonZeroUsize::new(threads).unwrap())
    }

    /// Runs `items` and checks that each ran once, on a worker of the pool.
    fn check_run(pool: &Pool, items: usize) {
        let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
        pool.run(items, &|item, worker| {
            assert!(worker < pool.threads());
            counts[item].fetch_add(1, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn every_item_runs_once_for_all_sizes_and_thread_counts() {
        for threads in 1..=5 {
            let pool = pool(threads);
            for items in (0..40).chain([1000]) {
                check_run(&pool, items);
            }
        }
    }

    #[test]
    fn many_short_runs() {
        let pool = pool(4);
        for run in 0..20_000 {
            check_run(&pool, run % 7);
        }
    }

    #[test]
    fn runs_after_workers_fell_asleep() {
        let pool = pool(3);
        for _ in 0..20 {
            thread::sleep(2 * SPIN_LONGEST);
            check_run(&pool, 9);
        }
    }

    #[test]
    fn all_threads_take_part() {
        let pool = pool(3);
        let barrier = std::sync::Barrier::new(3);
        // Ends only if three threads are inside an item at the same time.
        pool.run(3, &|_, _| {
            barrier.wait();
        });
    }

    #[test]
    fn a_worker_number_is_never_in_use_twice() {
        let pool = pool(4);
        let busy: Vec<AtomicBool> = (0..4).map(|_| AtomicBool::new(false)).collect();
        for _ in 0..200 {
            pool.run(50, &|_, worker| {
                assert!(!busy[worker].swap(true, Ordering::SeqCst));
                std::hint::spin_loop();
                busy[worker].store(false, Ordering::SeqCst);
            });
        }
    }

    #[test]
    fn ranges_cover_the_length() {
        let pool = pool(2);
        for (len, grain) in [(0, 4), (1, 4), (10, 3), (12, 4), (5, 0)] {
            let sum = AtomicUsize::new(0);
            pool.run_ranges(len, grain, &|range, _| {
                assert!(range.len() <= grain.max(1));
                sum.fetch_add(range.map(|i| i + 1).sum(), Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), len * (len + 1) / 2);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = pool(4);
        for bad in 0..50 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(50, &|item, _| assert!(item != bad, "item {item}"));
            }));
            let payload = result.expect_err("the panic must reach the caller");
            assert_eq!(payload.downcast_ref::<String>(), Some(&format!("item {bad}")));
            check_run(&pool, 50);
        }
    }

    #[test]
    fn panics_of_all_threads_at_once_are_one_panic() {
        let pool = pool(4);
        for _ in 0..50 {
            assert!(catch_unwind(AssertUnwindSafe(|| pool.run(100, &|_, _| panic!("all")))).is_err());
        }
        check_run(&pool, 100);
    }

    #[test]
    fn nested_runs_are_refused() {
        let pool = pool(2);
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(2, &|_, _| pool.run(1, &|_, _| {}))));
        assert!(result.is_err());
        check_run(&pool, 3);
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let pool = pool(3);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|_| check_run(&pool, 5)));
            }
        });
    }
}
