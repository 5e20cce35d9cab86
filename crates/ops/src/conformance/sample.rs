//! Picked tokens must be the reference's, without exception, and so must the largest logit, ranks and the most likely tokens: nothing
//! that decides about them may be rounded otherwise. Log-probabilities are relative to the distance from the largest logit and
//! the logarithm of the sum: the sum is `sqrt(vocab_size)` roundoffs off.

use super::{inputs::Inputs, *};
use crate::sample::{Adjustment, MAX_TOP, Picked, Reference, SampleRow, mask_words};

/// Rows, vocabulary, range of the logits, and how tokens are picked.
struct Case {
    rows: usize,
    vocab: usize,
    logits: Logits,
    how: How,
    adjusted: usize,
    masks: Masks,
    num_top: Option<u32>,
    repetition_penalty: f32,
}

/// Which tokens the masks have.
#[derive(Debug, Clone, Copy)]
enum Masks {
    /// There are none.
    Absent,
    /// About one of so many tokens.
    OneOf(u32),
}

/// What the logits are like.
#[derive(Debug, Clone, Copy)]
enum Logits {
    /// Uniform up to this size.
    Uniform(f32),
    /// Integers up to this size: many ties.
    Integers(f32),
    /// Falling with the logarithm of a random rank, as a trained model's do.
    Peaked,
    /// All the same.
    Flat,
    /// Two the same, and a third that weighs a unit: half of the sum is no whole number, and rounds up.
    OneUnit,
}

/// Temperature, `top_k`, `top_p`, `min_p`.
#[derive(Debug, Clone, Copy)]
struct How(f32, u32, f32, f32);

const GREEDY: How = How(0.0, 0, 1.0, 0.0);

const fn case(rows: usize, vocab: usize, logits: Logits, how: How, adjusted: usize, num_top: Option<u32>) -> Case {
    Case { rows, vocab, logits, how, adjusted, masks: Masks::Absent, num_top, repetition_penalty: 1.3 }
}

/// Most rows have a mask, some of them also one of tokens that were seen, and some of these are adjusted. Log-probabilities are of what the
/// mask leaves, without regard to the others.
const fn masked(one_of: u32, case: Case) -> Case {
    Case { masks: Masks::OneOf(one_of), ..case }
}

/// All tokens of every other row are adjusted, half of them beyond what a number can hold.
const fn extreme(how: How, repetition_penalty: f32) -> Case {
    Case { repetition_penalty, ..case(4, 600, Logits::Uniform(9.0), how, 600, None) }
}

const CASES: &[Case] = &[
    masked(3, case(8, 90, Logits::Peaked, How(0.8, 20, 0.9, 0.01), 5, Some(5))),
    case(1, 1, Logits::Flat, GREEDY, 0, Some(3)),
    case(32, 5, Logits::Uniform(1.0), How(1.0, 0, 1.0, 0.0), 0, Some(20)),
    case(4, 1000, Logits::Uniform(10.0), GREEDY, 0, None),
    case(4, 4099, Logits::Integers(5.0), GREEDY, 30, Some(20)),
    case(16, 4099, Logits::Uniform(2.0), How(1.0, 0, 1.0, 0.0), 0, Some(0)),
    case(16, 2048, Logits::Uniform(4.0), How(0.7, 1, 1.0, 0.0), 0, None),
    case(16, 2052, Logits::Integers(3.0), How(1.0, 700, 1.0, 0.0), 10, Some(20)),
    case(16, 3000, Logits::Peaked, How(1.0, 0, 0.95, 0.0), 0, Some(1)),
    case(16, 3000, Logits::Peaked, How(1.5, 50, 0.8, 0.0), 600, None),
    case(8, 3000, Logits::Peaked, How(1.0, 0, 1.0, 0.1), 0, None),
    case(8, 3000, Logits::Integers(4.0), How(2.0, 0, 0.37, 0.0), 0, Some(7)),
    case(8, 5000, Logits::Flat, How(1.0, 1234, 0.37, 0.0), 0, Some(20)),
    case(8, 2600, Logits::Uniform(0.5), How(1.0, 1500, 0.83, 0.3), 0, None),
    case(4, 500, Logits::Uniform(200.0), How(1.0, 400, 0.9999, 0.0), 0, Some(20)),
    case(2, 32_000, Logits::Peaked, How(0.9, 40, 0.9, 0.0), 100, Some(20)),
    case(1, 151_936, Logits::Peaked, How(1.0, 0, 0.9, 0.0), 0, Some(5)),
    case(16, 40, Logits::OneUnit, How(1.0, 0, 0.5, 0.0), 0, None),
    // The largest sums.
    case(1, 151_936, Logits::Flat, How(1.0, 0, 0.7, 0.0), 0, Some(1)),
    masked(2, case(8, 4099, Logits::Integers(3.0), GREEDY, 30, Some(20))),
    masked(2, case(8, 3001, Logits::Peaked, How(1.2, 0, 1.0, 0.0), 40, None)),
    masked(50, case(8, 5000, Logits::Flat, How(1.0, 0, 0.61, 0.0), 0, None)),
    masked(300, case(8, 2500, Logits::Uniform(3.0), How(1.0, 100, 0.7, 0.01), 2500, Some(20))),
    // A mask that leaves a few unlikely tokens, as a form of an answer does: fewer than are asked for.
    masked(700, case(16, 1500, Logits::Peaked, How(1.0, 0, 1.0, 0.0), 0, Some(20))),
    case(16, 3000, Logits::Peaked, How(1.0, 0, 1.0, 1.0), 0, None),
    case(8, 64, Logits::Integers(1.0), How(1.0, 64, 0.5, 0.0), 0, None),
    extreme(GREEDY, 2e-38),
    extreme(GREEDY, 3e38),
    extreme(How(1.0, 0, 0.9, 0.0), 2e-38),
    extreme(How(1.0, 30, 1.0, 0.0), 3e38),
];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for case in CASES {
        let Case { rows, vocab, logits, how: How(temperature, top_k, top_p, min_p), adjusted, num_top, .. } = case;
        let top = num_top.map_or("no logprobs".to_owned(), |n| format!("{n} logprobs"));
        let name = format!(
            "{rows} x {vocab} {logits:?}, temperature {temperature}, top_k {top_k}, top_p {top_p}, min_p {min_p}, \
             {adjusted} adjusted (repetition {:e}), masks {:?}, {top}",
            case.repetition_penalty, case.masks
        );
        rig.case(crate::sample::NAME, DType::F32, name, |backend| verify_case(backend, case));
    }
}

/// The arguments of a call.
#[derive(Default)]
struct Call {
    logits: Vec<f32>,
    rows: Vec<SampleRow>,
    adjustments: Vec<Adjustment>,
    masks: Vec<u32>,
}

impl Call {
    fn new(case: &Case) -> Self {
        let mut inputs = Inputs::new(16);
        let &Case { rows, vocab, how: How(temperature, top_k, top_p, min_p), adjusted, num_top, .. } = case;
        // One row more than is used, and the rows in another order.
        let logits = (0..rows + 1).flat_map(|_| random_logits(case.logits, vocab, &mut inputs)).collect();
        let mut call = Self { logits, ..Self::default() };
        let order = inputs.shuffled(rows + 1);
        for i in 0..rows {
            // Every other row is adjusted. Rows that are not may share their logits.
            let count = if i % 2 == 0 { adjusted } else { 0 };
            let logit_row = if i % 8 == 7 { order[i - 2] } else { order[i] };
            let allows = matches!(case.masks, Masks::OneOf(_)) && (i % 2 == 1 || i % 4 == 2);
            let mask = allows.then(|| call.push_mask(random_mask(case, &mut inputs)));
            // Some have seen tokens that are not adjusted.
            let adjusted = random_adjustments(count, vocab, &mut inputs);
            let seen = (allows && i % 4 != 1).then(|| {
                let mut seen = random_mask(case, &mut inputs);
                adjusted.iter().for_each(|a| seen[a.token as usize / 32] &= !(1 << (a.token % 32)));
                call.push_mask(seen)
            });
            // Of the rows without a mask some score, and of those with one, which may forbid the token.
            let score = ((i % 8 == 4 || i % 8 == 6) && num_top.is_some()).then(|| inputs.one_below(vocab) as u32);
            call.rows.push(SampleRow {
                logit_row,
                adjustments: [call.adjustments.len() as u32, count as u32],
                mask,
                seen,
                score,
                scale: if temperature == 0.0 { 0.0 } else { 1.0 / temperature },
                min_p,
                top_p,
                top_k,
                repetition_penalty: case.repetition_penalty,
                seed: 0x1234_5678_9abc_def0 + i as u64,
                position: 7 * i as u64,
                num_top,
            });
            call.adjustments.extend(adjusted);
        }
        call
    }

    /// Its number.
    fn push_mask(&mut self, mask: Vec<u32>) -> u32 {
        let number = self.masks.len() / mask.len();
        self.masks.extend(mask);
        number as u32
    }

    fn reference(&self, row: &SampleRow, vocab: usize) -> Reference {
        let logits = &self.logits[row.logit_row as usize * vocab..][..vocab];
        crate::sample::reference(logits, row, &self.adjustments, &self.masks)
    }
}

fn verify_case<B: Backend>(backend: &mut B, case: &Case) -> Result<Outcome> {
    let call = Call::new(case);
    let (picked, top, after) = compute(backend, case.vocab, &call)?;
    let untouched = after.iter().zip(&call.logits).all(|(a, b)| a.to_bits() == b.to_bits());
    let mut judge = Judge { outcome: Outcome { error: 0.0, tolerance: logprob_tolerance(case.vocab) } };
    for (i, row) in call.rows.iter().enumerate() {
        judge.row(row, &call.reference(row, case.vocab), &picked[i], &top[i * MAX_TOP..][..MAX_TOP]);
    }
    if !untouched {
        judge.outcome.error = f64::INFINITY;
    }
    Ok(judge.outcome)
}

fn random_logits(kind: Logits, vocab: usize, inputs: &mut Inputs) -> Vec<f32> {
    match kind {
        Logits::Uniform(size) => inputs.floats(vocab, size),
        Logits::Integers(size) => inputs.floats(vocab, size).iter().map(|l| l.round()).collect(),
        Logits::Flat => vec![-1.5; vocab],
        Logits::OneUnit => {
            (0..vocab).map(|token| [0.0, 0.0, -27.7][token.min(2)] - 100.0 * (token / 3) as f32).collect()
        }
        Logits::Peaked => {
            let ranks = inputs.shuffled(vocab);
            let noise = inputs.floats(vocab, 0.5);
            ranks.iter().zip(noise).map(|(&rank, noise)| 12.0 - 1.7 * (1.0 + rank as f32).ln() + noise).collect()
        }
    }
}

/// Different tokens with a bias, a penalty or both; a few may not be picked at all.
fn random_adjustments(count: usize, vocab: usize, inputs: &mut Inputs) -> Vec<Adjustment> {
    let tokens = inputs.shuffled(vocab);
    let (bias, kind) = (inputs.floats(count, 3.0), inputs.below(count, 8));
    let one = |i: usize| Adjustment {
        token: tokens[i],
        seen: kind[i] % 2 == 0,
        bias: if kind[i] == 7 { f32::NEG_INFINITY } else { bias[i] },
        subtract: if kind[i] < 3 { 0.4 * kind[i] as f32 } else { 0.0 },
    };
    (0..count).map(one).collect()
}

/// Has about one of so many tokens, and at least one.
fn random_mask(case: &Case, inputs: &mut Inputs) -> Vec<u32> {
    let vocab = case.vocab;
    let Masks::OneOf(one_of) = case.masks else { return vec![u32::MAX; mask_words(vocab)] };
    let mut mask = vec![0; mask_words(vocab)];
    for (token, below) in inputs.below(vocab, one_of as usize).into_iter().enumerate() {
        if below == 0 {
            mask[token / 32] |= 1 << (token % 32);
        }
    }
    let one = inputs.one_below(vocab);
    mask[one / 32] |= 1 << (one % 32);
    mask
}

/// What was picked, the most likely tokens of each row, and the logits afterwards.
type Results = (Vec<Picked>, Vec<(u32, f32)>, Vec<f32>);

fn compute<B: Backend>(backend: &mut B, vocab: usize, call: &Call) -> Result<Results> {
    let rows = call.rows.len();
    let mut logits_tensor = upload(backend, DType::F32, vocab, &call.logits)?;
    let words: Vec<u32> = call.rows.iter().flat_map(SampleRow::words).collect();
    let params = upload_u32(backend, SampleRow::WORDS, &words)?;
    let words: Vec<u32> = call.adjustments.iter().flat_map(Adjustment::words).collect();
    let mut adjustments = upload_u32(backend, Adjustment::WORDS, &words)?;
    let masks = upload_u32(backend, mask_words(vocab), &call.masks)?;
    let mut picked = output(backend, DType::U32, rows, Picked::WORDS)?;
    let mut top = output(backend, DType::U32, rows, 2 * MAX_TOP)?;
    Sample {
        rows,
        logits: &mut logits_tensor,
        params: &params,
        adjustments: &mut adjustments,
        masks: &masks,
        picked: &mut picked,
        top: &mut top,
    }
    .run(backend)?;
    backend.synchronize()?;
    let words = read_output_u32(backend, &picked, rows)?;
    let picked = words.chunks_exact(4).map(|w| Picked::of_words([w[0], w[1], w[2], w[3]])).collect();
    let words = read_output_u32(backend, &top, rows)?;
    let top = words.chunks_exact(2).map(|w| (w[0], f32::from_bits(w[1]))).collect();
    let after = DType::F32.decode(backend.read(&logits_tensor));
    Ok((picked, top, after))
}

fn logprob_tolerance(vocab: usize) -> f64 {
    tolerance(16.0 + (vocab as f64).sqrt(), DType::F32)
}

struct Judge {
    outcome: Outcome,
}

impl Judge {
    fn row(&mut self, row: &SampleRow, want: &Reference, got: &Picked, top: &[(u32, f32)]) {
        let mut right = got.max == want.max && got.token == want.token;
        if let Some(num_top) = row.num_top
            && got.token == want.token
        {
            right &= got.rank == want.rank;
            self.logprob(got.logprob, want.logprobs[got.token as usize], want);
            let want_top = want.ranking.iter().copied().chain(std::iter::repeat(u32::MAX));
            for (&(id, logprob), want_id) in top.iter().zip(want_top).take(num_top as usize) {
                right &= id == want_id;
                if id == want_id && id != u32::MAX {
                    self.logprob(logprob, want.logprobs[id as usize], want);
                }
            }
        }
        if !right {
            self.outcome.error = f64::INFINITY;
        }
    }

    fn logprob(&mut self, got: f32, logprob: f64, want: &Reference) {
        // The most likely token's is the logarithm of the sum.
        let log_total = -want.logprobs[want.ranking[0] as usize];
        if logprob == f64::NEG_INFINITY {
            // Of a token that is scored and that the mask forbids.
            self.outcome.error = if f64::from(got) == logprob { self.outcome.error } else { f64::INFINITY };
            return;
        }
        let size = (logprob + log_total).abs() + log_total.abs() + 1.0;
        let error = (f64::from(got) - logprob).abs() / size;
        self.outcome.error = self.outcome.error.max(if error.is_nan() { f64::INFINITY } else { error });
    }
}
