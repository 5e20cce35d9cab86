//! How far something is that takes long: a bar on the terminal; where there is none, as in a service's log, a line now and then. Knows no work.

use std::fmt;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// The target of these lines, by which commands show them that log warnings alone.
const TARGET: &str = "progress";

/// Between two lines.
const INTERVAL: Duration = Duration::from_secs(10);

/// What is counted.
#[derive(Debug, Clone, Copy)]
pub enum Unit {
    /// Layers, kernels, steps.
    Pieces,
    /// Bytes of files.
    Bytes,
}

/// Work that goes on. When it is dropped, its bar is gone, and its last line says how far it came.
pub struct LongWork {
    name: String,
    /// Of the work, such as a file; each part is counted anew.
    part: String,
    done: u64,
    total: u64,
    unit: Unit,
    bar: ProgressBar,
    /// `None` where there is a bar.
    lines: Option<Lines>,
}

impl LongWork {
    /// Work that has begun. Without a terminal nothing is said of it before `silence` is over: much of it is done by then.
    pub fn new(name: impl Into<String>, unit: Unit, silence: Duration) -> Self {
        let style = match unit {
            Unit::Pieces => "{msg} [{bar:30}] {pos}/{len} eta {eta}",
            Unit::Bytes => "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta}",
        };
        let name = name.into();
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(0).with_style(style).with_message(name.clone());
        let lines = bar.is_hidden().then(|| Lines { due: Instant::now() + silence, last: None });
        Self { name, part: String::new(), done: 0, total: 0, unit, bar, lines }
    }

    /// It has done so much.
    pub fn show(&mut self, done: u64, total: u64) {
        (self.done, self.total) = (done, total);
        self.bar.set_length(total);
        self.bar.set_position(done);
        if self.lines.as_mut().is_some_and(|lines| lines.is_due(Instant::now(), done)) {
            self.log();
        }
    }

    /// It has done so much of this part.
    pub fn show_part(&mut self, part: &str, done: u64, total: u64) {
        if self.part != part {
            part.clone_into(&mut self.part);
            self.bar.set_message(self.part.clone());
            self.bar.reset();
        }
        self.show(done, total);
    }

    fn log(&self) {
        tracing::info!(target: TARGET, "{self}");
    }
}

impl fmt::Display for LongWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name)?;
        if !self.part.is_empty() {
            write!(f, "{}, ", self.part)?;
        }
        match self.unit {
            Unit::Pieces => write!(f, "{} of {}", self.done, self.total),
            Unit::Bytes => write!(f, "{} of {}", HumanBytes(self.done), HumanBytes(self.total)),
        }
    }
}

impl Drop for LongWork {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        if self.lines.as_ref().is_some_and(|lines| lines.misses_end(self.done)) {
            self.log();
        }
    }
}

/// When lines are due.
struct Lines {
    due: Instant,
    /// How far the last line said that it is.
    last: Option<u64>,
}

impl Lines {
    /// Whether a line is to be written now.
    fn is_due(&mut self, now: Instant, done: u64) -> bool {
        let is_due = now >= self.due;
        if is_due {
            *self = Self { due: now + INTERVAL, last: Some(done) };
        }
        is_due
    }

    /// Whether a last one is missing after those that were written.
    fn misses_end(&self, done: u64) -> bool {
        self.last.is_some_and(|last| last != done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_at_the_start_every_ten_seconds_and_at_the_end() {
        let start = Instant::now();
        let mut lines = Lines { due: start, last: None };
        let due: Vec<u64> =
            (0..25).filter(|&second| lines.is_due(start + Duration::from_secs(second), second)).collect();
        assert_eq!(due, [0, 10, 20]);
        assert!(lines.misses_end(24) && !lines.misses_end(20));
    }

    #[test]
    fn nothing_is_said_of_what_is_over_soon() {
        let start = Instant::now();
        let mut lines = Lines { due: start + Duration::from_secs(2), last: None };
        assert!(!lines.is_due(start, 1) && !lines.misses_end(1));
        assert!(lines.is_due(start + Duration::from_secs(3), 2));
    }

    #[test]
    fn a_line_names_the_work_the_part_and_how_far_it_is() {
        let mut work = LongWork::new("downloading a/b", Unit::Bytes, Duration::from_secs(60));
        work.show_part("model.safetensors", 3 << 20, 8 << 30);
        assert_eq!(work.to_string(), "downloading a/b: model.safetensors, 3.00 MiB of 8.00 GiB");
        let mut work = LongWork::new("laying out weights", Unit::Pieces, Duration::from_secs(60));
        work.show(3, 25);
        assert_eq!(work.to_string(), "laying out weights: 3 of 25");
    }
}
