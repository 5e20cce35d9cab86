//! Picks a token from each row of logits on the device, as the sampler on the host does. It knows no requests.

use crate::error::{ensure, ensure_tensor};
use crate::*;

/// The op's name: in errors, verdicts and choices.
pub const NAME: &str = "sample";

/// For each of `rows`, of the logits `l` of its `logit_row`:
///
/// 1. Its adjustments change `l`, see [`Adjustment`].
/// 2. The largest logit `max` and the first token that has it. With `scale` 0 that token is picked; it equals the host's.
/// 3. Else each token weighs `w = exp((l - max) * scale)`, 0 from exponent -87 down. Tokens are ordered by weight, largest first, ties
///    to the smaller id. Kept are those with `w >= min_p` and `w > 0`; of these the first `top_k`; of these the fewest whose weights
///    add up to `top_p` of the sum.
/// 4. Picked is the first kept token, in the order of ids, at which the running sum of weights exceeds `u` times their sum, `u` being
///    [`philox::uniform`]. A backend may use fewer bits of `u` and sum in f32, in an order fixed by the vocabulary's size.
/// 5. The log-probability of the picked token, its rank and the `num_top` most likely tokens: of the logits as they were.
///
/// | argument | dtype | shape |
/// |---|---|---|
/// | logits | f32 | `[_, vocab_size]`, each row used once; as before afterwards |
/// | params | u32 | `[>= rows, SampleRow::WORDS]`: [`SampleRow::words`] |
/// | adjustments | u32 | `[_, Adjustment::WORDS]`: [`Adjustment::words`], a row's one after the other, each token once; undefined afterwards |
/// | picked | u32 | `[>= rows, Picked::WORDS]`: [`Picked::of_words`] |
/// | top | u32 | `[>= rows, 2 * MAX_TOP]`: id and bits of the f32 log-probability, best first; id `u32::MAX` beyond the last |
pub struct Sample<'a, M> {
    /// Tokens to pick.
    pub rows: usize,
    /// Where from.
    pub logits: &'a mut Tensor<M>,
    /// How.
    pub params: &'a Tensor<M>,
    /// Penalties and biases.
    pub adjustments: &'a mut Tensor<M>,
    /// The tokens.
    pub picked: &'a mut Tensor<M>,
    /// The most likely tokens.
    pub top: &'a mut Tensor<M>,
}

/// Most alternatives of a row.
pub const MAX_TOP: usize = 20;

/// How one token is picked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRow {
    /// Row of the logits.
    pub logit_row: u32,
    /// Where its adjustments begin, and how many it has.
    pub adjustments: [u32; 2],
    /// One over the temperature; 0 picks the largest logit.
    pub scale: f32,
    /// Smallest weight, relative to the largest.
    pub min_p: f32,
    /// Share of the weights; from 1 on all.
    pub top_p: f32,
    /// Number of tokens; 0 keeps all.
    pub top_k: u32,
    /// Divides or multiplies the logits of tokens that were seen.
    pub repetition_penalty: f32,
    /// Key of the random stream.
    pub seed: u64,
    /// Position in it.
    pub position: u64,
    /// Alternatives to report, at most [`MAX_TOP`]; `None`: no log-probability at all.
    pub num_top: Option<u32>,
}

impl SampleRow {
    /// Words of a row's parameters.
    pub const WORDS: usize = 16;

    /// As the device reads it.
    pub fn words(&self) -> [u32; Self::WORDS] {
        let low_high = |v: u64| [v as u32, (v >> 32) as u32];
        let ([seed_low, seed_high], [position_low, position_high]) = (low_high(self.seed), low_high(self.position));
        [
            self.logit_row,
            self.adjustments[0],
            self.adjustments[1],
            self.scale.to_bits(),
            self.min_p.to_bits(),
            self.top_p.to_bits(),
            self.top_k,
            self.repetition_penalty.to_bits(),
            seed_low,
            seed_high,
            position_low,
            position_high,
            self.num_top.unwrap_or(0),
            self.num_top.is_some().into(),
            0,
            0,
        ]
    }

    /// From what [`SampleRow::words`] gave.
    pub fn of_words(words: [u32; Self::WORDS]) -> Self {
        let [logit_row, first, count, scale, min_p, top_p, top_k, repetition_penalty, seed_low, seed_high, ..] = words;
        let low_high = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        Self {
            logit_row,
            adjustments: [first, count],
            scale: f32::from_bits(scale),
            min_p: f32::from_bits(min_p),
            top_p: f32::from_bits(top_p),
            top_k,
            repetition_penalty: f32::from_bits(repetition_penalty),
            seed: low_high(seed_low, seed_high),
            position: low_high(words[10], words[11]),
            num_top: (words[13] != 0).then_some(words[12]),
        }
    }
}

/// A change of a token's logit: `l + bias`; if `seen`, divided by the repetition penalty where positive, else multiplied by it; less
/// `subtract`. Each operation is rounded to f32. A finite logit stays finite: the largest or smallest number stands for what is beyond,
/// so that no penalty leaves a row without a token. Only a bias of negative infinity forbids a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adjustment {
    /// The token.
    pub token: u32,
    /// Whether it is in prompt or output.
    pub seen: bool,
    /// Added: the logit bias, or negative infinity.
    pub bias: f32,
    /// Frequency and presence penalty.
    pub subtract: f32,
}

impl Adjustment {
    /// Words of an adjustment.
    pub const WORDS: usize = 4;

    /// As the device reads it.
    pub fn words(&self) -> [u32; Self::WORDS] {
        [self.token, self.seen.into(), self.bias.to_bits(), self.subtract.to_bits()]
    }

    /// From what [`Adjustment::words`] gave.
    pub fn of_words([token, seen, bias, subtract]: [u32; Self::WORDS]) -> Self {
        Self { token, seen: seen != 0, bias: f32::from_bits(bias), subtract: f32::from_bits(subtract) }
    }

    /// The changed logit.
    pub fn apply(&self, raw: f32, repetition_penalty: f32) -> f32 {
        let logit = raw + self.bias;
        let logit = match self.seen {
            true if logit > 0.0 => logit / repetition_penalty,
            true => logit * repetition_penalty,
            false => logit,
        };
        let logit = logit - self.subtract;
        match raw.is_finite() && self.bias.is_finite() {
            true => logit.clamp(f32::MIN, f32::MAX),
            false => logit,
        }
    }
}

/// What was picked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Picked {
    /// The token; undefined if `max` is not finite.
    pub token: u32,
    /// The largest logit after the adjustments.
    pub max: f32,
    /// Log-probability of the token, if asked for.
    pub logprob: f32,
    /// Its rank, from 1, if asked for.
    pub rank: u32,
}

impl Picked {
    /// Words of a picked token.
    pub const WORDS: usize = 4;

    /// As the device writes it.
    pub fn words(&self) -> [u32; Self::WORDS] {
        [self.token, self.max.to_bits(), self.logprob.to_bits(), self.rank]
    }

    /// From what the device wrote.
    pub fn of_words(words: [u32; Self::WORDS]) -> Self {
        let [token, max, logprob, rank] = words;
        Self { token, max: f32::from_bits(max), logprob: f32::from_bits(logprob), rank }
    }
}

impl<M> Sample<'_, M> {
    /// Whether the arguments fit together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the first that does not.
    pub fn check(&self) -> Result<()> {
        let vocab = self.logits.cols();
        ensure(vocab > 0, NAME, "logits", "not empty", &*self.logits)?;
        ensure_tensor(NAME, "logits", self.logits, DType::F32, 1, vocab)?;
        ensure_tensor(NAME, "params", self.params, DType::U32, self.rows, SampleRow::WORDS)?;
        ensure_tensor(NAME, "adjustments", self.adjustments, DType::U32, 0, Adjustment::WORDS)?;
        ensure_tensor(NAME, "picked", self.picked, DType::U32, self.rows, Picked::WORDS)?;
        ensure_tensor(NAME, "top", self.top, DType::U32, self.rows, 2 * MAX_TOP)?;
        Ok(())
    }

    /// Checks the arguments and computes the op.
    ///
    /// # Errors
    /// As [`Self::check`], and what the backend says.
    pub fn run<B: Backend<Memory = M>>(self, backend: &mut B) -> Result<()> {
        self.check()?;
        backend.sample(self)
    }
}

/// What [`reference`] finds.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// The token.
    pub token: u32,
    /// How far the nearest other outcome is: the least relative change of a weight, or of a share of their sum, that could lead
    /// to another token. Infinite for greedy rows.
    pub margin: f64,
    /// Largest logit after the adjustments.
    pub max: f32,
    /// Log-probabilities of all tokens before the adjustments.
    pub logprobs: Vec<f64>,
    /// Rank of the token before the adjustments.
    pub rank: u32,
    /// All tokens with a logit above negative infinity, most likely first, before the adjustments.
    pub ranking: Vec<u32>,
}

/// Plain loops over one row, in f64 but for the adjustments, with at least one finite logit.
pub fn reference(raw: &[f32], row: &SampleRow, adjustments: &[Adjustment]) -> Reference {
    let mut logits = raw.to_vec();
    for a in adjustments {
        let logit = &mut logits[a.token as usize];
        *logit = a.apply(*logit, row.repetition_penalty);
    }
    let max = largest(&logits);
    let first = logits.iter().position(|&l| l == max).unwrap_or(0) as u32;
    let (token, margin) = match row.scale {
        0.0 => (first, f64::INFINITY),
        _ => draw(&logits, max, row),
    };
    let raw_max = largest(raw);
    let distance = |l: f32| f64::from(l) - f64::from(raw_max);
    let total: f64 = raw.iter().filter(|l| !l.is_nan()).map(|&l| distance(l).exp()).sum();
    let own = raw[token as usize];
    let better = |(id, l): (usize, &f32)| *l > own || (*l == own && id < token as usize);
    let mut ranking: Vec<u32> = (0..raw.len() as u32).filter(|&i| raw[i as usize] > f32::NEG_INFINITY).collect();
    ranking.sort_by(|&a, &b| raw[b as usize].total_cmp(&raw[a as usize]).then(a.cmp(&b)));
    Reference {
        token,
        margin,
        max,
        logprobs: raw.iter().map(|&l| distance(l) - total.ln()).collect(),
        rank: raw.iter().enumerate().filter(|&t| better(t)).count() as u32 + 1,
        ranking,
    }
}

fn largest(logits: &[f32]) -> f32 {
    logits.iter().fold(f32::NEG_INFINITY, |max, &l| if l > max { l } else { max })
}

/// The drawn token and its margin.
fn draw(logits: &[f32], max: f32, row: &SampleRow) -> (u32, f64) {
    let weight = |l: f32| match f64::from(l - max) * f64::from(row.scale) {
        x if x > -87.0 => x.exp(),
        _ => 0.0,
    };
    let mut margin = f64::INFINITY;
    let mut near = |distance: f64| margin = f64::min(margin, distance.abs());
    let min_p = f64::from(row.min_p);
    let all: Vec<(u32, f64)> = logits.iter().zip(0..).map(|(&l, id)| (id, weight(l))).collect();
    if min_p > 0.0 {
        all.iter().for_each(|t| near((t.1 - min_p) / min_p));
    }
    let mut kept: Vec<(u32, f64)> = all.into_iter().filter(|t| t.1 > 0.0 && t.1 >= min_p).collect();
    kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    // Where the order is cut, tokens that weigh almost the same could change places; equal ones cannot.
    let gap = |kept: &[(u32, f64)], len: usize| match kept.get(len) {
        Some(next) if next.1 < kept[len - 1].1 => (kept[len - 1].1 - next.1) / kept[len - 1].1,
        _ => f64::INFINITY,
    };
    let top_k = row.top_k as usize;
    if top_k > 0 && top_k < kept.len() {
        near(gap(&kept, top_k));
        kept.truncate(top_k);
    }
    if row.top_p < 1.0 {
        let total: f64 = kept.iter().map(|t| t.1).sum();
        let wanted = f64::from(row.top_p) * total;
        let (mut sum, mut len) = (0.0, 0);
        while len < kept.len() && (len == 0 || sum < wanted) {
            if len > 0 {
                near((wanted - sum) / total);
            }
            sum += kept[len].1;
            len += 1;
        }
        if len < kept.len() {
            near((sum - wanted) / total);
            near(gap(&kept, len));
        }
        kept.truncate(len);
    }
    kept.sort_by_key(|t| t.0);
    let total: f64 = kept.iter().map(|t| t.1).sum();
    let target = philox::uniform(row.seed, row.position) * total;
    let mut sum = 0.0;
    for (i, &(id, weight)) in kept.iter().enumerate() {
        if i > 0 {
            near((target - sum) / total);
        }
        sum += weight;
        if sum > target || i + 1 == kept.len() {
            if i + 1 < kept.len() {
                near((sum - target) / total);
            }
            return (id, margin);
        }
    }
    unreachable!("the largest logit weighs 1")
}
