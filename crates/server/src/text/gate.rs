//! Bounds how much work runs at once, by weight. Knows no work.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Lets work through as long as its weights add up to at most the limit; heavier work runs alone. First come, first served.
#[derive(Debug)]
pub(super) struct Gate {
    limit: usize,
    /// Held by the one that is next: those behind it wait for the lock.
    turn: Mutex<()>,
    inside: Mutex<usize>,
    left: Condvar,
}

impl Gate {
    pub fn new(limit: usize) -> Self {
        Self { limit, turn: Mutex::new(()), inside: Mutex::new(0), left: Condvar::new() }
    }

    /// Runs `work` when there is room for it. Blocks the thread until then.
    pub fn pass<T>(&self, weight: usize, work: impl FnOnce() -> T) -> T {
        let weight = weight.min(self.limit);
        {
            let _turn = lock(&self.turn);
            let full = |inside: &mut usize| *inside + weight > self.limit;
            let mut inside = self.left.wait_while(lock(&self.inside), full).unwrap_or_else(PoisonError::into_inner);
            *inside += weight;
        }
        // Work that panics leaves, too.
        let _leaves = Leaves { gate: self, weight };
        work()
    }
}

struct Leaves<'a> {
    gate: &'a Gate,
    weight: usize,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        *lock(&self.gate.inside) -= self.weight;
        self.gate.left.notify_all();
    }
}

/// No panic leaves the numbers half changed, so a poisoned lock is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_inside_never_weighs_more_than_the_limit() {
        let (gate, inside, most) = (Gate::new(10), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for weight in [1, 4, 7, 10, 100, 3, 3, 3, 6, 2].repeat(20) {
                let (gate, inside, most) = (&gate, &inside, &most);
                scope.spawn(move || {
                    gate.pass(weight, || {
                        let now = inside.fetch_add(weight.min(10), Ordering::SeqCst) + weight.min(10);
                        most.fetch_max(now, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(weight.min(10), Ordering::SeqCst);
                    });
                });
            }
        });
        assert!(most.into_inner() <= 10);
        assert!(catch_unwind(AssertUnwindSafe(|| gate.pass(10, || panic!("work fails")))).is_err());
        assert_eq!(gate.pass(10, || 5), 5);
    }

    /// Only what has room goes in beside others, however little is inside.
    #[test]
    fn work_as_heavy_as_the_limit_waits_for_the_lightest() {
        let (gate, (entered, has_entered), (leave, may_leave)) = (&Gate::new(10), channel(), channel());
        std::thread::scope(|scope| {
            gate.pass(1, || {
                scope.spawn(move || {
                    gate.pass(10, || {
                        entered.send(()).unwrap();
                        may_leave.recv().unwrap();
                    });
                });
                assert!(has_entered.recv_timeout(Duration::from_millis(50)).is_err(), "there is no room for it");
            });
            assert_eq!(has_entered.recv(), Ok(()));
            leave.send(()).unwrap();
        });
    }
}
