//! What `verify` examines, in its order: a row for each section. It knows no device.

pub mod context_knee;
pub mod determinism;
pub mod equivalence;
mod from_file;
pub mod invariance;
pub mod layers;
pub mod prefill_matrix;
pub mod soak;
pub mod token_cap;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::report::{Line, Section};
use crate::subject::{Failure, Subject, VerifyError};

/// Every section.
pub const ALL: &[Entry] = &[
    Entry::new("equivalence", "Equivalence with the reference", equivalence::run),
    Entry::new("layers", "Layer by layer", layers::run),
    Entry::new("invariance", "Invariance", invariance::run),
    Entry::new("determinism", "Determinism", determinism::run),
    Entry::new("token-cap", "Token cap", token_cap::run),
    Entry::new("prefill-matrix", "Prefill matrix", prefill_matrix::run),
    Entry::new("context-knee", "Context knee", context_knee::run),
    Entry::new("soak", "Soak", soak::run),
];

/// How a section is run.
pub type Run = fn(&Subject, &Settings, &mut dyn Progress) -> Result<Section, VerifyError>;

/// A section of the report.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// As `--only` names it.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    run: Run,
}

impl Entry {
    const fn new(name: &'static str, title: &'static str, run: Run) -> Self {
        Self { name, title, run }
    }

    /// The section's findings. What keeps it from being examined is a line that fails, nobody shall take its absence for success; but for want of
    /// memory, which says nothing of the model.
    pub fn examine(&self, subject: &Subject, settings: &Settings, progress: &mut dyn Progress) -> Section {
        let mut section = examined(self.name, self.title, || match too_short(subject) {
            Some(section) => Ok(section),
            None => (self.run)(subject, settings, progress),
        });
        subject.host_ops.judge(&mut section);
        section
    }

    /// What stands for the section until it has been examined: a report that ends before does not pass.
    pub fn to_come(&self) -> Section {
        to_come(self.name, self.title)
    }
}

/// What stands in a report for a section that is still to be examined.
pub fn to_come(name: &str, title: &str) -> Section {
    let line = Line::judged("examination", "not yet: the program was ended before it", "it ends", false);
    Section { name: name.to_owned(), title: title.to_owned(), lines: vec![line], ..Section::default() }
}

/// The shortest sequences in which there is anything to examine: a prompt and tokens that follow from each other.
const LEAST: usize = 8;

/// The section of a subject whose sequences are too short for any.
pub fn too_short(subject: &Subject) -> Option<Section> {
    let max = subject.max_model_len();
    let why = format!("sequences may have {max} tokens, see `max_model_len`: at least {LEAST} are needed");
    (max < LEAST).then(|| Section { lines: vec![Line::skipped("all", why)], ..Section::default() })
}

/// What `run` finds under this name, with the time that it takes.
pub fn examined<E: Failure>(name: &str, title: &str, run: impl FnOnce() -> Result<Section, E>) -> Section {
    let start = Instant::now();
    let failed = |error: E| {
        let line = match error.is_want_of_memory() {
            true => Line::skipped("examination", error.to_string()),
            false => Line::judged("examination", format!("it failed: {error}"), "it ends", false),
        };
        Section { lines: vec![line], ..Section::default() }
    };
    let section = run().unwrap_or_else(failed);
    Section { name: name.to_owned(), title: title.to_owned(), seconds: start.elapsed().as_secs_f64(), ..section }
}

/// What `part` of a section found, or nothing and a line that it was skipped for want of memory: what was found before it stays.
pub(crate) fn unless_no_memory<T>(
    lines: &mut Vec<Line>,
    part: &str,
    found: Result<T, VerifyError>,
) -> Result<Option<T>, VerifyError> {
    match found {
        Err(error) if error.is_want_of_memory() => {
            lines.push(Line::skipped(part, error.to_string()));
            Ok(None)
        }
        found => found.map(Some),
    }
}

/// How much is examined.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Everything, however long it takes; otherwise what takes longer than [`Self::QUICK`] is left out.
    pub full: bool,
    /// How long each soak lasts.
    pub soak: Duration,
    /// Logits and hidden states that another program computed.
    pub reference: Option<PathBuf>,
}

impl Settings {
    /// What a section that could go on may take: nobody waits minutes for a quick report, and there are nine sections.
    pub const QUICK: Duration = Duration::from_secs(12);

    /// Whether a part of a section is examined that takes `part`, after `spent` on the others.
    pub fn has_time(&self, spent: Duration, part: Duration) -> bool {
        self.full || spent + part <= Self::QUICK
    }

    /// Why a part of a section is not examined that would take so long.
    pub fn no_time(part: Duration) -> String {
        format!("not in a quick report: would take about {}", human(part))
    }
}

/// A duration for people.
pub fn human(duration: Duration) -> String {
    match duration.as_secs_f64() {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Who shows how far a section is.
pub trait Progress {
    /// `done` of `total` parts are behind, which take about as long each; the next is `part`.
    fn show(&mut self, done: u64, total: u64, part: &str);
}

/// Shows nothing.
impl Progress for () {
    fn show(&mut self, _: u64, _: u64, _: &str) {}
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use vllm_apple_device::{DeviceKind, DeviceOptions};
    use vllm_apple_model::{Checkpoint, LoadError, LoadOptions};

    use super::*;
    use crate::host_ops::HostOps;
    use crate::report::Outcome;
    use crate::subject::Prompt;

    fn no_memory() -> VerifyError {
        LoadError::Memory("weights and scratch alone do not fit".to_owned()).into()
    }

    #[test]
    fn what_cannot_be_examined_fails() {
        let section = examined("a", "A", || Err(VerifyError::Input("no prompt".to_owned())));
        assert_eq!((section.name.as_str(), section.lines[0].outcome), ("a", Outcome::Fail));
        assert!(section.lines[0].found.contains("no prompt"));
    }

    #[test]
    fn want_of_memory_is_neither_right_nor_wrong() {
        let section = examined("a", "A", || Err(no_memory()));
        assert_eq!(section.lines.iter().map(|line| line.outcome).collect::<Vec<_>>(), [Outcome::Skipped]);
        assert!(section.lines[0].found.contains("not enough memory"), "{:?}", section.lines);
    }

    /// A small model on the CPU, which may take so much memory.
    fn subject(available_memory: Option<u64>) -> Subject {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/qwen2");
        Subject {
            checkpoint: Checkpoint::open(&golden).unwrap(),
            options: LoadOptions { available_memory, ..LoadOptions::default() },
            device: DeviceOptions { kind: DeviceKind::Cpu, threads: Some(2), ..DeviceOptions::default() },
            prompts: vec![Prompt { name: "mixed", token_ids: (0..300).map(|i| i % 89 + 3).collect() }],
            host_ops: HostOps::default(),
        }
    }

    const SHORT: Settings = Settings { full: false, soak: Duration::ZERO, reference: None };

    #[test]
    fn what_is_right_passes_every_section_that_judges() {
        let subject = subject(None);
        let timed = ["prefill-matrix", "context-knee", "soak"];
        for entry in ALL.iter().filter(|entry| !timed.contains(&entry.name)) {
            let Section { lines, .. } = entry.examine(&subject, &SHORT, &mut ());
            let count = |outcome| lines.iter().filter(|line| line.outcome == outcome).count();
            assert!(count(Outcome::Pass) > 1 && count(Outcome::Fail) == 0, "{}: {lines:?}", entry.name);
        }
    }

    #[test]
    fn a_machine_without_room_for_the_model_fails_no_section() {
        let subject = subject(Some(1 << 10));
        for entry in ALL {
            let Section { lines, .. } = entry.examine(&subject, &SHORT, &mut ());
            assert!(!lines.is_empty() && lines.iter().all(|line| line.outcome == Outcome::Skipped), "{lines:?}");
        }
    }

    #[test]
    fn what_was_found_before_memory_was_wanting_stays() {
        let mut lines = vec![Line::judged("before", "1", "2", false)];
        assert_eq!(unless_no_memory(&mut lines, "rest", Ok(3)).unwrap(), Some(3));
        assert_eq!(unless_no_memory::<i32>(&mut lines, "rest", Err(no_memory())).unwrap(), None);
        assert_eq!(lines.iter().map(|line| line.outcome).collect::<Vec<_>>(), [Outcome::Fail, Outcome::Skipped]);
        assert!(unless_no_memory::<i32>(&mut lines, "rest", Err(VerifyError::Input(String::new()))).is_err());
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<_> = ALL.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn a_quick_report_leaves_out_what_takes_long() {
        let settings = |full| Settings { full, soak: Duration::ZERO, reference: None };
        let (short, long) = (Duration::from_secs(1), Settings::QUICK);
        assert!(settings(false).has_time(short, short) && !settings(false).has_time(short, long));
        assert!(settings(true).has_time(long, long));
    }
}
