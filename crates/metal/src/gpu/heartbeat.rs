//! Keeps memory within the GPU's reach for some minutes after its last use: the system takes it away from a process that idles for a
//! second, and a step that waits for gigabytes to come back takes several times as long. It knows no memory and no device.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two beats; the system was seen to take memory away after a second (llama.cpp #17766).
const INTERVAL: Duration = Duration::from_millis(500);
/// Time after the last use in which there are beats. Who is away longer wants the memory for something else.
const KEPT: Duration = Duration::from_secs(180);

/// When the next beat is due. Times are since any moment.
#[derive(Debug, Default)]
struct Schedule {
    last_use: Duration,
    last_beat: Duration,
    /// Whether the memory was used at all.
    begun: bool,
}

/// What is to be done now.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Beat,
    /// Nothing for so long.
    In(Duration),
    /// Nothing until the next use.
    Never,
}

impl Schedule {
    fn use_at(&mut self, now: Duration) {
        // A step keeps its memory itself.
        (self.last_use, self.last_beat, self.begun) = (now, now, true);
    }

    fn due(&mut self, now: Duration) -> Due {
        if !self.begun || now >= self.last_use + KEPT {
            return Due::Never;
        }
        let next = self.last_beat + INTERVAL;
        if now < next {
            return Due::In(next - now);
        }
        self.last_beat = now;
        Due::Beat
    }
}

/// When memory was used, for those who must know whether it may have gone since.
#[derive(Debug, Default)]
pub(crate) struct LastUse(Option<Instant>);

impl LastUse {
    /// Takes in a use: whether the one before is so long ago that nothing keeps the memory any more.
    pub fn again(&mut self, now: Instant) -> bool {
        self.0.replace(now).is_some_and(|last| now.duration_since(last) >= KEPT)
    }
}

/// A thread that beats.
pub(crate) struct Heartbeat {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    start: Instant,
}

#[derive(Default)]
struct State {
    schedule: Schedule,
    ended: bool,
}

impl Heartbeat {
    /// Calls `beat` when it is due. `None` if there can be no thread: then memory goes when the system wants it.
    pub fn start(beat: impl Fn() + Send + 'static) -> Option<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), start: Instant::now() });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("heartbeat".to_owned()).spawn(move || of_thread.run(&beat));
        Some(Self { shared, thread: Some(thread.ok()?) })
    }

    /// The memory is in use.
    pub fn used(&self) {
        self.shared.change(|state| state.schedule.use_at(self.shared.start.elapsed()));
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.shared.change(|state| state.ended = true);
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported, and nobody needs the beats any more.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }

    fn run(&self, beat: &dyn Fn()) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.ended {
            state = match state.schedule.due(self.start.elapsed()) {
                Due::Beat => {
                    drop(state);
                    beat();
                    self.state.lock().unwrap_or_else(PoisonError::into_inner)
                }
                Due::In(time) => self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
                Due::Never => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Beats from `from` on until none is due any more, by a clock that jumps to the next.
    fn beats(schedule: &mut Schedule, from: Duration) -> (usize, Duration) {
        let (mut now, mut beats) = (from, 0);
        loop {
            match schedule.due(now) {
                Due::Beat => beats += 1,
                Due::In(time) => {
                    assert!(time <= INTERVAL);
                    now += time;
                }
                Due::Never => return (beats, now),
            }
        }
    }

    #[test]
    fn memory_is_kept_for_minutes_after_each_use_and_then_let_go() {
        let second = Duration::from_secs(1);
        let mut schedule = Schedule::default();
        assert_eq!(schedule.due(second), Due::Never, "nothing was used");
        schedule.use_at(5 * second);
        let (first, end) = beats(&mut schedule, 5 * second);
        assert_eq!((first, end), (359, 185 * second), "twice a second for three minutes");
        assert_eq!(schedule.due(3600 * second), Due::Never);
        // An hour later somebody comes back, and again before the beats end.
        schedule.use_at(3700 * second);
        assert_eq!(schedule.due(3700 * second), Due::In(INTERVAL));
        assert_eq!(schedule.due(3700 * second + INTERVAL), Due::Beat);
        schedule.use_at(3800 * second);
        assert_eq!(beats(&mut schedule, 3800 * second).1, 3980 * second);
    }

    #[test]
    fn the_first_use_after_the_beats_have_ended_is_known() {
        let (mut last, start) = (LastUse::default(), Instant::now());
        let mut again = |seconds| last.again(start + Duration::from_secs(seconds));
        assert_eq!([0, 179, 358].map(&mut again), [false; 3], "nothing was used, or a while ago");
        assert_eq!([538, 539, 3600].map(&mut again), [true, false, true]);
    }

    #[test]
    fn a_thread_beats_while_there_is_something_to_keep() {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let beat = move || {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        let heartbeat = Heartbeat::start(beat).unwrap();
        heartbeat.used();
        let start = Instant::now();
        while count.load(Ordering::Relaxed) < 2 {
            assert!(start.elapsed() < Duration::from_secs(60), "no beat");
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(heartbeat);
        let at_the_end = count.load(Ordering::Relaxed);
        std::thread::sleep(2 * INTERVAL);
        assert_eq!(count.load(Ordering::Relaxed), at_the_end, "it has ended");
    }
}
