//! Steps and prompts around 16,384 tokens, or around the model's own length if that is smaller: right, or refused with the limit and the
//! setting that makes it.

use std::time::{Duration, Instant};

use vllm_apple_engine::{Engine, EngineRequest};
use vllm_apple_executor::{Executor, SamplingParams};
use vllm_apple_model::LoadError;

use super::{Progress, Settings, unless_no_memory};
use crate::answers::{How, Token, answers};
use crate::report::{Line, Section};
use crate::subject::{Failure, Subject, VerifyError, Wish};

/// Where an earlier engine had its limit.
const CAP: usize = 16_384;
/// How far below it and above it is examined.
const FAR: usize = 100;
/// How far below it is examined besides.
const NEAR: usize = 20;
/// Tokens of a step where a prompt is cut.
const CHUNK: usize = 2048;
/// Prompts that tell how fast the device is.
const TRIALS: [usize; 2] = [256, 1024];

type Answer = Vec<Token>;

/// What is examined.
struct Around {
    /// The number in question.
    cap: usize,
    /// Lengths of prompts that have an answer.
    lengths: Vec<usize>,
    /// Whether sequences may be longer than the cap.
    beyond: bool,
}

impl Around {
    fn new(longest: usize) -> Self {
        let beyond = longest > CAP + FAR;
        let cap = if beyond { CAP } else { longest };
        // What a quick report has time for comes first.
        let first = if beyond { vec![cap, cap + FAR] } else { vec![cap.saturating_sub(1)] };
        let below = [cap.saturating_sub(NEAR), cap.saturating_sub(FAR)];
        let lengths = first.into_iter().chain(below).filter(|&length| length > 0).collect();
        Self { cap, lengths, beyond }
    }

    fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(1)
    }
}

/// The section's findings.
///
/// # Errors
/// The model cannot be loaded, or a step fails.
pub fn run(subject: &Subject, settings: &Settings, progress: &mut dyn Progress) -> Result<Section, VerifyError> {
    let mut around = Around::new(subject.max_model_len());
    let cap = around.cap;
    let about = match around.beyond {
        true => format!("Prompts, and steps as large as they, around {cap} tokens."),
        false => format!("Prompts, and steps as large as they, around {cap} tokens, which is the model's own length."),
    };
    let mut lines = Vec::new();
    let examined = examine(subject, settings, &mut around, &mut lines, progress);
    unless_no_memory(&mut lines, "all else", examined)?;
    Ok(Section { about, lines, ..Section::default() })
}

/// One engine after the other: a machine may have memory for one.
fn examine(
    subject: &Subject,
    settings: &Settings,
    around: &mut Around,
    lines: &mut Vec<Line>,
    progress: &mut dyn Progress,
) -> Result<(), VerifyError> {
    let (cap, total) = (around.cap, 4 + 2 * around.lengths.len() as u64);
    progress.show(0, total, "prompts that are too long");
    lines.extend(refused_prompts(subject, cap)?);
    progress.show(1, total, "speed");
    let (mut whole, refused) = whole_engine(subject, around)?;
    lines.extend(refused);
    let started = Instant::now();
    let pace = Pace::measure(subject, &mut whole)?;
    let prompt = subject.prompt("mixed")?;
    let predicted = |length: usize| pace.time(length);
    // All lengths share the computing of the longest, and are then each computed at once.
    let mut spent = started.elapsed() + predicted(around.longest());
    let (mut at_once, mut left_out) = (Vec::new(), Vec::new());
    for (at, &length) in around.lengths.iter().enumerate() {
        let what = format!("a prompt of {length} tokens in one step");
        progress.show(2 + at as u64, total, &what);
        if !settings.has_time(spent, predicted(length)) {
            left_out.push(Line::skipped(what, Settings::no_time(predicted(around.longest()) + predicted(length))));
            continue;
        }
        spent += predicted(length);
        let answer = answers(&mut whole, &[prompt.beginning(length)], How::greedy(1, "cap"))?.remove(0);
        at_once.push((what, length, answer));
    }
    drop(whole);
    let crossing = predicted(cap) + predicted(cap);
    let crosses = settings.has_time(spent, crossing);
    if !crosses {
        let what = format!("an answer that reaches {cap} tokens");
        left_out.push(Line::skipped(what, Settings::no_time(crossing)));
    }
    if crosses || !at_once.is_empty() {
        let mut engine = chunk_engine(subject, around)?;
        for (at, (what, length, answer)) in at_once.into_iter().enumerate() {
            progress.show(2 + (around.lengths.len() + at) as u64, total, &what);
            let in_chunks = answers(&mut engine, &[prompt.beginning(length)], How::greedy(1, "cap"))?.remove(0);
            lines.push(equal(what, &answer, &in_chunks, "the same bits as in chunks"));
        }
        if crosses {
            progress.show(total - 2, total, "an answer that crosses the limit");
            lines.push(across(&mut engine, &prompt.beginning(cap.saturating_sub(NEAR).max(1)), around)?);
        }
    }
    lines.extend(left_out);
    Ok(())
}

/// Prompts that leave no room for a token are refused, and the message says what the limit is.
fn refused_prompts(subject: &Subject, cap: usize) -> Result<Vec<Line>, VerifyError> {
    let mut engine = subject.engine(Wish::default(), |options| options.max_model_len = Some(cap))?;
    let prompt = subject.prompt("mixed")?;
    let lines = [cap, cap + FAR].map(|length| {
        let request = EngineRequest::new(prompt.beginning(length), SamplingParams::default());
        let what = format!("a prompt of {length} tokens where sequences may have {cap}");
        let refusal = engine.submit(request).err().map(|error| error.to_string());
        refused(what, refusal, cap, "`max_model_len`")
    });
    Ok(lines.into())
}

/// A line about a refusal, which must name its limit and the setting that makes it.
fn refused(what: String, refusal: Option<String>, limit: usize, setting: &str) -> Line {
    let expected = format!("refused, with the limit {limit} and {setting}");
    match refusal {
        None => Line::judged(what, "accepted", expected, false),
        Some(text) => {
            let names = text.contains(&limit.to_string()) && text.contains(setting);
            Line::judged(what, format!("refused: {text}"), expected, names)
        }
    }
}

type Loaded = Engine<Box<dyn Executor>>;

/// An engine that computes the longest prompt in one step. Where the device refuses such a step, what it says, and the cap is the longest.
fn whole_engine(subject: &Subject, around: &mut Around) -> Result<(Loaded, Option<Line>), VerifyError> {
    let longest = around.longest();
    let load = |step: usize| {
        subject.engine(Wish::default(), |options| {
            options.max_model_len = Some(longest + 1);
            options.max_num_seqs = 1;
            options.max_num_batched_tokens = Some(step);
        })
    };
    match load(longest) {
        // A device that was to take such a step and then failed has refused nothing.
        Err(VerifyError::Load(error)) if around.beyond && !matches!(error, LoadError::WarmUp { .. }) => {
            around.lengths.retain(|&length| length <= around.cap);
            Ok((load(around.cap)?, Some(step_refused(longest, &error))))
        }
        engine => Ok((engine?, None)),
    }
}

/// A line about the refusal of a step, which must be about its size: that of anything else is an error. Want of memory is the machine's.
fn step_refused(tokens: usize, error: &LoadError) -> Line {
    let (what, text) = (format!("a step of {tokens} tokens"), error.to_string());
    if error.is_want_of_memory() {
        return Line::skipped(what, text);
    }
    let setting = "`max_num_batched_tokens`";
    let is_about_it = text.contains(&tokens.to_string()) || text.contains(setting);
    let expected = format!("right, or refused because of {tokens} tokens or {setting}");
    Line::judged(what, format!("refused: {text}"), expected, is_about_it)
}

/// An engine that cuts prompts, and keeps what it has computed of them.
fn chunk_engine(subject: &Subject, around: &Around) -> Result<Loaded, VerifyError> {
    subject.engine(Wish { prefix_caching: true, ..Wish::default() }, |options| {
        options.max_model_len = Some(if around.beyond { around.longest() + 1 } else { around.cap });
        options.max_num_seqs = 1;
        options.max_num_batched_tokens = Some(CHUNK.min(around.cap.div_ceil(4)));
    })
}

/// An answer that reaches the cap: it ends there if the model does; otherwise the tokens behind are those that follow the same text as a
/// prompt.
fn across(engine: &mut Loaded, prompt: &[u32], around: &Around) -> Result<Line, VerifyError> {
    let cap = around.cap;
    let room = cap - prompt.len();
    if !around.beyond {
        let answer = answers(engine, &[prompt.to_vec()], How::greedy(2 * room as u32, "across"))?.remove(0);
        let what = format!("an answer to {} tokens that may be longer than the model", prompt.len());
        let (found, expected) = (format!("it has {} tokens", answer.len()), format!("it ends at {cap}, with {room}"));
        return Ok(Line::judged(what, found, expected, answer.len() == room));
    }
    let answer = answers(engine, &[prompt.to_vec()], How::greedy(2 * room as u32, "across"))?.remove(0);
    let (last, before) = match answer.split_last() {
        Some((last, before)) => (vec![last.clone()], before),
        None => return Err(VerifyError::NoToken("its answer is empty".to_owned())),
    };
    let again: Vec<u32> = prompt.iter().copied().chain(before.iter().map(|token| token.id)).collect();
    let what = format!("token {}, generated, behind {cap}", again.len() + 1);
    let as_prompt = answers(engine, &[again], How::greedy(1, "again"))?.remove(0);
    Ok(equal(what, &last, &as_prompt, "the same bits as after a prompt of the same text"))
}

fn equal(what: String, found: &Answer, expected: &Answer, words: &str) -> Line {
    let is_equal = found == expected && !found.is_empty();
    let ids = |answer: &Answer| format!("{:?}", answer.iter().map(|token| token.id).collect::<Vec<_>>());
    let found = match is_equal {
        true => "equal".to_owned(),
        false => format!("tokens {} instead of {}, or other probabilities", ids(found), ids(expected)),
    };
    Line::judged(what, found, words, is_equal)
}

/// How long a prompt takes: a part that grows with its tokens, and attention, which grows with their square.
struct Pace {
    linear: f64,
    square: f64,
}

impl Pace {
    fn measure(subject: &Subject, engine: &mut Loaded) -> Result<Self, VerifyError> {
        let prompt = subject.prompt("fox")?;
        let [short, long] = TRIALS.map(|length| length.min(engine.info().max_model_len - 1));
        // The first run touches memory and compiles kernels.
        answers(engine, &[prompt.beginning(short)], How::greedy(1, "trial"))?;
        let mut seconds = |length: usize| {
            let start = Instant::now();
            answers(engine, &[prompt.beginning(length)], How::greedy(1, "trial")).map(|_| start.elapsed().as_secs_f64())
        };
        Ok(Self::of([(short as f64, seconds(short)?), (long as f64, seconds(long)?)]))
    }

    /// The pace with which two lengths took so many seconds.
    fn of([(a, t), (b, u)]: [(f64, f64); 2]) -> Self {
        let square = if b > a { ((u / b - t / a) / (b - a)).max(0.0) } else { 0.0 };
        Self { linear: (u / b - square * b).max(0.0), square }
    }

    fn time(&self, length: usize) -> Duration {
        let length = length as f64;
        Duration::from_secs_f64(length * (self.linear + self.square * length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;
    use vllm_apple_ops::Error;

    #[test]
    fn a_long_model_is_examined_around_the_cap_and_a_short_one_around_its_own_length() {
        let long = Around::new(32_768);
        assert_eq!((long.cap, long.lengths), (16_384, vec![16_384, 16_484, 16_364, 16_284]));
        let short = Around::new(4096);
        assert_eq!((short.cap, short.lengths), (4096, vec![4095, 4076, 3996]));
        assert_eq!(Around::new(8).lengths, [7]);
        let pace = Pace::of([(10.0, 30.0), (20.0, 100.0)]);
        assert_eq!(pace.time(10), Duration::from_secs(30));
        assert_eq!(pace.time(40), Duration::from_secs(360));
    }

    #[test]
    fn a_refusal_must_name_its_limit_and_the_setting() {
        let line = |text: Option<&str>| refused("a prompt".into(), text.map(str::to_owned), 16_384, "`max_model_len`");
        assert_eq!(line(None).outcome, Outcome::Fail);
        assert_eq!(line(Some("too long")).outcome, Outcome::Fail);
        assert_eq!(line(Some("the length is 16384, see `max_model_len`")).outcome, Outcome::Pass);
    }

    #[test]
    fn a_refusal_of_a_step_must_be_about_its_size() {
        let outcome = |error: &LoadError| step_refused(16_484, error).outcome;
        let refused = |reason: &str| {
            let (device, reason) = ("metal".to_owned(), reason.to_owned());
            outcome(&Error::Unsupported { device, op: "a step", reason }.into())
        };
        assert_eq!(refused("16484 tokens, `metal_max_batch_size` allows 2048"), Outcome::Pass);
        assert_eq!(refused("set `max_num_batched_tokens` to at most 2048"), Outcome::Pass);
        assert_eq!(refused("3 > 1; use `device` cpu"), Outcome::Fail);
        let (device, purpose) = ("metal".to_owned(), "scratch".to_owned());
        assert_eq!(outcome(&Error::OutOfMemory { device, bytes: 8, purpose }.into()), Outcome::Skipped);
        assert_eq!(outcome(&LoadError::Memory("16484 tokens".to_owned())), Outcome::Skipped);
    }

    #[test]
    fn other_bits_are_not_equal() {
        let token = |logprob| vec![Token { id: 1, logprob, top: Vec::new() }];
        assert_eq!(equal(String::new(), &token(1), &token(1), "").outcome, Outcome::Pass);
        assert_eq!(equal(String::new(), &token(1), &token(2), "").outcome, Outcome::Fail);
        assert_eq!(equal(String::new(), &Vec::new(), &Vec::new(), "").outcome, Outcome::Fail);
    }
}
