//! Keeps memory within the GPU's reach, and the machine awake, for some minutes after the last use: the system takes memory away from a process
//! that idles for a second, and a step that waits for gigabytes to come back takes several times as long. It knows no memory and no device.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Time between two beats; the system was seen to take memory away after a second (llama.cpp #17766).
const INTERVAL: Duration = Duration::from_millis(500);
/// Time after the last use in which there are beats. Who is away longer wants the memory for something else.
const KEPT: Duration = Duration::from_secs(180);

/// When the next beat is due. Times are since any moment.
#[derive(Debug)]
struct Schedule {
    kept: Duration,
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
    /// Beats come for so long after a use.
    fn new(kept: Duration) -> Self {
        Self { kept, last_use: Duration::ZERO, last_beat: Duration::ZERO, begun: false }
    }

    fn use_at(&mut self, now: Duration) {
        // A step keeps its memory itself.
        (self.last_use, self.last_beat, self.begun) = (now, now, true);
    }

    fn due(&mut self, now: Duration) -> Due {
        if !self.begun || now >= self.last_use + self.kept {
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

/// A moment by two clocks: an `Instant` stands still while a Mac sleeps, and the time of day may be set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    awake: Instant,
    of_day: SystemTime,
}

impl Moment {
    pub fn now() -> Self {
        Self { awake: Instant::now(), of_day: SystemTime::now() }
    }

    /// By the clock that says more.
    fn since(self, before: Self) -> Duration {
        // The time of day was set back.
        let of_day = self.of_day.duration_since(before.of_day).unwrap_or_default();
        self.awake.duration_since(before.awake).max(of_day)
    }
}

/// When memory was used, for those who must know whether it may have gone since.
#[derive(Debug, Default)]
pub(crate) struct LastUse(Option<Moment>);

impl LastUse {
    /// Takes in a use: whether the one before is so long ago that nothing keeps the memory any more.
    pub fn again(&mut self, now: Moment) -> bool {
        self.0.replace(now).is_some_and(|last| now.since(last) >= KEPT)
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

struct State {
    schedule: Schedule,
    ended: bool,
}

impl Heartbeat {
    /// Calls `beat` when it is due, and has what `hold` makes from a use on until no more beats come. `None` if there can be no thread: then memory
    /// goes when the system wants it, and the machine sleeps when it wants to.
    pub fn start<H>(hold: impl Fn() -> H + Send + 'static, beat: impl Fn() + Send + 'static) -> Option<Self> {
        Self::start_for(KEPT, hold, beat)
    }

    fn start_for<H>(
        kept: Duration,
        hold: impl Fn() -> H + Send + 'static,
        beat: impl Fn() + Send + 'static,
    ) -> Option<Self> {
        let state = Mutex::new(State { schedule: Schedule::new(kept), ended: false });
        let shared = Arc::new(Shared { state, changed: Condvar::new(), start: Instant::now() });
        let of_thread = Arc::clone(&shared);
        let run = move || of_thread.run(&hold, &beat);
        let thread = std::thread::Builder::new().name("heartbeat".to_owned()).spawn(run);
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

    fn run<H>(&self, hold: &dyn Fn() -> H, beat: &dyn Fn()) {
        let mut held = None;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.ended {
            let due = state.schedule.due(self.start.elapsed());
            if (due == Due::Never) == held.is_some() {
                // Neither beginning nor ending keeps users waiting.
                drop(state);
                held = if held.is_some() { None } else { Some(hold()) };
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state = match due {
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
        let mut schedule = Schedule::new(KEPT);
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
        let (mut last, start) = (LastUse::default(), Moment::now());
        let mut again = |seconds, of_day: i64| {
            let of_day = start.of_day + Duration::from_secs((1_000_000 + of_day) as u64);
            last.again(Moment { awake: start.awake + Duration::from_secs(seconds), of_day })
        };
        let mut again_after = |seconds| again(seconds, seconds as i64);
        assert_eq!([0, 179, 358].map(&mut again_after), [false; 3], "nothing was used, or a while ago");
        assert_eq!([538, 539, 3600].map(&mut again_after), [true, false, true]);
        assert_eq!([again(3601, 20_000), again(3602, 20_001)], [true, false], "a night's sleep");
        assert_eq!([again(3603, 0), again(3604, -500)], [false; 2], "the time of day is set back");
        assert_eq!([again(3784, -400), again(3785, -399)], [true, false], "and the other clock goes on");
    }

    #[test]
    fn a_thread_beats_while_there_is_something_to_keep() {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let beat = move || {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        let heartbeat = Heartbeat::start(|| (), beat).unwrap();
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

    /// Counts its drops.
    struct Held(Arc<AtomicUsize>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_held_is_held_once_from_a_use_until_the_beats_end() {
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let hold = || {
            let (begun, ended) = (Arc::clone(&begun), Arc::clone(&ended));
            move || {
                begun.fetch_add(1, Ordering::Relaxed);
                Held(Arc::clone(&ended))
            }
        };
        let counts = || (begun.load(Ordering::Relaxed), ended.load(Ordering::Relaxed));
        let wait_for = |expected| {
            let start = Instant::now();
            while counts() != expected {
                assert!(start.elapsed() < Duration::from_secs(60), "{:?}, not {expected:?}", counts());
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let heartbeat = Heartbeat::start_for(Duration::from_millis(100), hold(), || ()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(counts(), (0, 0), "nothing is used");
        for n in 1..3 {
            heartbeat.used();
            wait_for((n, n));
        }
        drop(heartbeat);
        let heartbeat = Heartbeat::start(hold(), || ()).unwrap();
        heartbeat.used();
        wait_for((3, 2));
        (0..100).for_each(|_| heartbeat.used());
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(counts(), (3, 2), "by all uses together");
        drop(heartbeat);
        assert_eq!(counts(), (3, 3), "it ends with the thread");
    }
}
