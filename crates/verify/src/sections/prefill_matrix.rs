//! How fast prompts are computed, by their length and number, and how much of the device's limit that is.

use std::time::{Duration, Instant};

use vllm_apple_device::Limits;

use super::{Progress, Settings};
use crate::report::{Line, Plot, Section, Series};
use crate::size::up_to;
use crate::speed::{median, prefill_cost, timed};
use crate::subject::{Subject, VerifyError, Wish};

const LENGTHS: [usize; 6] = [32, 128, 512, 2048, 8192, 16_384];
const BATCHES: [usize; 3] = [1, 4, 8];
/// Runs whose median counts, where one takes less than [`SHORT`].
const REPEAT: usize = 3;
const SHORT: Duration = Duration::from_secs(1);

/// The section's findings.
///
/// # Errors
/// The model cannot be loaded, or a step fails.
pub fn run(subject: &Subject, settings: &Settings, progress: &mut dyn Progress) -> Result<Section, VerifyError> {
    let limits = subject.limits()?;
    let max = subject.max_model_len();
    let longest = LENGTHS.into_iter().filter(|&length| length < max).max().unwrap_or(1);
    let mut engine = subject.engine(Wish::default(), |options| {
        up_to(longest + 1, options);
        options.max_num_seqs = BATCHES[BATCHES.len() - 1];
    })?;
    let most = engine.info().max_model_len;
    let (lengths, too_long): (Vec<usize>, Vec<usize>) = LENGTHS.into_iter().partition(|&length| length < most);
    // What the device prepares at first is not the prompts' time.
    let start = Instant::now();
    let mut cells: Vec<(usize, usize)> =
        lengths.iter().flat_map(|&length| BATCHES.map(|batch| (length, batch))).collect();
    // What a quick report has no time for are the largest.
    cells.sort_by_key(|(length, batch)| length * batch);
    let total = cells.len() as u64;
    let mut section = Section { about: about(limits, engine.info().max_num_batched_tokens), ..Section::default() };
    let mut series: Vec<Series> =
        BATCHES.iter().map(|batch| Series { name: format!("{batch} at once"), points: Vec::new() }).collect();
    // The first run touches all memory; it does not count.
    let mut alone = vec![None; LENGTHS.len()];
    let (mut different, mut is_compared) = (Vec::new(), false);
    let (mut flops_per_second, types) = (None, subject.types());
    for (at, (length, batch)) in cells.into_iter().enumerate() {
        let what = format!("{length} tokens x {batch}");
        progress.show(at as u64, total, &what);
        let flops = prefill_cost(subject.checkpoint.config(), types, batch, length).flops;
        let predicted = flops_per_second.map(|speed| Duration::from_secs_f64(flops / speed));
        if let Some(part) = predicted.filter(|&part| !settings.has_time(start.elapsed(), part)) {
            section.lines.push(Line::skipped(what, Settings::no_time(part)));
            continue;
        }
        let prompts = vec![subject.prompt("mixed")?.beginning(length); batch];
        let mut times = Vec::new();
        let mut first = Vec::new();
        if predicted.is_none() {
            timed(&mut engine, prompts.clone(), 1)?;
        }
        while times.is_empty() || (times.len() < REPEAT && times[0] < SHORT) {
            let run = timed(&mut engine, prompts.clone(), 1)?;
            times.push(run.prefill);
            first.extend(run.first);
        }
        let seconds = median(times).as_secs_f64();
        flops_per_second = Some(flops / seconds);
        let speed = (length * batch) as f64 / seconds;
        section.lines.push(Line::figure(what.clone(), found(speed, flops / seconds, limits)));
        if let Some(at) = BATCHES.iter().position(|&b| b == batch) {
            series[at].points.push((length as f64, speed));
        }
        // Equal prompts have equal answers, alone and together.
        let row = LENGTHS.iter().position(|&l| l == length).unwrap_or_default();
        is_compared |= alone[row].is_some();
        let expected = *alone[row].get_or_insert(first[0]);
        if first.iter().any(|&token| token != expected) {
            different.push(what);
        }
    }
    section.lines.push(equality(is_compared, &different));
    let skipped = |length| {
        let why = match length < max {
            true => format!("memory has room for sequences of {most} tokens"),
            false => format!("the model's length is {max} tokens"),
        };
        Line::skipped(format!("{length} tokens"), why)
    };
    section.lines.extend(too_long.into_iter().map(skipped));
    section.plots.push(plot(series));
    Ok(section)
}

/// Whether equal prompts have equal first tokens, if there is a length of which different numbers were computed.
fn equality(is_compared: bool, different: &[String]) -> Line {
    const WHAT: &str = "first tokens of equal prompts";
    const EXPECTED: &str = "equal alone and together";
    match (different.is_empty(), is_compared) {
        (false, _) => Line::judged(WHAT, format!("others for {}", different.join(", ")), EXPECTED, false),
        (true, true) => Line::judged(WHAT, "equal", EXPECTED, true),
        (true, false) => Line::skipped(WHAT, "no length was computed with two numbers of prompts"),
    }
}

fn about(limits: Option<Limits>, step: usize) -> String {
    let of = match limits {
        Some(limits) => format!(
            "The device multiplies {:.0} GFLOP/s at most, measured before; shares are of that.",
            limits.peak_flops / 1e9
        ),
        None => "The software device has no limit to be compared with.".to_owned(),
    };
    format!("Time until every prompt has its first token, in steps of at most {step} tokens. {of}")
}

fn found(speed: f64, flops_per_second: f64, limits: Option<Limits>) -> String {
    let share = limits.map(|limits| format!(", {:.0}% of the peak", 100.0 * flops_per_second / limits.peak_flops));
    format!("{speed:.0} tok/s{}", share.unwrap_or_default())
}

fn plot(mut series: Vec<Series>) -> Plot {
    series.retain(|series| !series.points.is_empty());
    Plot {
        title: "Prompts".into(),
        x: "tokens in each prompt".into(),
        y: "tok/s".into(),
        log_x: true,
        log_y: false,
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    #[test]
    fn a_token_is_not_compared_with_itself() {
        assert_eq!(equality(false, &[]).outcome, Outcome::Skipped);
        assert_eq!(equality(true, &[]).outcome, Outcome::Pass);
        for is_compared in [false, true] {
            assert_eq!(equality(is_compared, &["32 tokens x 4".to_owned()]).outcome, Outcome::Fail);
        }
    }
}
