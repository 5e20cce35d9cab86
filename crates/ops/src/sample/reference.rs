//! The op [`Sample`](super::Sample) for one row in plain loops: what every backend must pick.

use super::{Adjustment, SampleRow, draw_target, mask_words, share, units, weight};

/// What [`reference`] finds.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// The token.
    pub token: u32,
    /// Largest logit after mask and adjustments.
    pub max: f32,
    /// Log-probabilities of all tokens after the mask and before the adjustments.
    pub logprobs: Vec<f64>,
    /// Rank of the token among these.
    pub rank: u32,
    /// All tokens of which the mask leaves a logit above negative infinity, most likely first, before the adjustments.
    pub ranking: Vec<u32>,
}

/// One row of `raw` logits. `adjustments` are those of all rows, `masks` all masks.
pub fn reference(raw: &[f32], row: &SampleRow, adjustments: &[Adjustment], masks: &[u32]) -> Reference {
    let has = |mask: u32, token: usize| {
        let mask = &masks[mask as usize * mask_words(raw.len())..];
        mask[token / 32] >> (token % 32) & 1 == 1
    };
    let allowed = |token: usize| row.mask.is_none_or(|mask| has(mask, token));
    let leave = |(token, &logit): (usize, &f32)| if allowed(token) { logit } else { f32::NEG_INFINITY };
    let own: Vec<f32> = raw.iter().enumerate().map(leave).collect();
    let mut logits = own.clone();
    for (token, logit) in logits.iter_mut().enumerate() {
        if row.seen.is_some_and(|seen| has(seen, token)) {
            *logit = Adjustment::seen(token as u32).apply(*logit, row.repetition_penalty);
        }
    }
    let [first, count] = row.adjustments.map(|n| n as usize);
    for a in &adjustments[first..first + count] {
        let logit = &mut logits[a.token as usize];
        *logit = a.apply(*logit, row.repetition_penalty);
    }
    let max = largest(&logits);
    let token = match row.score {
        Some(token) => token,
        None if !max.is_finite() => 0,
        None if row.scale == 0.0 => logits.iter().position(|&l| l == max).unwrap_or(0) as u32,
        None => draw(&logits, max, row),
    };
    let own_max = largest(&own);
    let distance = |l: f32| f64::from(l) - f64::from(own_max);
    let total: f64 = own.iter().filter(|l| !l.is_nan()).map(|&l| distance(l).exp()).sum();
    let of_token = own[token as usize];
    let better = |(id, l): (usize, &f32)| *l > of_token || (*l == of_token && id < token as usize);
    let mut ranking: Vec<u32> = (0..own.len() as u32).filter(|&i| own[i as usize] > f32::NEG_INFINITY).collect();
    // Adding 0 makes one of the two zeros.
    let logit = |id: u32| own[id as usize] + 0.0;
    ranking.sort_by(|&a, &b| logit(b).total_cmp(&logit(a)).then(a.cmp(&b)));
    Reference {
        token,
        max,
        logprobs: own.iter().map(|&l| distance(l) - total.ln()).collect(),
        rank: own.iter().enumerate().filter(|&t| better(t)).count() as u32 + 1,
        ranking,
    }
}

fn largest(logits: &[f32]) -> f32 {
    logits.iter().fold(f32::NEG_INFINITY, |max, &l| if l > max { l } else { max })
}

/// The drawn token of a row whose largest logit is finite.
fn draw(logits: &[f32], max: f32, row: &SampleRow) -> u32 {
    let all = logits.iter().zip(0..).map(|(&l, id)| (id, weight(l, max, row.scale)));
    let mut kept: Vec<(u32, f32)> = all.filter(|t| t.1 > 0.0 && t.1 >= row.min_p).collect();
    kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if row.top_k > 0 {
        kept.truncate(row.top_k as usize);
    }
    if row.top_p < 1.0 {
        let wanted = share(row.top_p, sum(&kept));
        kept.truncate(shortest_prefix(&kept, |sum| sum >= wanted));
    }
    kept.sort_by_key(|t| t.0);
    let target = draw_target(row.seed, row.position, sum(&kept));
    kept[shortest_prefix(&kept, |sum| sum > target) - 1].0
}

fn sum(kept: &[(u32, f32)]) -> u64 {
    kept.iter().map(|t| units(t.1)).sum()
}

/// How many tokens it takes until their sum is `enough`, which that of all is.
fn shortest_prefix(kept: &[(u32, f32)], enough: impl Fn(u64) -> bool) -> usize {
    let mut sum = 0;
    let is_enough = |t: &(u32, f32)| {
        sum += units(t.1);
        enough(sum)
    };
    kept.iter().position(is_enough).expect("all of them are enough") + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_adjustments_and_what_was_seen_change_what_is_picked() {
        // The largest logit first, beyond the first word of a mask.
        let raw: Vec<f32> = (0..70).map(|token| if token < 40 { 1.0 } else { 100.0 - token as f32 }).collect();
        let adjustments =
            [Adjustment::seen(0), Adjustment { subtract: 50.0, ..Adjustment::seen(40) }, Adjustment::seen(44)];
        let masks = [0, 0, 0, 1 << 7, 1 << 8 | 1 << 9 | 1 << 12, 0, 0, 1 << 9, 0];
        let row = SampleRow { repetition_penalty: 2.0, ..SampleRow::greedy(0) };
        let picked = |row: SampleRow| {
            let found = reference(&raw, &row, &adjustments, &masks);
            (found.token, found.max)
        };
        assert_eq!(picked(row), (40, 60.0));
        assert_eq!(picked(SampleRow { adjustments: [1, 1], ..row }), (41, 59.0));
        assert_eq!(picked(SampleRow { adjustments: [0, 3], ..row }), (41, 59.0));
        assert_eq!(picked(SampleRow { mask: Some(1), ..row }), (40, 60.0));
        assert_eq!(picked(SampleRow { mask: Some(1), adjustments: [1, 1], ..row }), (41, 59.0));
        assert_eq!(picked(SampleRow { mask: Some(1), seen: Some(2), adjustments: [1, 1], ..row }), (44, 56.0));
        assert_eq!(picked(SampleRow { mask: Some(1), seen: Some(2), adjustments: [1, 2], ..row }), (41, 29.5));
        assert_eq!(picked(SampleRow { score: Some(3), ..row }), (3, 60.0));
    }

    #[test]
    fn a_row_without_a_token_has_a_largest_logit() {
        for (logit, max) in [(f32::NAN, f32::NEG_INFINITY), (f32::INFINITY, f32::INFINITY)] {
            let row = SampleRow { scale: 1.0, top_p: 0.5, ..SampleRow::greedy(0) };
            assert_eq!(reference(&[logit, logit], &row, &[], &[]).max, max);
        }
    }

    #[test]
    fn a_mask_counts_in_log_probabilities_and_adjustments_do_not() {
        let raw = [5.0, 1.0, 2.0, 0.0];
        let adjustments = [Adjustment { token: 2, seen: true, bias: -100.0, subtract: 1.0 }];
        let row = SampleRow { repetition_penalty: 2.0, adjustments: [0, 1], ..SampleRow::greedy(0) };
        let masks = [0b1110, 0b0010];
        let near = |found: &Reference, token: usize, p: f64| {
            assert!((found.logprobs[token].exp() - p).abs() < 1e-12, "{found:?}");
        };
        let free = reference(&raw, &SampleRow { seen: Some(1), ..row }, &adjustments, &masks);
        let total: f64 = raw.iter().map(|&l| f64::from(l).exp()).sum();
        assert_eq!((free.token, free.rank, &free.ranking[..]), (0, 1, &[0, 2, 1, 3][..]));
        near(&free, 2, 2f64.exp() / total);
        // Token 0 is not allowed: the others' probabilities are among themselves, as they were before what is seen and adjusted.
        let held = reference(&raw, &SampleRow { mask: Some(0), seen: Some(1), ..row }, &adjustments, &masks);
        assert_eq!((held.token, held.max, held.rank, &held.ranking[..]), (1, 0.5, 2, &[2, 1, 3][..]));
        for (token, l) in [(1, 1.0f64), (2, 2.0), (3, 0.0)] {
            near(&held, token, l.exp() / (1f64.exp() + 2f64.exp() + 1.0));
        }
        assert_eq!(held.logprobs[0], f64::NEG_INFINITY);
        // A token that is scored and not allowed comes behind all that are, in the order of ids.
        let score = |token| SampleRow { mask: Some(1), score: Some(token), ..SampleRow::greedy(0) };
        let score_of = |token| reference(&raw, &score(token), &[], &masks);
        assert_eq!([0, 1, 2, 3].map(|token| score_of(token).rank), [2, 1, 3, 4]);
        assert_eq!(score_of(3).logprobs, [f64::NEG_INFINITY, 0.0, f64::NEG_INFINITY, f64::NEG_INFINITY]);
    }

    #[test]
    fn ranks_are_by_logit_and_then_by_id() {
        let raw = [1.0, -0.0, 2.0, 0.0, 2.0, f32::NEG_INFINITY];
        let found = |token| reference(&raw, &SampleRow { score: Some(token), ..SampleRow::greedy(0) }, &[], &[]);
        assert_eq!(found(0).ranking, [2, 4, 0, 1, 3]);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|token| found(token).rank), [3, 4, 1, 5, 2, 6]);
    }
}
