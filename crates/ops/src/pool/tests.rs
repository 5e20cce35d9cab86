//! Every item runs once and every loop ends, whatever threads and bodies do.

use std::sync::atomic::AtomicUsize;

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

/// Thread 1 waits in its first item until all others have run, which are then others' to do: the caller's, or of many items everyone's.
#[test]
fn who_is_late_is_helped() {
    for (threads, items) in [(2, 4), (3, 9), (3, 60)] {
        let pool = pool(threads);
        let (first, left) = (items / threads, AtomicUsize::new(items - 1));
        for _ in 0..100 {
            left.store(items - 1, Ordering::Relaxed);
            pool.run(items, &|item, thread| {
                if item != first {
                    left.fetch_sub(1, Ordering::Relaxed);
                } else if thread == 1 {
                    while left.load(Ordering::Relaxed) > 0 {
                        thread::yield_now();
                    }
                }
            });
        }
    }
}

#[test]
fn a_number_that_comes_again_is_not_taken_for_the_old_one() {
    let pool = pool(3);
    pool.shared.newest.0.state.store(u64::from(u32::MAX - 4) * RUN_ONE, Ordering::Relaxed);
    // Left by as many runs before, of which one was the last to take anything of this thread's.
    pool.shared.threads[2].0.taken.store(3 << 32 | 9, Ordering::Relaxed);
    for _ in 0..10 {
        check_run(&pool, 9);
    }
    assert_eq!(number(pool.shared.newest.0.state.load(Ordering::Relaxed)), 6);
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

/// Of two workers that panic one payload is passed on. To drop the other may panic, too.
#[test]
fn a_payload_that_cannot_be_dropped_holds_nobody() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a payload was dropped");
        }
    }
    let pool = pool(3);
    let barrier = std::sync::Barrier::new(3);
    let result = catch_unwind(AssertUnwindSafe(|| {
        pool.run(3, &|_, thread| {
            barrier.wait();
            if thread > 0 {
                std::panic::panic_any(Bomb);
            }
        });
    }));
    std::mem::forget(result.expect_err("the panic must reach the caller"));
    check_run(&pool, 9);
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
