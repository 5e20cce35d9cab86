//! Waiting without sleeping. It knows nothing of what is waited for.

use std::time::{Duration, Instant};

/// Busy-waits up to a time limit.
pub(super) struct Spin {
    limit: Duration,
    start: Option<Instant>,
    turns: u32,
}

impl Spin {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, start: None, turns: 0 }
    }

    /// Spins a little; false when the time is up. The clock is read only every 32nd turn.
    pub(super) fn turn(&mut self) -> bool {
        std::hint::spin_loop();
        self.turns += 1;
        if !self.turns.is_multiple_of(32) {
            return true;
        }
        self.start.get_or_insert_with(Instant::now).elapsed() < self.limit
    }

    /// Since the clock was first read.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.map_or(Duration::ZERO, |start| start.elapsed())
    }
}
