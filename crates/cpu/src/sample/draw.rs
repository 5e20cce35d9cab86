//! One draw from a row: temperature, `min_p`, `top_k`, `top_p`, then the inverse of the cumulative distribution.

use vllm_apple_ops::sample::{SampleRow, draw_target, share, units, weight};

use super::{passes, top};

/// Working memory for one row.
#[derive(Default)]
pub(super) struct Candidates {
    weights: Vec<f32>,
    /// Units of each [`passes::PART`] tokens.
    parts: Vec<u64>,
    kept: Vec<(f32, u32)>,
}

impl Candidates {
    pub(super) fn new(vocab_size: usize) -> Self {
        let parts = vec![0; vocab_size.div_ceil(passes::PART)];
        Self { weights: vec![0.0; vocab_size], parts, kept: Vec::with_capacity(vocab_size) }
    }

    /// Bytes of the lists that it holds.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        size_of_val(&self.weights[..]) + size_of_val(&self.parts[..]) + self.kept.capacity() * size_of::<(f32, u32)>()
    }

    pub(super) fn bytes(vocab_size: usize) -> usize {
        vocab_size * (size_of::<f32>() + size_of::<(f32, u32)>()) + vocab_size.div_ceil(passes::PART) * size_of::<u64>()
    }

    /// The token that the row draws from `logits`, whose largest is `max`.
    #[inline(always)]
    pub(super) fn draw(&mut self, logits: &[f32], max: f32, row: &SampleRow) -> u32 {
        let vocab = logits.len();
        let total = self.weigh(logits, max, row);
        let target = |total| draw_target(row.seed, row.position, total);
        let top_k = match row.top_k as usize {
            0 => vocab,
            k => k.min(vocab),
        };
        if top_k == vocab && row.top_p >= 1.0 {
            return self.draw_from_all(vocab, target(total));
        }
        if top_k < vocab {
            top::select(&self.weights[..vocab], top_k, 0.0, &mut self.kept);
            if row.top_p < 1.0 {
                let wanted = share(row.top_p, sum(&self.kept));
                self.kept.truncate(nucleus(&self.kept, wanted).unwrap_or(self.kept.len()));
            }
        } else {
            self.keep_nucleus(vocab, share(row.top_p, total));
        }
        self.kept.sort_unstable_by_key(|kept| kept.1);
        walk(self.kept.iter().copied(), target(sum(&self.kept)))
    }

    /// Weighs every token and returns the sum of the units. What `min_p` excludes weighs nothing.
    #[inline(always)]
    fn weigh(&mut self, logits: &[f32], max: f32, row: &SampleRow) -> u64 {
        let SampleRow { scale, min_p, .. } = *row;
        let parts = self.weights.chunks_mut(passes::PART).zip(logits.chunks(passes::PART)).zip(&mut self.parts);
        let mut total = 0;
        for ((weights, logits), sum) in parts {
            let weights = &mut weights[..logits.len()];
            for (w, &logit) in weights.iter_mut().zip(logits) {
                let weight = weight(logit, max, scale);
                *w = if weight >= min_p { weight } else { 0.0 };
            }
            *sum = passes::sum_units(weights);
            total += *sum;
        }
        total
    }

    /// The token of all `vocab` at which the running sum exceeds `target`.
    #[inline(always)]
    fn draw_from_all(&self, vocab: usize, target: u64) -> u32 {
        let (mut first, mut before) = (0, 0);
        for &part in &self.parts {
            if before + part > target {
                break;
            }
            before += part;
            first += passes::PART;
        }
        let end = (first + passes::PART).min(vocab);
        let tokens = (first as u32..).zip(&self.weights[first..end]);
        walk(tokens.map(|(id, &w)| (w, id)), target - before)
    }

    /// Keeps the most likely of `vocab` tokens until their units reach `wanted`. Most rows need few, so the search widens step by step.
    #[inline(always)]
    fn keep_nucleus(&mut self, vocab: usize, wanted: u64) {
        let mut k = 256;
        loop {
            top::select(&self.weights[..vocab], k, 0.0, &mut self.kept);
            if let Some(len) = nucleus(&self.kept, wanted) {
                return self.kept.truncate(len);
            }
            // What is wanted is a share of all, so there are more tokens than these.
            k *= 16;
        }
    }
}

fn sum(kept: &[(f32, u32)]) -> u64 {
    kept.iter().map(|kept| units(kept.0)).sum()
}

/// How many of the `sorted` weights it takes to reach `wanted`, at least one; `None` if all do not.
fn nucleus(sorted: &[(f32, u32)], wanted: u64) -> Option<usize> {
    let mut sum = 0;
    let reaches = |weight: &(f32, u32)| {
        sum += units(weight.0);
        sum >= wanted
    };
    sorted.iter().position(reaches).map(|i| i + 1)
}

/// The first token at which the running sum exceeds `target`, which is below the sum of all.
fn walk(tokens: impl Iterator<Item = (f32, u32)>, target: u64) -> u32 {
    let mut sum = 0;
    let mut token = 0;
    for (weight, id) in tokens {
        sum += units(weight);
        token = id;
        if sum > target {
            break;
        }
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Units of a weight of 1.
    const ONE: u64 = 1 << 40;

    fn candidates(weights: &[f32]) -> Candidates {
        let mut candidates = Candidates::new(weights.len());
        candidates.weights.copy_from_slice(weights);
        for (sum, part) in candidates.parts.iter_mut().zip(weights.chunks(passes::PART)) {
            *sum = passes::sum_units(part);
        }
        candidates
    }

    #[test]
    fn a_walk_stops_beyond_its_target_at_a_token_that_weighs_something() {
        let walk = |weights: &[f32], target| walk(weights.iter().copied().zip(0..), target);
        assert_eq!(walk(&[1.0, 1.0], ONE - 1), 0);
        assert_eq!(walk(&[1.0, 1.0], ONE), 1);
        assert_eq!(walk(&[0.0, 1.0, 0.0], 0), 1);
        assert_eq!(walk(&[1.0, 0.0, 1.0, 0.0], 2 * ONE - 1), 2);
    }

    #[test]
    fn the_part_that_holds_the_target_is_walked_from_its_beginning() {
        const N: usize = passes::PART;
        let mut weights = vec![0.0; 4 * N];
        for at in [1, 2, N + 3, N + 4, 2 * N + 5] {
            weights[at] = 1.0;
        }
        let candidates = candidates(&weights);
        for (halves, id) in [(0, 1), (2, 2), (4, N + 3), (5, N + 3), (6, N + 4), (8, 2 * N + 5), (9, 2 * N + 5)] {
            assert_eq!(candidates.draw_from_all(4 * N, halves * ONE / 2), id as u32, "{halves}");
        }
    }

    #[test]
    fn a_nucleus_is_the_fewest_that_reach_a_share() {
        let mut weights = vec![0.0; 1000];
        weights[..300].fill(0.5);
        let mut candidates = candidates(&weights);
        for (wanted, len) in [(150 * ONE, 300), (150 * ONE - ONE / 2, 299), (2 * ONE, 4), (2 * ONE + 1, 5), (1, 1)] {
            candidates.keep_nucleus(1000, wanted);
            assert_eq!(candidates.kept.len(), len, "{wanted}");
        }
    }

    /// Rows of a shorter vocabulary than the memory was made for do not see what longer ones left.
    #[test]
    fn memory_for_a_longer_row_does_for_a_shorter_one() {
        let mut candidates = Candidates::new(3000);
        let row = |top_p, top_k, position| SampleRow { scale: 1.0, top_p, top_k, position, ..SampleRow::greedy(0) };
        for (top_p, top_k) in [(1.0, 0), (0.9, 0), (0.9, 100), (1.0, 100)] {
            for position in 0..50 {
                candidates.draw(&[1.0; 3000], 1.0, &row(top_p, top_k, position));
                let short = candidates.draw(&[1.0; 600], 1.0, &row(top_p, top_k, position));
                let fresh = Candidates::new(600).draw(&[1.0; 600], 1.0, &row(top_p, top_k, position));
                assert_eq!(short, fresh);
            }
        }
    }
}
