//! Bounds how much work runs at once, by weight. Knows no work.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Lets work through as long as its weights add up to at most the limit. A part of the limit is for light work, which so never waits for
/// heavy work, nor that for it. Each has a lane: first come, first served.
#[derive(Debug)]
pub(super) struct Gate {
    /// The heaviest light work.
    light_weight: usize,
    light: Lane,
    heavy: Lane,
}

/// What light work has to itself is this part of the limit.
const LIGHT_LANE: usize = 8;
/// Light work weighs at most this part of the limit: several fit into their lane.
const LIGHT_WORK: usize = 32;

impl Gate {
    pub fn new(limit: usize) -> Self {
        let light = limit / LIGHT_LANE;
        Self { light_weight: limit / LIGHT_WORK, light: Lane::new(light), heavy: Lane::new(limit - light) }
    }

    /// Runs `work` when there is room for it. Blocks the thread until then.
    pub fn pass<T>(&self, weight: usize, work: impl FnOnce() -> T) -> T {
        let lane = if weight <= self.light_weight { &self.light } else { &self.heavy };
        lane.pass(weight, work)
    }
}

/// Lets work through as long as its weights add up to at most the limit; heavier work runs alone. First come, first served.
#[derive(Debug)]
struct Lane {
    limit: usize,
    /// Held by the one that is next: those behind it wait for the lock.
    turn: Mutex<()>,
    inside: Mutex<usize>,
    left: Condvar,
}

impl Lane {
    fn new(limit: usize) -> Self {
        Self { limit, turn: Mutex::new(()), inside: Mutex::new(0), left: Condvar::new() }
    }

    fn pass<T>(&self, weight: usize, work: impl FnOnce() -> T) -> T {
        let weight = weight.min(self.limit);
        {
            let _turn = lock(&self.turn);
            let full = |inside: &mut usize| *inside + weight > self.limit;
            let mut inside = self.left.wait_while(lock(&self.inside), full).unwrap_or_else(PoisonError::into_inner);
            *inside += weight;
        }
        // Work that panics leaves, too.
        let _leaves = Leaves { lane: self, weight };
        work()
    }
}

struct Leaves<'a> {
    lane: &'a Lane,
    weight: usize,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        *lock(&self.lane.inside) -= self.weight;
        self.lane.left.notify_all();
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
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::Scope;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_inside_never_weighs_more_than_the_limit() {
        let (gate, inside, most) = (Gate::new(320), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for weight in [1, 10, 10, 10, 5, 11, 40, 70, 280, 1000, 100, 10, 10, 30, 60, 9].repeat(20) {
                let (gate, inside, most) = (&gate, &inside, &most);
                scope.spawn(move || {
                    gate.pass(weight, || {
                        let counted = weight.min(280);
                        most.fetch_max(inside.fetch_add(counted, Ordering::SeqCst) + counted, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(counted, Ordering::SeqCst);
                    });
                });
            }
        });
        assert!(most.into_inner() <= 320);
        assert!(catch_unwind(AssertUnwindSafe(|| gate.pass(300, || panic!("work fails")))).is_err());
        assert_eq!(gate.pass(300, || 5), 5);
    }

    /// Work that says when it has begun, and ends when it is told to.
    struct Held {
        begun: Receiver<()>,
        end: Sender<()>,
    }

    impl Held {
        fn start<'scope>(scope: &'scope Scope<'scope, '_>, gate: &'scope Gate, weight: usize) -> Self {
            let ((begins, begun), (end, ends)) = (channel(), channel());
            scope.spawn(move || {
                gate.pass(weight, || {
                    begins.send(()).unwrap();
                    ends.recv().unwrap();
                });
            });
            Self { begun, end }
        }

        fn begins(&self) -> bool {
            self.begun.recv_timeout(Duration::from_secs(60)).is_ok()
        }

        fn waits(&self) -> bool {
            self.begun.recv_timeout(Duration::from_millis(50)).is_err()
        }
    }

    /// What is too heavy for the room that is left waits, and what is heavy waits behind it.
    #[test]
    fn heavy_work_is_served_in_its_order_and_light_work_passes_by() {
        let gate = &Gate::new(320);
        std::thread::scope(|scope| {
            let first = Held::start(scope, gate, 200);
            assert!(first.begins());
            let next = Held::start(scope, gate, 10_000);
            assert!(next.waits());
            let last = Held::start(scope, gate, 11);
            assert!(last.waits(), "there is room for it, but it is not its turn");

            let light = [10; 4].map(|weight| Held::start(scope, gate, weight));
            assert!(light.iter().all(Held::begins));
            let fifth = Held::start(scope, gate, 10);
            assert!(fifth.waits(), "the part of light work is full");

            first.end.send(()).unwrap();
            assert!(next.begins(), "light work does not keep it out");
            assert!(last.waits());
            next.end.send(()).unwrap();
            assert!(last.begins());
            last.end.send(()).unwrap();
            light.iter().for_each(|held| held.end.send(()).unwrap());
            assert!(fifth.begins());
            fifth.end.send(()).unwrap();
        });
    }
}
