//! The same work for a long time, by 1 request and by 8: whether memory grows, latency spreads, or an answer changes.

use std::time::{Duration, Instant};

use vllm_apple_engine::{Engine, EngineRequest};
use vllm_apple_executor::{Executor, SamplingParams};

use super::{Progress, Settings, human, unless_no_memory};
use crate::answers::check_length;
use crate::report::{Line, Plot, Section, Series};
use crate::speed::median;
use crate::subject::{Subject, VerifyError, Wish};

const BATCHES: [usize; 2] = [1, 8];
const INPUT: usize = 128;
const OUTPUT: u32 = 128;
/// Bytes that the process may come to take beside what it has after its first answers.
const GROWTH: i64 = 100_000_000;
/// Of the largest and the smallest median of a minute, as a share of the median of all.
const SPREAD: f64 = 0.05;
const MINUTE: Duration = Duration::from_secs(60);
/// A soak that is shorter, or of fewer windows because rounds are long, has too few medians for a spread.
const JUDGED: Duration = Duration::from_secs(600);
const LEAST_WINDOWS: usize = 10;

/// What was seen in a part of the time.
struct Window {
    /// Since the beginning, at its end.
    minutes: f64,
    /// Median of a step's milliseconds.
    step: f64,
    /// Bytes that the process had at its end.
    memory: i64,
}

/// What was seen in all.
struct Soaked {
    windows: Vec<Window>,
    steps: u64,
    answers: u64,
    different: u64,
    /// Bytes after the first answers.
    first_memory: i64,
}

/// The section's findings.
///
/// # Errors
/// The model cannot be loaded, or a step fails.
pub fn run(subject: &Subject, settings: &Settings, progress: &mut dyn Progress) -> Result<Section, VerifyError> {
    let window = MINUTE.min(settings.soak / 10);
    let about = format!(
        "{INPUT} tokens in, {OUTPUT} out, again and again for {} by each number of requests. Medians are of {} each; memory is what of the process is \
         in main memory, as the system counts it.",
        human(settings.soak),
        human(window)
    );
    let mut section = Section { about, ..Section::default() };
    let (mut latency, mut memory) = (Vec::new(), Vec::new());
    for (at, batch) in BATCHES.into_iter().enumerate() {
        let mut show = |done: f64| {
            let parts = 100 * BATCHES.len() as u64;
            let done = 100 * at as u64 + (100.0 * done) as u64;
            progress.show(done.min(parts), parts, &format!("{batch} at once"));
        };
        let soaked = soak(subject, batch, settings.soak, window, &mut show);
        let Some(soaked) = unless_no_memory(&mut section.lines, &format!("{batch} at once"), soaked)? else { continue };
        section.lines.extend(soaked.lines(batch, settings.soak));
        let series = |value: &dyn Fn(&Window) -> f64| Series {
            name: format!("{batch} at once"),
            points: soaked.windows.iter().map(|window| (window.minutes, value(window))).collect(),
        };
        latency.push(series(&|window| window.step));
        memory.push(series(&|window| (window.memory - soaked.first_memory) as f64 / 1e6));
    }
    for (title, y, series) in
        [("Latency", "ms per step, median", latency), ("Memory beyond that after the first answers", "MB", memory)]
    {
        let (title, x, y) = (title.to_owned(), "minutes".to_owned(), y.to_owned());
        section.plots.push(Plot { title, x, y, log_x: false, log_y: false, series });
    }
    Ok(section)
}

fn soak(
    subject: &Subject,
    batch: usize,
    time: Duration,
    window: Duration,
    show: &mut dyn FnMut(f64),
) -> Result<Soaked, VerifyError> {
    let max = subject.max_model_len();
    let output = OUTPUT.min((max / 2).max(1) as u32);
    let input = INPUT.min(max - output as usize).max(1);
    let mut engine = subject.engine(Wish::default(), |options| {
        options.max_model_len = Some(input + output as usize);
        options.max_num_seqs = batch;
    })?;
    let prompts = (0..batch).map(|r| Ok(subject.prompt_at(r)?.beginning(input)));
    let prompts = prompts.collect::<Result<Vec<_>, VerifyError>>()?;
    let mut steps = Vec::new();
    let expected = round(&mut engine, &prompts, output, &mut steps)?;
    round(&mut engine, &prompts, output, &mut steps)?;
    let mut soaked = Soaked { windows: Vec::new(), steps: 0, answers: 0, different: 0, first_memory: memory() };
    steps.clear();
    let start = Instant::now();
    let mut next = window;
    while start.elapsed() < time || soaked.windows.is_empty() {
        let answers = round(&mut engine, &prompts, output, &mut steps)?;
        soaked.answers += batch as u64;
        soaked.different +=
            answers.iter().zip(&expected).filter(|(answer, expected)| answer != expected).count() as u64;
        let elapsed = start.elapsed();
        if elapsed >= next.min(time) && !steps.is_empty() {
            soaked.steps += steps.len() as u64;
            let step = median(std::mem::take(&mut steps)) * 1e3;
            soaked.windows.push(Window { minutes: elapsed.as_secs_f64() / 60.0, step, memory: memory() });
            // Not from here on: rounds that are long would make fewer windows.
            next += window;
        }
        show(elapsed.as_secs_f64() / time.as_secs_f64().max(1e-9));
    }
    Ok(soaked)
}

/// The answers to the prompts together; the seconds of the steps that compute no prompt are added to `steps`.
fn round<E: Executor>(
    engine: &mut Engine<E>,
    prompts: &[Vec<u32>],
    output: u32,
    steps: &mut Vec<f64>,
) -> Result<Vec<Vec<u32>>, VerifyError> {
    let params =
        SamplingParams { temperature: 0.0, ignore_eos: true, max_tokens: Some(output), ..SamplingParams::default() };
    let mut ids = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        ids.push(engine.submit(EngineRequest::new(prompt.clone(), params.clone()))?);
    }
    let mut answers = vec![Vec::with_capacity(output as usize); prompts.len()];
    let mut outputs = Vec::with_capacity(prompts.len());
    while engine.has_unfinished_requests() {
        let start = Instant::now();
        engine.step(&mut outputs)?;
        let took = start.elapsed().as_secs_f64();
        let decodes = answers.iter().all(|answer| !answer.is_empty());
        if decodes && outputs.len() == prompts.len() {
            steps.push(took);
        }
        for output in &outputs {
            let sample = VerifyError::token(output)?;
            if let Some(at) = ids.iter().position(|id| *id == output.id) {
                answers[at].push(sample.token_id);
            }
        }
    }
    answers.iter().try_for_each(|answer| check_length(answer.len(), output as usize))?;
    Ok(answers)
}

/// Bytes of this process in main memory; 0 where the system does not say.
fn memory() -> i64 {
    let Ok(pid) = sysinfo::get_current_pid() else { return 0 };
    let Ok(mut system) = sysinfo::System::new() else { return 0 };
    let what = sysinfo::ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(sysinfo::ProcessesToUpdate::Some(&[pid]), true, what);
    system.process(pid).map_or(0, |process| process.memory() as i64)
}

impl Soaked {
    fn lines(&self, batch: usize, time: Duration) -> [Line; 3] {
        let what = |what: &str| format!("{batch} at once: {what}");
        let last = self.windows.last().map_or(0, |window| window.memory);
        let growth = last - self.first_memory;
        let memory = match self.first_memory.min(last) {
            0 => Line::skipped(what("growth of memory"), "the system does not say how much the process takes"),
            _ => Line::judged(
                what("growth of memory"),
                format!("{:+.1} MB of {:.0} MB", growth as f64 / 1e6, self.first_memory as f64 / 1e6),
                format!("below {} MB", GROWTH / 1_000_000),
                growth < GROWTH,
            ),
        };
        let medians: Vec<f64> = self.windows.iter().map(|window| window.step).collect();
        let (low, high) = medians.iter().fold((f64::MAX, 0.0f64), |(low, high), &m| (low.min(m), high.max(m)));
        let middle = if medians.is_empty() { f64::NAN } else { median(medians) };
        let spread = (high - low) / middle;
        let found = format!("{:.1}% around {middle:.2} ms, over {} steps", 100.0 * spread, self.steps);
        let windows = self.windows.len();
        let latency = match (time >= JUDGED, windows >= LEAST_WINDOWS) {
            (true, true) => Line::judged(
                what("spread of latency"),
                found,
                format!("within {:.0}%", 100.0 * SPREAD),
                spread <= SPREAD,
            ),
            (true, false) => {
                let why = format!("{windows} medians are too few, {LEAST_WINDOWS} are needed; {found}");
                Line::skipped(what("spread of latency"), why)
            }
            (false, _) => Line::figure(what("spread of latency"), format!("{found}; judged from {} on", human(JUDGED))),
        };
        let answers = format!("{} of {} differ from the first", self.different, self.answers);
        [memory, latency, Line::judged(what("answers"), answers, "all equal", self.different == 0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    /// Of so many windows, all but the last like the first.
    fn soaked_in(count: usize, memory: [i64; 2], steps: [f64; 2], different: u64) -> [Outcome; 3] {
        let windows = (1..=count).map(|i| {
            let at = usize::from(i == count);
            Window { minutes: i as f64, step: steps[at], memory: memory[at] }
        });
        let windows = windows.collect();
        let soaked = Soaked { windows, steps: 9, answers: 9, different, first_memory: 1_000_000_000 };
        soaked.lines(1, JUDGED).map(|line| line.outcome)
    }

    fn soaked(memory: [i64; 2], steps: [f64; 2], different: u64) -> [Outcome; 3] {
        soaked_in(LEAST_WINDOWS, memory, steps, different)
    }

    #[test]
    fn what_was_not_measured_does_not_pass() {
        use Outcome::{Pass, Skipped};
        let memory = [1_000_000_000; 2];
        assert_eq!(soaked_in(1, memory, [10.0; 2], 0), [Pass, Skipped, Pass]);
        assert_eq!(soaked_in(LEAST_WINDOWS - 1, memory, [10.0, 20.0], 0), [Pass, Skipped, Pass]);
        assert_eq!(soaked([1_000_000_000, 0], [10.0; 2], 0), [Skipped, Pass, Pass]);
    }

    #[test]
    fn growth_spread_and_another_answer_fail() {
        use Outcome::{Fail, Pass};
        assert_eq!(soaked([1_000_000_000, 1_050_000_000], [10.0, 10.4], 0), [Pass, Pass, Pass]);
        assert_eq!(soaked([1_000_000_000, 1_100_000_000], [10.0, 10.4], 0), [Fail, Pass, Pass]);
        assert_eq!(soaked([1_000_000_000, 900_000_000], [10.0, 10.6], 1), [Pass, Fail, Fail]);
    }

    #[test]
    fn this_process_takes_memory() {
        assert!(memory() > 0);
    }
}
