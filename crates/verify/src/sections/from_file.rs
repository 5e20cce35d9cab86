//! The device's logits beside those that transformers computed in f32 (tools/reference.py): errors of each position, the most likely tokens,
//! the residual stream after each layer, and the first tokens of the answer. It knows the file's form.

mod file;
mod hidden;

use std::path::Path;

use vllm_apple_executor::{Batch, ExecutorInfo};
use vllm_apple_model::LoadOptions;
use vllm_apple_ops::{Activations, DType, WeightFormat};

use super::{Progress, unless_no_memory};
use crate::answers::{How, answers};
use crate::models::Model;
use crate::report::{Line, Plot, Series};
use crate::subject::{Subject, VerifyError, Wish};
use file::{Expected, Reference, Sizes};

/// In f32, of the logits' standard deviation: the contract's.
const F32: f64 = 1e-3;
/// Largest errors of both sides move a gap between two logits by twice as much.
const CLEAR: f64 = 2.0 * F32;

/// Lines and plots of the comparison with the file at `path`.
///
/// # Errors
/// The file is no reference of this model, the model cannot be loaded, or a step fails.
pub fn compare(
    subject: &Subject,
    path: &Path,
    progress: &mut dyn Progress,
) -> Result<(Vec<Line>, Vec<Plot>), VerifyError> {
    let config = subject.checkpoint.config();
    let sizes = Sizes { vocab: config.vocab_size, hidden: config.hidden_size, layers: config.layers.len() };
    let reference = Reference::read(path, sizes)?;
    let bound = Bound::new(subject, &reference);
    let longest = reference.prompts.iter().map(|prompt| prompt.token_ids.len() + prompt.greedy.len()).max();
    let longest = longest.unwrap_or(1);
    if longest > subject.max_model_len() {
        let max = subject.max_model_len();
        return Err(VerifyError::Input(format!(
            "the reference has sequences of {longest} tokens, but `max_model_len` is {max}: make one of shorter prompts"
        )));
    }
    let limit = |options: &mut LoadOptions| {
        options.max_model_len = Some(longest);
        options.max_num_seqs = 1;
    };
    let mut model = subject.model(limit)?;
    let count = reference.prompts.len() as u64;
    let (mut lines, mut series) = (Vec::new(), Vec::new());
    for (at, prompt) in reference.prompts.iter().enumerate() {
        progress.show(at as u64, 3 * count, &prompt.name);
        let found = logits(&mut *model, prompt)?;
        let compared = Compared::new(prompt, &found, sizes.vocab);
        lines.push(bound.line(prompt, &compared));
        let points = prompt.positions.iter().zip(&compared.errors);
        let points = points.map(|(&position, error)| (f64::from(position) + 1.0, error / bound.deviation)).collect();
        series.push(Series { name: prompt.name.clone(), points });
    }
    drop(model);
    let hidden = hidden_errors(subject, limit, &reference, progress);
    let hidden = unless_no_memory(&mut lines, "hidden states", hidden)?;
    lines.extend(hidden.as_ref().map(|hidden| hidden::line(hidden, sizes.layers, bound.exact)));
    let mut engine = subject.engine(Wish::default(), limit)?;
    for (at, prompt) in reference.prompts.iter().enumerate() {
        progress.show(2 * count + at as u64, 3 * count, &prompt.name);
        let how = How::greedy(prompt.greedy.len() as u32, "");
        let answer = answers(&mut engine, std::slice::from_ref(&prompt.token_ids), how)?.remove(0);
        lines.push(bound.first_tokens(prompt, &answer.iter().map(|token| token.id).collect::<Vec<_>>()));
    }
    let plot = Plot {
        title: "Largest error of a position's logits".into(),
        x: "tokens seen".into(),
        y: "of the logits' standard deviation".into(),
        log_x: true,
        log_y: true,
        series,
    };
    Ok((lines, [plot].into_iter().chain(hidden.map(hidden::plot)).collect()))
}

/// Those of each prompt, by its name: every op's outputs are looked at, for which a device needs more memory.
fn hidden_errors(
    subject: &Subject,
    limit: impl FnOnce(&mut LoadOptions),
    reference: &Reference,
    progress: &mut dyn Progress,
) -> Result<Vec<(String, Vec<f64>)>, VerifyError> {
    let mut model = subject.checked(limit)?;
    model.set_judging(false);
    let count = reference.prompts.len() as u64;
    let of = |(at, prompt): (usize, &Expected)| {
        progress.show(count + at as u64, 3 * count, &prompt.name);
        Ok((prompt.name.clone(), hidden::errors(&mut *model, prompt)?))
    };
    reference.prompts.iter().enumerate().map(of).collect()
}

/// The logits of the prompt's positions, in their order.
fn logits(model: &mut dyn Model, prompt: &Expected) -> Result<Vec<f32>, VerifyError> {
    let mut all = Vec::new();
    for part in parts(model.info(), prompt) {
        model.forward(&part.batch)?;
        all.extend_from_slice(model.logits());
    }
    Ok(all)
}

/// A step of a prompt, from token `start` on.
struct Part<'a> {
    batch: Batch,
    start: usize,
    /// Those of the prompt's positions that are in it, of which the first has this number.
    positions: &'a [u32],
    first: usize,
}

/// The steps that compute a prompt's positions.
fn parts<'a>(info: &ExecutorInfo, prompt: &'a Expected) -> Vec<Part<'a>> {
    let blocks: Vec<u32> = (0..prompt.token_ids.len().div_ceil(info.block_size) as u32).collect();
    let mut all = Vec::new();
    let (mut start, mut wanted) = (0, prompt.positions.as_slice());
    while !wanted.is_empty() {
        let mut end = (start + info.max_num_batched_tokens).min(prompt.token_ids.len());
        let mut rows = wanted.iter().take_while(|&&position| (position as usize) < end).count();
        if rows > info.max_logit_rows {
            rows = info.max_logit_rows;
            end = wanted[rows - 1] as usize + 1;
        }
        let mut batch = Batch::default();
        batch.clear(blocks.len());
        batch.push_request(&prompt.token_ids[start..end], start, &blocks, info.block_size, 0);
        batch.logit_rows.extend(wanted[..rows].iter().map(|&position| position - start as u32));
        let first = prompt.positions.len() - wanted.len();
        all.push(Part { batch, start, positions: &wanted[..rows], first });
        (start, wanted) = (end, &wanted[rows..]);
    }
    all
}

/// How a prompt's logits differ.
struct Compared {
    /// Largest absolute difference of each position.
    errors: Vec<f64>,
    /// Positions whose most likely token is the same.
    top1: usize,
    /// Of the five most likely tokens of all positions, how many are among the device's five.
    top5: usize,
}

impl Compared {
    fn new(prompt: &Expected, found: &[f32], vocab_size: usize) -> Self {
        let mut compared = Self { errors: Vec::new(), top1: 0, top5: 0 };
        for (expected, found) in prompt.logits.chunks(vocab_size).zip(found.chunks(vocab_size)) {
            let difference = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).abs();
            // What is no number is as wrong as can be, and `max` would pass it over.
            let largest = expected.iter().zip(found).map(difference);
            let largest = largest.fold(0.0, |a: f64, b| if b.is_nan() { f64::INFINITY } else { a.max(b) });
            compared.errors.push(largest);
            let (expected, found) = (top::<5>(expected), top::<5>(found));
            compared.top1 += usize::from(expected[0] == found[0]);
            compared.top5 += expected.iter().filter(|token| found.contains(token)).count();
        }
        compared
    }

    fn largest(&self) -> f64 {
        self.errors.iter().copied().fold(0.0, f64::max)
    }
}

/// The most likely tokens, best first; ties go to the smaller id.
fn top<const N: usize>(logits: &[f32]) -> [usize; N] {
    let mut best = [usize::MAX; N];
    for (token, logit) in logits.iter().enumerate() {
        let worse = |&at: &usize| at == usize::MAX || logits[at] < *logit;
        if let Some(place) = best.iter().position(worse) {
            best[place..].rotate_right(1);
            best[place] = token;
        }
    }
    best
}

/// How large errors may be.
struct Bound {
    /// Of all logits of the reference: the unit of errors.
    deviation: f64,
    /// The largest that is allowed, in that unit; `None`: nobody has said.
    most: Option<f64>,
    /// Where the bound comes from.
    from: String,
    /// Whether first tokens must be equal.
    exact: bool,
}

impl Bound {
    fn new(subject: &Subject, reference: &Reference) -> Self {
        let deviation = reference.deviation();
        // A checkpoint's own codes are the numbers that the reference has, too.
        let types = subject.options.types_for(subject.checkpoint.dtype());
        let bound = |most, from: String| Self { deviation, most, from, exact: false };
        let rounded = subject.options.activation_dtype;
        match (types.weights, types.activations) {
            _ if rounded != Activations::Exact => {
                bound(None, format!("no bound is stated for activations as {rounded}"))
            }
            (WeightFormat::Float(DType::F32), DType::F32) if types.kv_cache == DType::F32 => {
                Self { exact: true, ..bound(Some(F32), "the contract in float32".to_owned()) }
            }
            // What rounding to the type costs depends on the model: PyTorch shows how much, on the same prompts.
            (WeightFormat::Float(_), dtype) => match reference.error.get(dtype.name()) {
                Some(error) => bound(Some(error / deviation), format!("PyTorch's own error in {dtype}")),
                None => bound(None, format!("the reference does not say what PyTorch's own error in {dtype} is")),
            },
            (weights, _) => bound(None, format!("no bound is stated for weights in {weights}")),
        }
    }

    fn line(&self, prompt: &Expected, compared: &Compared) -> Line {
        let (largest, positions) = (compared.largest() / self.deviation, compared.errors.len());
        let worst = compared.errors.iter().position(|error| error / self.deviation == largest).unwrap_or_default();
        let found = format!(
            "largest error {largest:.2e} deviations, at position {}; top-1 {}/{positions}, top-5 {}/{}",
            prompt.positions.get(worst).copied().unwrap_or_default(),
            compared.top1,
            compared.top5,
            5 * positions
        );
        let what = format!("logits: {}", prompt.name);
        match self.most {
            Some(most) => {
                let expected = format!("at most {most:.2e}, {}", self.from);
                Line::judged(what, found, expected, positions == prompt.positions.len() && largest <= most)
            }
            None => Line::figure(what, format!("{found}; {}", self.from)),
        }
    }

    /// The answer's tokens up to the first that the reference had a doubt about: behind it, texts may be others.
    fn first_tokens(&self, prompt: &Expected, found: &[u32]) -> Line {
        let clear = prompt.gaps.iter().take_while(|&&gap| f64::from(gap) > CLEAR * self.deviation).count();
        let same = prompt.greedy.iter().zip(found).take_while(|(expected, found)| expected == found).count();
        let what = format!("first tokens: {}", prompt.name);
        let words = format!("{same} of {} equal", prompt.greedy.len());
        match self.exact {
            true => Line::judged(what, words, format!("{clear} equal, behind which two are as likely"), same >= clear),
            false => Line::figure(what, words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    fn expected(logits: Vec<f32>) -> Expected {
        Expected {
            name: "fox".into(),
            token_ids: vec![1, 2],
            positions: vec![0, 1],
            logits,
            hidden: Vec::new(),
            hidden_size: 1,
            greedy: vec![3, 4, 5],
            gaps: vec![1.0, 1.0, 1e-9],
        }
    }

    fn bound(most: f64) -> Bound {
        Bound { deviation: 2.0, most: Some(most), from: String::new(), exact: true }
    }

    #[test]
    fn errors_beyond_the_bound_fail_and_so_does_what_is_no_number() {
        let prompt = expected(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]);
        let line = |change: f32, most| {
            let mut found = prompt.logits.clone();
            found[7] += change;
            bound(most).line(&prompt, &Compared::new(&prompt, &found, 6))
        };
        assert_eq!(line(0.0, 1e-3).outcome, Outcome::Pass);
        let wrong = line(0.5, 1e-3);
        assert_eq!(wrong.outcome, Outcome::Fail);
        assert!(wrong.found.contains("2.50e-1") && wrong.found.contains("position 1"), "{}", wrong.found);
        assert_eq!(line(0.5, 0.3).outcome, Outcome::Pass);
        assert_eq!(line(f32::NAN, 0.3).outcome, Outcome::Fail);
        assert!(line(2.0, 10.0).found.contains("top-1 1/2, top-5 10/10"), "{}", line(2.0, 10.0).found);
        let short = Compared::new(&prompt, &prompt.logits[..6], 6);
        assert_eq!(bound(1.0).line(&prompt, &short).outcome, Outcome::Fail);
    }

    #[test]
    fn first_tokens_count_up_to_a_near_tie() {
        let prompt = expected(Vec::new());
        let outcome = |found: &[u32]| bound(1.0).first_tokens(&prompt, found).outcome;
        assert_eq!(outcome(&[3, 4, 5]), Outcome::Pass);
        assert_eq!(outcome(&[3, 4, 9]), Outcome::Pass);
        assert_eq!(outcome(&[3, 9, 5]), Outcome::Fail);
        assert_eq!(outcome(&[]), Outcome::Fail);
    }

    #[test]
    fn the_most_likely_come_first() {
        assert_eq!(top::<3>(&[1.0, 5.0, 3.0, 5.0]), [1, 3, 2]);
    }
}
