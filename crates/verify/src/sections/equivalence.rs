//! Logits of prompts beside those of the reference, for prompts of the user's kinds and lengths.

use std::collections::BTreeSet;
use std::time::Instant;

use vllm_apple_executor::ExecutorError;
use vllm_apple_model::LoadOptions;
use vllm_apple_ops::{Activations, DType};

use super::{Progress, Settings, from_file, unless_no_memory};
use crate::models::Model;
use crate::report::{Line, Section};
use crate::steps::{Chunk, Steps};
use crate::subject::{Subject, VerifyError};

const LENGTHS: [usize; 4] = [100, 500, 1000, 4000];
/// Tokens that follow a prompt.
const TOKENS: usize = 5;
/// Tokens of a step, and how many of the last ones have logits: few positions magnify roundoffs, and the bound is the reference's own largest
/// error, which only some of them have.
const CHUNK: usize = 256;
const LOGITS: usize = 16;
/// Seconds for the device and the references.
const QUICK: f64 = 40.0;
const FULL: f64 = 7200.0;
/// Seconds for the shortest prompts in any case: one of each kind tells whether what they say makes a difference.
const SHORTEST: f64 = 120.0;
/// The largest error of float32, in standard deviations of the logits.
const OF_F32: f64 = 1e-3;
/// How much larger than the reference's own in the same types the largest error may be: both are the largest of many that are distributed alike,
/// and which values are rounded up or down differs.
const OF_TYPES: f64 = 2.0;

/// What a model says of a prompt.
struct Computed {
    /// Positions with their logits.
    rows: Vec<(usize, Vec<f32>)>,
    /// The tokens that followed.
    tokens: Vec<u32>,
}

/// Runs a prompt and what follows: the likeliest tokens, or `given` ones.
fn compute(model: &mut dyn Model, prompt: &[u32], given: Option<&[u32]>) -> Result<Computed, ExecutorError> {
    let (vocab, block_size) = (model.info().vocab_size, model.info().block_size);
    let (rows_at_once, chunk) = (model.info().max_logit_rows, CHUNK.min(model.info().max_num_batched_tokens));
    let mut steps = Steps::new(vec![[prompt, &[0; TOKENS]].concat()], block_size);
    let mut computed = Computed { rows: Vec::new(), tokens: Vec::new() };
    let mut run = |steps: &Steps, tokens: std::ops::Range<usize>| -> Result<u32, ExecutorError> {
        let logits = LOGITS.min(tokens.len()).min(rows_at_once);
        model.forward(&steps.batch(&[Chunk { request: 0, tokens: tokens.clone(), logits }]))?;
        let rows = model.logits().chunks_exact(vocab).map(<[f32]>::to_vec);
        computed.rows.extend((tokens.end - logits..tokens.end).zip(rows));
        Ok(computed.rows.last().map_or(0, |(_, row)| likeliest(row)))
    };
    let mut next = 0;
    for start in (0..prompt.len()).step_by(chunk) {
        next = run(&steps, start..(start + chunk).min(prompt.len()))?;
    }
    for i in 0..TOKENS {
        let token = given.map_or(next, |given| given[i]);
        computed.tokens.push(token);
        steps.set_token(0, prompt.len() + i, token);
        next = run(&steps, prompt.len() + i..prompt.len() + i + 1)?;
    }
    Ok(computed)
}

fn likeliest(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a))).unwrap_or(0) as u32
}

/// The ids of the five likeliest.
fn top_five(row: &[f32]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..row.len()).collect();
    let by_logit = |&a: &usize, &b: &usize| row[b].total_cmp(&row[a]).then(a.cmp(&b));
    let count = ids.len().min(5);
    if count < ids.len() {
        ids.select_nth_unstable_by(count, by_logit);
        ids.truncate(count);
    }
    ids.sort_unstable();
    ids
}

/// How far some logits are from the reference's.
#[derive(Debug, Clone, Default)]
struct Distance {
    /// In standard deviations of a position's logits.
    largest: f64,
    positions: usize,
    same_first: usize,
    same_five: usize,
    /// Of positions where another token is the likeliest, by how much the reference's leads.
    leads: Vec<f64>,
}

impl Distance {
    /// Positions where another token is the likeliest although the reference's leads by more than such errors explain.
    fn wrong(&self, allowed: f64) -> usize {
        self.leads.iter().filter(|&&lead| lead > 2.0 * allowed).count()
    }
}

impl Computed {
    /// Which logits they are, in words.
    fn extent(&self) -> String {
        let positions: Vec<usize> = self.rows.iter().map(|(position, _)| *position).collect();
        let widths: BTreeSet<usize> = self.rows.iter().map(|(_, row)| row.len()).collect();
        format!("{widths:?} logits at the positions {positions:?}")
    }
}

/// # Errors
/// They are not of the same positions, or not as many: what one of them lacks would not be compared.
fn distance(got: &Computed, want: &Computed) -> Result<Distance, VerifyError> {
    let (found, expected) = (got.extent(), want.extent());
    if found != expected || got.rows.is_empty() {
        return Err(VerifyError::Input(format!("the model has {found}, the reference {expected}")));
    }
    let mut all = Distance::default();
    for ((_, got), (_, want)) in got.rows.iter().zip(&want.rows) {
        let mean = want.iter().map(|&v| f64::from(v)).sum::<f64>() / want.len() as f64;
        let variance = want.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / want.len() as f64;
        let deviation = variance.sqrt().max(f64::MIN_POSITIVE);
        let of = |(&got, &want): (&f32, &f32)| (f64::from(got) - f64::from(want)).abs() / deviation;
        // What is no number is infinitely far.
        let error = got.iter().zip(want).map(of).fold(0.0, |m, e| if e.is_nan() { f64::INFINITY } else { e.max(m) });
        let (first, expected) = (likeliest(got), likeliest(want));
        if first != expected {
            all.leads.push(f64::from(want[expected as usize] - want[first as usize]) / deviation);
        }
        all.largest = all.largest.max(error);
        all.positions += 1;
        all.same_first += usize::from(first == expected);
        all.same_five += usize::from(top_five(got) == top_five(want));
    }
    Ok(all)
}

/// The bound with that of another prompt, on which the reference in the same types is so far off. What is beyond a type's range bounds nothing:
/// no number shall pass because the reference has none either.
fn widened(allowed: f64, own: f64) -> f64 {
    if own.is_finite() { allowed.max(OF_TYPES * own) } else { allowed }
}

/// A prompt's turn.
struct Case {
    name: String,
    tokens: Vec<u32>,
}

fn cases(subject: &Subject, longest: usize) -> Vec<Case> {
    let room = longest.saturating_sub(TOKENS);
    let mut lengths = LENGTHS.map(|len| len.min(room)).to_vec();
    lengths.dedup();
    let case = |len: usize| {
        subject.prompts.iter().map(move |prompt| Case {
            name: format!("{}, {len} tokens", prompt.name),
            tokens: prompt.token_ids.iter().copied().cycle().take(len).collect(),
        })
    };
    lengths.into_iter().flat_map(case).collect()
}

/// How a device compares with the exact reference on a prompt.
struct Compared {
    distance: Distance,
    /// Of the first tokens that follow.
    same_tokens: usize,
    want: Computed,
}

/// What is left of the time: models take turns, of which each has an equal part.
struct Budget {
    seconds: f64,
    /// For the shortest prompts.
    of_shortest: f64,
    turns: u32,
}

impl Budget {
    /// What `compute` makes of the first cases, as many as a turn has time for.
    fn turn<T>(
        &mut self,
        cases: &[Case],
        mut compute: impl FnMut(usize, &Case) -> Result<T, VerifyError>,
    ) -> Result<Vec<T>, VerifyError> {
        let (begin, mut tokens, mut all) = (Instant::now(), 0, Vec::new());
        let part = 1.0 / f64::from(self.turns);
        for (at, case) in cases.iter().enumerate() {
            let (len, spent) = (case.tokens.len(), begin.elapsed().as_secs_f64());
            // Attention makes long prompts dearer than their tokens.
            let expected = spent / f64::from(tokens.max(1) as u32) * len as f64 * 1.5;
            let is_shortest = len == cases[0].tokens.len();
            let seconds = if is_shortest { self.seconds.max(self.of_shortest) } else { self.seconds };
            if tokens > 0 && spent + expected > part * seconds {
                break;
            }
            all.push(compute(at, case)?);
            tokens += len;
        }
        let spent = begin.elapsed().as_secs_f64();
        (self.seconds, self.of_shortest, self.turns) = (self.seconds - spent, self.of_shortest - spent, self.turns - 1);
        Ok(all)
    }
}

/// The section.
pub fn run(subject: &Subject, settings: &Settings, progress: &mut dyn Progress) -> Result<Section, VerifyError> {
    // First, so that a file that is none is noticed at once.
    let of_file = settings.reference.as_deref().map(|path| from_file::compare(subject, path, progress)).transpose()?;
    let (mut lines, plots) = of_file.unwrap_or_default();
    let compared = compare(subject, settings, progress);
    let compared = unless_no_memory(&mut lines, "logits beside those of the ops' formulas", compared)?;
    lines.extend(compared.unwrap_or_default());
    Ok(Section { about: about(subject), lines, plots, ..Section::default() })
}

/// Whether nothing is rounded to less than float32. Eight bits of an activation are no less of a rounding than a type: where it lies in the middle
/// between two of them, the last bit of a sum decides which it becomes, and from there on the device and a reference that rounds as it does differ
/// by as much as rounding costs.
fn is_exact(subject: &Subject) -> bool {
    let types = subject.types();
    let dtypes = [types.activations, types.kv_cache, types.weights.input()];
    dtypes.iter().all(|&dtype| dtype == DType::F32) && subject.options.activation_dtype == Activations::Exact
}

/// A line for each prompt. The device, the exact reference and the one that rounds as the device does run one after the other: a machine may have memory
/// for one of them.
fn compare(subject: &Subject, settings: &Settings, progress: &mut dyn Progress) -> Result<Vec<Line>, VerifyError> {
    let longest = subject.max_model_len().min(LENGTHS[LENGTHS.len() - 1] + TOKENS);
    let limit = |options: &mut LoadOptions| {
        options.max_model_len = Some(longest);
        options.max_num_seqs = 1;
        options.max_num_batched_tokens = Some(CHUNK);
    };
    let is_exact = is_exact(subject);
    let seconds = if settings.full { FULL } else { QUICK };
    let mut budget = Budget { seconds, of_shortest: SHORTEST, turns: if is_exact { 2 } else { 3 } };
    let cases = cases(subject, longest);
    let total = u64::from(budget.turns) * cases.len() as u64;
    let mut show = |turn: usize, at: usize, case: &Case| {
        progress.show((turn * cases.len() + at) as u64, total, &case.name);
    };
    let mut model = subject.model(limit)?;
    let mut got = budget.turn(&cases, |at, case| {
        show(0, at, case);
        Ok(Some(compute(&mut *model, &case.tokens, None)?))
    })?;
    drop(model);
    let mut reference = subject.exact_reference(limit)?;
    let mut compared = budget.turn(&cases[..got.len()], |at, case| {
        show(1, at, case);
        // Logits of long prompts take much: they go as soon as they are compared.
        let got = got[at].take().expect("every case comes once");
        let want = compute(&mut reference, &case.tokens, Some(&got.tokens))?;
        Compared::new(&got, want)
    })?;
    drop(reference);
    let mut allowed = OF_F32;
    if !is_exact {
        allowed = 0.0;
        let mut reference = subject.reference(limit)?;
        let bounds = budget.turn(&cases[..compared.len()], |at, case| {
            show(2, at, case);
            let want = &compared[at].want;
            let own = compute(&mut reference, &case.tokens, Some(&want.tokens))?;
            distance(&own, want)
        })?;
        compared.truncate(bounds.len());
        allowed = bounds.iter().fold(allowed, |allowed, own| widened(allowed, own.largest));
    }
    let mut lines: Vec<Line> =
        cases.iter().zip(&compared).map(|(case, compared)| compared.line(case, allowed)).collect();
    let skipped: Vec<&str> = cases[compared.len()..].iter().map(|case| case.name.as_str()).collect();
    if !skipped.is_empty() {
        let names = skipped.join("; ");
        let why = format!(
            "the reference would need longer than {seconds:.0} s for them; a full report has more time: {names}"
        );
        lines.push(Line::skipped(format!("{} longer prompts", skipped.len()), why));
    }
    Ok(lines)
}

impl Compared {
    fn new(got: &Computed, want: Computed) -> Result<Self, VerifyError> {
        let distance = distance(got, &want)?;
        let first = want.rows[want.rows.len() - TOKENS - 1..].iter().map(|(_, row)| likeliest(row));
        let same_tokens = first.zip(&got.tokens).filter(|(want, got)| want == *got).count();
        Ok(Self { distance, same_tokens, want })
    }

    fn line(&self, case: &Case, allowed: f64) -> Line {
        let Distance { largest, positions, same_first, same_five, .. } = self.distance;
        let found = format!(
            "largest error {largest:.1e} deviations; likeliest token the same at {same_first} of {positions} positions, the five \
             likeliest at {same_five}; {} of the first {TOKENS} tokens the same",
            self.same_tokens
        );
        let expected =
            format!("at most {allowed:.1e}, and the same token where the reference's lead is larger than twice that");
        let passes = largest <= allowed && self.distance.wrong(allowed) == 0;
        Line::judged(&case.name, found, expected, passes)
    }
}

fn about(subject: &Subject) -> String {
    let weights = subject.types().weights;
    let bound = if is_exact(subject) {
        "Largest errors may be a thousandth of a standard deviation of the position's logits.".to_owned()
    } else {
        format!(
            "With {weights} weights, largest errors may be {OF_TYPES} times what rounding to these types costs the reference itself: \
             it also runs with them."
        )
    };
    format!(
        "Logits at the ends of chunks and of the first tokens that follow, beside those of the ops' own formulas in float32 on the host. {bound}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_of_other_positions_or_of_fewer_are_not_compared() {
        let computed = |positions: &[usize], width: usize| Computed {
            rows: positions.iter().map(|&position| (position, (0..width).map(|i| i as f32).collect())).collect(),
            tokens: Vec::new(),
        };
        let want = computed(&[14, 15], 4);
        assert_eq!(distance(&want, &computed(&[14, 15], 4)).unwrap().largest, 0.0);
        for got in [computed(&[14], 4), computed(&[13, 14], 4), computed(&[14, 15], 3), computed(&[], 4)] {
            let error = distance(&got, &want).unwrap_err().to_string();
            assert!(
                error.contains("the model has") && error.contains("{4} logits at the positions [14, 15]"),
                "{error}"
            );
        }
    }

    #[test]
    fn another_token_is_wrong_where_the_reference_leads() {
        let computed = |row: [f32; 3]| Computed { rows: vec![(0, row.to_vec())], tokens: Vec::new() };
        let found = distance(&computed([1.0, 2.0, 0.0]), &computed([2.0, 1.0, 0.0])).unwrap();
        // A lead of 1, and a standard deviation of 0.82.
        assert_eq!([found.wrong(0.5), found.wrong(0.7), found.same_first], [1, 0, 0]);
    }

    #[test]
    fn turns_share_the_time_and_the_shortest_have_more() {
        let case = |len: usize| Case { name: String::new(), tokens: vec![0; len] };
        let cases = [case(1), case(1), case(100), case(100)];
        let run = |seconds: f64, of_shortest: f64| {
            let mut budget = Budget { seconds, of_shortest, turns: 2 };
            let compute = |at: usize, _: &Case| {
                std::thread::sleep(std::time::Duration::from_millis(2));
                Ok(at)
            };
            let all = budget.turn(&cases, compute).unwrap();
            assert!(budget.turns == 1 && budget.seconds < seconds && budget.of_shortest < of_shortest);
            all
        };
        assert_eq!(run(1000.0, 1000.0), [0, 1, 2, 3]);
        assert_eq!(run(0.1, 1000.0), [0, 1], "a hundred times the tokens would take 0.3 s");
        assert_eq!(run(0.0, 0.0), [0], "one is computed in any case");
    }

    #[test]
    fn what_has_no_number_widens_no_bound() {
        assert_eq!(widened(0.0, f64::INFINITY), 0.0);
        assert_eq!(widened(0.5, f64::INFINITY), 0.5);
        assert_eq!(widened(0.5, 0.1), 0.5);
        assert_eq!(widened(0.5, 0.3), 0.6);
    }
}
