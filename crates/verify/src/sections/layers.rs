//! The same steps op by op: each op beside its reference, the same bits when run again, the same bits alone and together. What is wrong is
//! named by the first op that is.

use std::collections::HashMap;

use vllm_apple_executor::ExecutorError;
use vllm_apple_model::LoadOptions;
use vllm_apple_ops::{
    add_rms_norm, embedding, gated_activation, gated_matmul, gather_rows, grouped_matmul, matmul, paged_attention,
    permute_columns, qk_norm, rms_norm, rope, rope_kv_write, topk_softmax,
};

use super::{Progress, Settings, unless_no_memory};
use crate::checked::{Finding, OpRecord, Place};
use crate::models::{CheckedModel, Model};
use crate::report::{Line, Plot, Section, Series};
use crate::steps::{Chunk, Steps};
use crate::subject::{Subject, VerifyError};

/// Steps, as several requests share them and as each is alone.
pub(crate) struct Plan {
    pub steps: Steps,
    pub together: Vec<Vec<Chunk>>,
    pub alone: Vec<Vec<Chunk>>,
}

impl Plan {
    /// A long prompt in two chunks, a middle one, decodes beside them, a prompt of one token, and decodes at last: all of tokens
    /// of `prompts`, in sequences of up to `longest` tokens.
    pub fn new(prompts: &[Vec<u32>], longest: usize, block_size: usize) -> Self {
        // Past 512 positions, where devices begin to divide sequences.
        let long = longest.saturating_sub(3).clamp(4, 600);
        let (half, middle) = (long * 5 / 9, (long / 9).max(2));
        let lengths = [long + 3, middle + 3, 4];
        let request = |(i, &len): (usize, &usize)| {
            let prompt = &prompts[i % prompts.len()];
            prompt.iter().copied().cycle().skip(i).take(len).collect()
        };
        let steps = Steps::new(lengths.iter().enumerate().map(request).collect(), block_size);
        let together = vec![
            vec![Chunk::new(0, 0..half), Chunk::new(1, 0..middle)],
            vec![Chunk::new(1, middle..middle + 1), Chunk::new(0, half..long), Chunk::new(2, 0..1)],
            vec![Chunk::new(2, 1..2), Chunk::new(0, long..long + 1), Chunk::new(1, middle + 1..middle + 2)],
        ];
        let alone = [long + 1, middle + 2, 2].into_iter().enumerate().map(|(r, len)| vec![Chunk::new(r, 0..len)]);
        Self { steps, together, alone: alone.collect() }
    }

    /// What a model needs to run it.
    pub fn limit(&self, options: &mut LoadOptions) {
        let longest = (0..3).map(|request| self.steps.len_of(request)).max().unwrap_or(0);
        options.max_model_len = Some(longest);
        options.max_num_batched_tokens = Some(longest + 8);
        // Requests' blocks lie as far apart as if all were the longest.
        options.max_num_seqs = 3 + 1;
    }
}

/// The first op that something is wrong with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Culprit {
    pub op: &'static str,
    pub text: String,
}

/// What examining a plan's steps brought.
pub(crate) struct Examined {
    /// Of each step that requests share.
    pub records: Vec<Vec<OpRecord>>,
    pub beyond_tolerance: Option<Culprit>,
    pub changing: Option<Culprit>,
    pub dependent: Option<Culprit>,
}

/// Runs the plan's steps: together, again, and alone.
pub(crate) fn examine(
    model: &mut dyn CheckedModel,
    plan: &Plan,
    progress: &mut dyn Progress,
) -> Result<Examined, ExecutorError> {
    let total = (2 * plan.together.len() + plan.alone.len()) as u64;
    let mut done = 0;
    let mut run = |model: &mut dyn CheckedModel, steps: &[Vec<Chunk>], judging| {
        model.set_judging(judging);
        let step = |chunks: &Vec<Chunk>| {
            model.forward(&plan.steps.batch(chunks))?;
            done += 1;
            progress.show(done, total, "steps op by op");
            Ok(model.take_log())
        };
        steps.iter().map(step).collect::<Result<Vec<_>, ExecutorError>>()
    };
    let records = run(model, &plan.together, true)?;
    let again = run(model, &plan.together, false)?;
    let alone = run(model, &plan.alone, false)?;
    let beyond_tolerance = plan.together.iter().zip(&records).find_map(|(chunks, log)| beyond(chunks, log));
    let changing = records.iter().zip(&again).flat_map(|(first, again)| first.iter().zip(again));
    let changing = changing.into_iter().find(|(first, again)| first.bits != again.bits).map(|(first, _)| {
        let text = format!("{first} gives other bits when the same step runs again");
        Culprit { op: first.op, text }
    });
    let dependent = dependent(plan, &records, &alone);
    Ok(Examined { records, beyond_tolerance, changing, dependent })
}

/// The request and the position that each row of an op belongs to.
fn places(chunks: &[Chunk], record: &OpRecord) -> Vec<(usize, usize)> {
    let all = Steps::places(chunks);
    if record.layer.is_none() && record.op != embedding::NAME {
        let last = |chunk: &Chunk| {
            let request = chunk.request;
            (chunk.tokens.end - chunk.logits..chunk.tokens.end).map(move |position| (request, position))
        };
        return chunks.iter().flat_map(last).collect();
    }
    // Experts: several rows for a token.
    let each = (record.bits.len() / all.len()).max(1);
    all.into_iter().flat_map(|place| std::iter::repeat_n(place, each)).collect()
}

fn beyond(chunks: &[Chunk], log: &[OpRecord]) -> Option<Culprit> {
    let is_beyond = |record: &&OpRecord| record.finding.as_ref().is_some_and(|finding| finding.error() > 1.0);
    let record = log.iter().find(is_beyond)?;
    let finding = record.finding.as_ref()?;
    let Finding { row, place, judged } = finding;
    let (request, position) = places(chunks, record)[*row];
    let text = format!(
        "{record}: request {request}, position {position}, {place}: {} instead of {}, {:.3e} times the tolerance; {}",
        judged.got,
        judged.want,
        finding.error(),
        // The formula itself gives no number, so it was given none.
        if judged.want.is_finite() {
            causes(record.op, *place)
        } else {
            "look at: the weights, which may be damaged or beyond the type's range"
        }
    );
    Some(Culprit { op: record.op, text })
}

/// Where an op's rows have other bits alone than together.
fn dependent(plan: &Plan, together: &[Vec<OpRecord>], alone: &[Vec<OpRecord>]) -> Option<Culprit> {
    type Key = (usize, usize, usize);
    let bits = |steps: &[Vec<Chunk>], logs: &[Vec<OpRecord>]| -> HashMap<Key, Vec<u64>> {
        let mut bits: HashMap<Key, Vec<u64>> = HashMap::new();
        for (chunks, log) in steps.iter().zip(logs) {
            for (index, record) in log.iter().enumerate() {
                for ((request, position), &row) in places(chunks, record).into_iter().zip(&record.bits) {
                    bits.entry((index, request, position)).or_default().push(row);
                }
            }
        }
        bits
    };
    let together_bits = bits(&plan.together, together);
    let alone_bits = bits(&plan.alone, alone);
    let differs = |key: &&Key| together_bits.get(*key).is_some_and(|bits| *bits != alone_bits[*key]);
    let (index, request, position) = *alone_bits.keys().filter(differs).min()?;
    let record = &alone[request][index];
    let text = format!(
        "{record}: request {request}, position {position}: other bits in a step with others, or in chunks, than alone"
    );
    Some(Culprit { op: record.op, text })
}

/// What usually is behind it.
fn causes(op: &str, place: Place) -> &'static str {
    match (op, place) {
        (rope_kv_write::NAME, Place::Value(_)) => {
            "look at: the slot that it is written to, the order of heads, rounding"
        }
        (rope_kv_write::NAME | rope::NAME, _) => {
            "look at: the position, which elements are a pair, the sign of the sine, the table, and of keys the slot"
        }
        (paged_attention::NAME, _) => {
            "look at: the mask, the window, the scale, the block table, which key head belongs to a query head, how parts are joined"
        }
        (matmul::NAME | grouped_matmul::NAME, _) => {
            "look at: the bias, the end of K, the edges of tiles, the type of sums, of experts the ids"
        }
        (gated_matmul::NAME | gated_activation::NAME, _) => {
            "look at: the order of gate and up, the activation, rounding"
        }
        (rms_norm::NAME | add_rms_norm::NAME | qk_norm::NAME, _) => "look at: epsilon, the weight, the type of sums",
        (embedding::NAME, _) => "look at: the ids, the factor, the table's type",
        (topk_softmax::NAME, _) => "look at: ties, the order of experts, whether weights are made to add up to 1",
        (gather_rows::NAME, _) => "look at: the indices",
        (permute_columns::NAME, _) => "look at: the order of columns",
        _ => "look at: the order of its inputs",
    }
}

/// What the line about hidden states is about.
const RESIDUALS: &str = "residual stream, from that of the reference in float32, relative";

/// The section.
pub fn run(subject: &Subject, _: &Settings, progress: &mut dyn Progress) -> Result<Section, VerifyError> {
    let prompts: Vec<Vec<u32>> = subject.prompts.iter().map(|prompt| prompt.token_ids.clone()).collect();
    let longest = subject.max_model_len();
    let plan = Plan::new(&prompts, longest, subject.options.block_size);
    let mut model = subject.checked(|options| plan.limit(options))?;
    let examined = examine(&mut *model, &plan, progress)?;
    drop(model);
    let mut skipped = Vec::new();
    let layers = unless_no_memory(&mut skipped, RESIDUALS, hidden_errors(subject, &plan, &examined))?;
    let mut section = section(&examined, &layers.unwrap_or_default());
    section.lines.extend(skipped);
    Ok(section)
}

/// How far the residual stream is from that of the reference in f32 after each layer, relative to its size.
fn hidden_errors(subject: &Subject, plan: &Plan, examined: &Examined) -> Result<Vec<f64>, VerifyError> {
    let mut reference = subject.exact_reference(|options| plan.limit(options))?;
    reference.backend_mut().keep_residuals();
    let mut sums: Vec<[f64; 2]> = Vec::new();
    for (chunks, log) in plan.together.iter().zip(&examined.records) {
        Model::forward(&mut reference, &plan.steps.batch(chunks))?;
        let wanted = reference.backend_mut().take_residuals();
        let got = log.iter().filter(|record| !record.residual.is_empty());
        for (layer, (record, want)) in got.zip(wanted.iter().skip(1).step_by(2)).enumerate() {
            sums.resize(sums.len().max(layer + 1), [0.0; 2]);
            for (&got, &want) in record.residual.iter().zip(want) {
                sums[layer][0] += (f64::from(got) - f64::from(want)).powi(2);
                sums[layer][1] += f64::from(want).powi(2);
            }
        }
    }
    Ok(sums.into_iter().map(relative).collect())
}

/// What is no number is as wrong as can be, and no plot shows it as nothing.
pub(crate) fn relative([error, size]: [f64; 2]) -> f64 {
    match error {
        0.0 => 0.0,
        _ if (error / size).is_nan() => f64::INFINITY,
        _ => (error / size).sqrt(),
    }
}

fn section(examined: &Examined, layers: &[f64]) -> Section {
    let records = || examined.records.iter().flatten();
    let ops = records().count();
    let verdict = |what: &str, culprit: &Option<Culprit>, good: &str| {
        let found = culprit.as_ref().map_or(good.to_owned(), |culprit| culprit.text.clone());
        Line::judged(what, found, good, culprit.is_none())
    };
    let mut lines = vec![
        verdict(&format!("first of {ops} ops beyond its tolerance"), &examined.beyond_tolerance, "none"),
        verdict("first op with other bits when steps run again", &examined.changing, "none"),
        verdict("first op with other bits alone than together and in chunks", &examined.dependent, "none"),
    ];
    let mut of_ops: Vec<(&str, f64, usize)> = Vec::new();
    for (record, finding) in records().filter_map(|record| record.finding.as_ref().map(|finding| (record, finding))) {
        let error = finding.error();
        match of_ops.iter_mut().find(|(op, ..)| *op == record.op) {
            Some((_, worst, count)) => (*worst, *count) = (worst.max(error), *count + 1),
            None => of_ops.push((record.op, error, 1)),
        }
    }
    for (op, worst, count) in &of_ops {
        let found = format!("{worst:.3} of the tolerance, the largest of {count}");
        lines.push(Line::judged(*op, found, "at most 1", *worst <= 1.0));
    }
    if let (Some(first), Some(last)) = (layers.first(), layers.last()) {
        let found = format!("{first:.1e} after the first layer, {last:.1e} after the last of {}", layers.len());
        lines.push(Line::figure(RESIDUALS, found));
    }
    let hidden = (!layers.is_empty()).then(|| hidden_plot(layers));
    Section {
        about: "Steps with prompts in chunks, decodes and requests of different lengths, op by op: each op's outputs beside its formula in \
                float64 with the same inputs, at rows that are spread over a large step: at most 12 of products, 24 of attention and 256 of \
                other ops; the bits of every row when the steps run again, and when requests run alone."
            .to_owned(),
        lines,
        plots: [error_plot(examined)].into_iter().chain(hidden).collect(),
        ..Section::default()
    }
}

/// The worst error of each op in each layer.
fn error_plot(examined: &Examined) -> Plot {
    let mut series: Vec<Series> = Vec::new();
    for record in examined.records.iter().flatten() {
        let (Some(layer), Some(finding)) = (record.layer, &record.finding) else { continue };
        let at = series.iter().position(|series| series.name == record.part).unwrap_or_else(|| {
            series.push(Series { name: record.part.to_owned(), points: Vec::new() });
            series.len() - 1
        });
        let points = &mut series[at].points;
        let error = finding.error().max(1e-6);
        match points.iter_mut().find(|(x, _)| *x == layer as f64) {
            Some((_, worst)) => *worst = worst.max(error),
            None => points.push((layer as f64, error)),
        }
    }
    let title = "The largest error of each op, in tolerances".to_owned();
    Plot { title, x: "layer".to_owned(), y: "tolerances".to_owned(), log_x: false, log_y: true, series }
}

fn hidden_plot(layers: &[f64]) -> Plot {
    let points = layers.iter().enumerate().map(|(layer, &error)| (layer as f64, error.max(1e-12))).collect();
    Plot {
        title: "The residual stream after each layer, from that of the reference in float32".to_owned(),
        x: "layer".to_owned(),
        y: "relative error".to_owned(),
        log_x: false,
        log_y: true,
        series: vec![Series { name: "this device".to_owned(), points }],
    }
}

#[cfg(test)]
mod tests {
    use vllm_apple_ops::conformance::Judged;

    use super::*;
    use crate::report::Outcome;

    #[test]
    fn an_error_that_is_no_number_is_beyond_the_tolerance() {
        let record = |error| {
            let judged = Judged { error, at: 0, got: f32::NAN, want: 1.0 };
            let finding = Some(Finding { row: 0, place: Place::Element(0), judged });
            let (op, part) = (matmul::NAME, "down projection");
            OpRecord { op, part, layer: Some(0), finding, bits: vec![0], residual: Vec::new() }
        };
        let chunks = [Chunk::new(0, 0..1)];
        assert_eq!(beyond(&chunks, &[record(1.0)]), None);
        for nan in [f64::NAN, -f64::NAN] {
            let culprit = beyond(&chunks, &[record(1.0), record(nan)]);
            assert_eq!(culprit.as_ref().map(|culprit| culprit.op), Some(matmul::NAME));
            let records = vec![vec![record(1.0), record(nan)]];
            let examined = Examined { records, beyond_tolerance: culprit, changing: None, dependent: None };
            let lines = section(&examined, &[]).lines;
            assert_eq!([lines[0].outcome, lines[3].outcome], [Outcome::Fail; 2], "{lines:?}");
        }
    }

    #[test]
    fn what_is_no_number_is_not_drawn_as_right() {
        let layers = [[4.0, 16.0], [f64::NAN, 1.0], [0.0, 0.0]].map(relative);
        assert_eq!(layers, [0.5, f64::INFINITY, 0.0]);
        assert_eq!(hidden_plot(&layers).series[0].points[1].1, f64::INFINITY);
    }
}
