//! How decoding slows down as sequences get longer, beside what the bytes that a step reads predict.

use std::time::{Duration, Instant};

use vllm_apple_device::Limits;

use super::{Progress, Settings};
use crate::report::{Line, Plot, Section, Series};
use crate::size::up_to;
use crate::speed::{decode_cost, median, prefill_cost, timed};
use crate::subject::{Subject, VerifyError, Wish};

const CONTEXTS: [usize; 7] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768];
const BATCH: usize = 8;
/// Tokens that each request generates, of which the first is not timed.
const OUTPUT: u32 = 17;
/// How long each context is timed: other programs take less than half of it, so that the median is not theirs.
const LEAST: Duration = Duration::from_millis(500);

/// Twice the tokens are at most twice the bytes and the operations of a step, so a step takes at most twice as long; a tenth more is what
/// clocks and other programs change from one median to the next.
const DOUBLE: f64 = 2.0 * 1.1;

/// What was measured at a context.
struct Measured {
    context: usize,
    step: f64,
}

/// The section's findings.
///
/// # Errors
/// The model cannot be loaded, or a step fails.
pub fn run(subject: &Subject, settings: &Settings, progress: &mut dyn Progress) -> Result<Section, VerifyError> {
    let limits = subject.limits()?;
    let max = subject.max_model_len();
    let longest = CONTEXTS.into_iter().filter(|context| context + OUTPUT as usize <= max).max();
    let Some(longest) = longest else {
        let why = format!("the model's length is {max} tokens");
        let lines = vec![Line::skipped(format!("{} tokens", CONTEXTS[0]), why)];
        return Ok(Section { about: about(limits), lines, ..Section::default() });
    };
    // Each context continues the one before, whose keys and values are in the cache.
    let mut engine = subject.engine(Wish { prefix_caching: true, ..Wish::default() }, |options| {
        up_to(longest + OUTPUT as usize, options);
        options.max_num_seqs = BATCH;
        // The step of 8 requests alone is timed: the rest of a prompt must fit beside.
        options.max_num_batched_tokens = options.max_num_batched_tokens.map(|tokens| tokens.max(BATCH * 32));
    })?;
    // What the device prepares at first is not the contexts' time.
    let start = Instant::now();
    let room = engine.info().num_blocks * engine.info().block_size;
    let most = engine.info().max_model_len;
    let mut section = Section { about: about(limits), ..Section::default() };
    let (mut measured, mut pace): (Vec<Measured>, Option<f64>) = (Vec::new(), None);
    let (mut cached, types) = (0, subject.types());
    // The least time of a step.
    let predicted = |context: usize| {
        let bytes = decode_cost(subject.checkpoint.config(), types, BATCH, context).bytes();
        limits.map(|limits| bytes / limits.read_bandwidth)
    };
    for (at, context) in CONTEXTS.into_iter().enumerate() {
        let what = format!("{context} tokens x {BATCH}");
        progress.show(at as u64, CONTEXTS.len() as u64, &what);
        let flops = |length: usize| prefill_cost(subject.checkpoint.config(), types, BATCH, length).flops;
        let added = flops(context) - flops(cached);
        let part = pace.map_or(Duration::ZERO, |pace| Duration::from_secs_f64(added / pace));
        let why = match () {
            () if context > longest => Some(format!("the model's length is {max} tokens")),
            () if context + OUTPUT as usize > most => Some(format!("memory has room for sequences of {most} tokens")),
            () if BATCH * (context + OUTPUT as usize) > room => Some(format!("the KV cache holds {room} tokens")),
            () if !settings.has_time(start.elapsed(), part) => Some(Settings::no_time(part)),
            () => None,
        };
        if let Some(why) = why {
            section.lines.push(Line::skipped(what, why));
            continue;
        }
        let prompts = (0..BATCH).map(|r| prompt(subject, r, context)).collect::<Result<Vec<_>, _>>()?;
        let prefill = timed(&mut engine, prompts.clone(), 1)?.prefill.as_secs_f64();
        pace = Some(added / prefill);
        cached = context;
        let mut steps = Vec::new();
        while steps.iter().sum::<Duration>() < LEAST {
            let more = timed(&mut engine, prompts.clone(), OUTPUT)?.decode_steps;
            if more.is_empty() {
                break;
            }
            steps.extend(more);
        }
        if steps.is_empty() {
            section.lines.push(Line::skipped(what, "the requests were not computed together"));
            continue;
        }
        let step = median(steps).as_secs_f64();
        section.lines.push(Line::figure(what, found(step, predicted(context))));
        measured.push(Measured { context, step });
    }
    section.lines.push(growth(&measured));
    section.plots.push(plot(&measured, predicted));
    Ok(section)
}

fn about(limits: Option<Limits>) -> String {
    let of = match limits {
        Some(limits) => format!(
            "The device reads {:.1} GB/s at most, measured before; the line is the time of reading the weights and all keys and values once.",
            limits.read_bandwidth / 1e9
        ),
        None => "The software device has no bandwidth to be compared with.".to_owned(),
    };
    format!("Steps of {BATCH} requests that have so many tokens in the cache. {of}")
}

/// A text of its own for each request: none reads another's keys.
fn prompt(subject: &Subject, request: usize, len: usize) -> Result<Vec<u32>, VerifyError> {
    let ids = &subject.prompt_at(request)?.token_ids;
    if ids.is_empty() {
        return Err(VerifyError::Input("a prompt has no tokens".to_owned()));
    }
    Ok(ids.iter().copied().cycle().skip(request * 97 % ids.len()).take(len).collect())
}

fn found(step: f64, predicted: Option<f64>) -> String {
    let share = predicted.map(|least| format!(", {:.0}% of the bytes' line", 100.0 * least / step));
    format!("{:.1} tok/s, {:.2} ms per step{}", BATCH as f64 / step, step * 1e3, share.unwrap_or_default())
}

/// Whether any doubling of the context costs more than twice the time.
fn growth(measured: &[Measured]) -> Line {
    const WHAT: &str = "largest growth of a step's time";
    let pairs = measured.windows(2).map(|pair| (pair[1].context, pair[1].step / pair[0].step));
    let Some((context, worst)) = pairs.max_by(|a, b| a.1.total_cmp(&b.1)) else {
        return Line::skipped(WHAT, "no context was measured beside its half");
    };
    let found = format!("x {worst:.2}, at {context} tokens");
    let expected = format!("at most x {DOUBLE:.1} for twice the tokens");
    Line::judged(WHAT, found, expected, worst <= DOUBLE)
}

fn plot(measured: &[Measured], predicted: impl Fn(usize) -> Option<f64>) -> Plot {
    let points = |time: &dyn Fn(&Measured) -> Option<f64>| -> Vec<_> {
        measured.iter().filter_map(|m| Some((m.context as f64, BATCH as f64 / time(m)?))).collect()
    };
    let mut series = vec![Series { name: "measured".into(), points: points(&|m| Some(m.step)) }];
    let line = points(&|m| predicted(m.context));
    if !line.is_empty() {
        series.push(Series { name: "what the bytes predict".into(), points: line });
    }
    Plot {
        title: "Decoding".into(),
        x: "tokens in the cache of each request".into(),
        y: "tok/s".into(),
        log_x: true,
        log_y: true,
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    #[test]
    fn a_step_that_grows_faster_than_its_context_fails() {
        let measured = |steps: [f64; 3]| {
            let contexts = [512, 1024, 2048].into_iter().zip(steps);
            growth(&contexts.map(|(context, step)| Measured { context, step }).collect::<Vec<_>>())
        };
        assert_eq!(measured([1.0, 1.5, 3.0]).outcome, Outcome::Pass);
        let knee = measured([1.0, 1.1, 3.0]);
        assert_eq!(knee.outcome, Outcome::Fail);
        assert!(knee.found.contains("2048"), "{}", knee.found);
        assert_eq!(growth(&[]).outcome, Outcome::Skipped);
    }
}
