//! What a row of [`Sample`](super::Sample) is told and what it answers, in the words that devices read and write.

/// How one token is picked or scored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRow {
    /// Row of the logits.
    pub logit_row: u32,
    /// Where its adjustments begin, and how many it has.
    pub adjustments: [u32; 2],
    /// Its mask, which counts in log-probabilities; `None` allows all tokens.
    pub mask: Option<u32>,
    /// The mask of tokens that were seen and are not among its adjustments; `None`: there are none.
    pub seen: Option<u32>,
    /// A token to score; `None` picks one.
    pub score: Option<u32>,
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
    /// Alternatives to report, at most [`super::MAX_TOP`]; `None`: no log-probability at all.
    pub num_top: Option<u32>,
}

/// What a row has: bits of a word.
const HAS_LOGPROBS: u32 = 1;
const HAS_MASK: u32 = 2;
const HAS_SEEN: u32 = 4;
const HAS_SCORE: u32 = 8;

impl SampleRow {
    /// Words of a row's parameters.
    pub const WORDS: usize = 17;

    /// A row that takes the largest logit of this row and says no more.
    pub const fn greedy(logit_row: u32) -> Self {
        Self {
            logit_row,
            adjustments: [0, 0],
            mask: None,
            seen: None,
            score: None,
            scale: 0.0,
            min_p: 0.0,
            top_p: 1.0,
            top_k: 0,
            repetition_penalty: 1.0,
            seed: 0,
            position: 0,
            num_top: None,
        }
    }

    /// As the device reads it.
    pub fn words(&self) -> [u32; Self::WORDS] {
        let low_high = |v: u64| [v as u32, (v >> 32) as u32];
        let ([seed_low, seed_high], [position_low, position_high]) = (low_high(self.seed), low_high(self.position));
        let bit = |has: bool, bit: u32| if has { bit } else { 0 };
        let has = bit(self.num_top.is_some(), HAS_LOGPROBS)
            + bit(self.mask.is_some(), HAS_MASK)
            + bit(self.seen.is_some(), HAS_SEEN)
            + bit(self.score.is_some(), HAS_SCORE);
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
            has,
            self.mask.unwrap_or(0),
            self.seen.unwrap_or(0),
            self.score.unwrap_or(0),
        ]
    }

    /// From what [`SampleRow::words`] gave.
    pub fn of_words(words: [u32; Self::WORDS]) -> Self {
        let [logit_row, first, count, scale, min_p, top_p, top_k, repetition_penalty, seed_low, seed_high, ..] = words;
        let [.., position_low, position_high, num_top, has, mask, seen, score] = words;
        let low_high = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        Self {
            logit_row,
            adjustments: [first, count],
            mask: (has & HAS_MASK != 0).then_some(mask),
            seen: (has & HAS_SEEN != 0).then_some(seen),
            score: (has & HAS_SCORE != 0).then_some(score),
            scale: f32::from_bits(scale),
            min_p: f32::from_bits(min_p),
            top_p: f32::from_bits(top_p),
            top_k,
            repetition_penalty: f32::from_bits(repetition_penalty),
            seed: low_high(seed_low, seed_high),
            position: low_high(position_low, position_high),
            num_top: (has & HAS_LOGPROBS != 0).then_some(num_top),
        }
    }
}

/// A change of a token's logit: `l + bias`; if `seen`, divided by the repetition penalty where positive, else multiplied by it; less
/// `subtract`. Each operation is rounded to f32. A finite logit stays finite: the largest or smallest number stands for what is beyond,
/// so that no penalty leaves a row without a token. Only a bias of negative infinity forbids a token; any other leaves a logit that is not
/// finite as it is.
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

    /// Where the token is among the words.
    pub const TOKEN: usize = 0;
    /// Where `seen` is, as 0 or 1.
    pub const SEEN: usize = 1;
    /// Where the bits of the bias are.
    pub const BIAS: usize = 2;
    /// Where the bits of `subtract` are.
    pub const SUBTRACT: usize = 3;

    /// As the device reads it.
    pub fn words(&self) -> [u32; Self::WORDS] {
        [self.token, self.seen.into(), self.bias.to_bits(), self.subtract.to_bits()]
    }

    /// From what [`Adjustment::words`] gave.
    pub fn of_words([token, seen, bias, subtract]: [u32; Self::WORDS]) -> Self {
        Self { token, seen: seen != 0, bias: f32::from_bits(bias), subtract: f32::from_bits(subtract) }
    }

    /// Of a token that was seen, and no more.
    pub const fn seen(token: u32) -> Self {
        Self { token, seen: true, bias: 0.0, subtract: 0.0 }
    }

    /// The changed logit.
    #[inline(always)]
    pub fn apply(&self, raw: f32, repetition_penalty: f32) -> f32 {
        if self.bias == f32::NEG_INFINITY {
            return f32::NEG_INFINITY;
        }
        if !raw.is_finite() {
            return raw;
        }
        let biased = raw + self.bias;
        let penalised = match self.seen {
            true if biased > 0.0 => biased / repetition_penalty,
            true => biased * repetition_penalty,
            false => biased,
        };
        (penalised - self.subtract).clamp(f32::MIN, f32::MAX)
    }
}

/// What was picked or scored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Picked {
    /// The token; undefined if `max` is not finite.
    pub token: u32,
    /// The largest logit after mask and adjustments.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_everything() {
        let plain = SampleRow::greedy(3);
        let full = SampleRow {
            logit_row: 1,
            adjustments: [2, 3],
            mask: Some(4),
            seen: Some(6),
            score: Some(5),
            scale: 0.6,
            min_p: 0.7,
            top_p: 0.8,
            top_k: 9,
            repetition_penalty: 1.1,
            seed: 12 << 32 | 13,
            position: 14 << 32 | 15,
            num_top: Some(16),
        };
        let some = [SampleRow { num_top: Some(0), ..plain }, SampleRow { mask: Some(0), ..plain }];
        let more = [SampleRow { score: Some(0), ..plain }, SampleRow { seen: Some(0), ..plain }];
        for row in [plain, full, some[0], some[1], more[0], more[1]] {
            assert_eq!(SampleRow::of_words(row.words()), row);
        }
        assert_eq!(Adjustment::seen(1), Adjustment { token: 1, seen: true, bias: 0.0, subtract: 0.0 });
        let adjustment = Adjustment { token: 1, seen: true, bias: -2.0, subtract: 3.0 };
        assert_eq!(Adjustment::of_words(adjustment.words()), adjustment);
        let picked = Picked { token: 1, max: 2.0, logprob: -3.0, rank: 4 };
        assert_eq!(Picked::of_words(picked.words()), picked);
    }

    #[test]
    fn an_adjustment_leaves_a_finite_logit_finite_and_forbids_for_good() {
        let change = |raw: f32, seen, bias, subtract| Adjustment { token: 0, seen, bias, subtract }.apply(raw, 2.0);
        assert_eq!(change(3.0, true, 1.0, 0.5), 1.5);
        assert_eq!(change(-3.0, true, 1.0, 0.5), -4.5);
        assert_eq!(change(3.0, false, 1.0, 0.5), 3.5);
        assert_eq!(change(-3e38, true, 0.0, 0.0), f32::MIN);
        let huge = Adjustment { token: 0, seen: true, bias: 0.0, subtract: 0.0 };
        assert_eq!(huge.apply(2.0, 1e-40), f32::MAX);
        for raw in [1.0, f32::INFINITY, f32::NAN] {
            assert_eq!(change(raw, true, f32::NEG_INFINITY, 1.0), f32::NEG_INFINITY);
        }
        assert_eq!(change(f32::NEG_INFINITY, true, 100.0, -2.0), f32::NEG_INFINITY);
        assert_eq!(change(f32::INFINITY, true, -100.0, 2.0), f32::INFINITY);
        assert!(change(f32::NAN, false, 1.0, 0.0).is_nan());
    }
}
