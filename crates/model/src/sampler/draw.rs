//! One draw from a row: temperature, `min_p`, `top_k`, `top_p`, then the inverse of the cumulative distribution.

use super::{math, top};
use vllm_apple_executor::SamplingParams;

/// Working memory for one row. A token's weight is its probability times a factor common to the row; the largest is 1.
pub(super) struct Candidates {
    weights: Vec<f32>,
    /// Sums of the weights of each [`math::PART`] tokens.
    parts: Vec<f64>,
    kept: Vec<(f32, u32)>,
}

impl Candidates {
    pub(super) fn new(vocab_size: usize) -> Self {
        let parts = vec![0.0; vocab_size.div_ceil(math::PART)];
        Self { weights: vec![0.0; vocab_size], parts, kept: Vec::with_capacity(vocab_size) }
    }

    /// Bytes of the lists that it holds.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        size_of_val(&self.weights[..]) + size_of_val(&self.parts[..]) + self.kept.capacity() * size_of::<(f32, u32)>()
    }

    pub(super) fn bytes(vocab_size: usize) -> usize {
        vocab_size * (size_of::<f32>() + size_of::<(f32, u32)>())
    }

    /// The token at `uniform`, which is in (0, 1), of the distribution over tokens in the order of their ids.
    pub(super) fn draw(&mut self, logits: &[f32], max: f32, params: &SamplingParams, uniform: f64) -> u32 {
        let total = self.weigh(logits, max, params);
        let top_k = match params.top_k as usize {
            0 => logits.len(),
            k => k.min(logits.len()),
        };
        if top_k == logits.len() && params.top_p >= 1.0 {
            return self.draw_from_all(uniform * total);
        }
        if top_k < logits.len() {
            top::select(&self.weights, top_k, 0.0, &mut self.kept);
            let total = self.kept.iter().map(|k| f64::from(k.0)).sum::<f64>();
            let wanted = nucleus(&self.kept, f64::from(params.top_p) * total).unwrap_or(self.kept.len());
            self.kept.truncate(wanted);
        } else {
            self.keep_nucleus(f64::from(params.top_p) * total);
        }
        draw_from(&mut self.kept, uniform)
    }

    /// Weighs every token and returns the sum. What `min_p` excludes weighs nothing.
    fn weigh(&mut self, logits: &[f32], max: f32, params: &SamplingParams) -> f64 {
        let scale = 1.0 / params.temperature;
        let min_p = params.min_p;
        let parts = self.weights.chunks_mut(math::PART).zip(logits.chunks(math::PART)).zip(&mut self.parts);
        for ((weights, logits), sum) in parts {
            for (w, &logit) in weights.iter_mut().zip(logits) {
                let weight = math::exp((logit - max) * scale);
                *w = if weight >= min_p { weight } else { 0.0 };
            }
            *sum = math::sum(weights);
        }
        self.parts.iter().sum()
    }

    fn draw_from_all(&self, target: f64) -> u32 {
        // The part that holds the target and the sum before it. Rounding may leave the target just beyond the last one.
        let (mut part, mut before) = (0, 0.0);
        let mut sum = 0.0;
        for (p, &weight) in self.parts.iter().enumerate().filter(|p| *p.1 > 0.0) {
            (part, before) = (p, sum);
            sum += weight;
            if sum > target {
                break;
            }
        }
        let first = part * math::PART;
        let end = (first + math::PART).min(self.weights.len());
        let tokens = (first as u32..).zip(&self.weights[first..end]);
        walk(tokens.map(|(id, &w)| (w, id)), target - before)
    }

    /// Keeps the most likely tokens until their weights reach `wanted`. Most rows need few, so the search widens step by step.
    fn keep_nucleus(&mut self, wanted: f64) {
        let mut k = 256;
        loop {
            top::select(&self.weights, k, 0.0, &mut self.kept);
            if let Some(len) = nucleus(&self.kept, wanted) {
                return self.kept.truncate(len);
            }
            if self.kept.len() < k {
                return;
            }
            k *= 16;
        }
    }
}

/// How many of the `sorted` weights it takes to reach `wanted`, at least one; `None` if all do not.
fn nucleus(sorted: &[(f32, u32)], wanted: f64) -> Option<usize> {
    let mut sum = 0.0;
    let reaches = |weight: &(f32, u32)| {
        sum += f64::from(weight.0);
        sum >= wanted
    };
    sorted.iter().position(reaches).map(|i| i + 1)
}

fn draw_from(kept: &mut [(f32, u32)], uniform: f64) -> u32 {
    kept.sort_unstable_by_key(|k| k.1);
    let total = kept.iter().map(|k| f64::from(k.0)).sum::<f64>();
    walk(kept.iter().copied(), uniform * total)
}

/// The first token at which the running sum exceeds `target`, else the last with a weight.
fn walk(tokens: impl Iterator<Item = (f32, u32)>, target: f64) -> u32 {
    let mut sum = 0.0;
    let mut last = 0;
    for (weight, id) in tokens.filter(|t| t.0 > 0.0) {
        sum += f64::from(weight);
        last = id;
        if sum > target {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(weights: &[f32]) -> Candidates {
        let mut candidates = Candidates::new(weights.len());
        candidates.weights.copy_from_slice(weights);
        for (sum, part) in candidates.parts.iter_mut().zip(weights.chunks(math::PART)) {
            *sum = math::sum(part);
        }
        candidates
    }

    #[test]
    fn a_walk_stops_beyond_its_target_at_a_token_that_weighs_something() {
        let walk = |weights: &[f32], target| walk(weights.iter().copied().zip(0..), target);
        assert_eq!(walk(&[1.0, 1.0], 0.5), 0);
        assert_eq!(walk(&[1.0, 1.0], 1.0), 1);
        assert_eq!(walk(&[0.0, 1.0, 0.0], 0.0), 1);
        // Rounding may leave the target beyond all.
        assert_eq!(walk(&[1.0, 1.0, 0.0], 2.5), 1);
    }

    #[test]
    fn the_part_that_holds_the_target_is_walked_from_its_beginning() {
        const N: usize = math::PART;
        let mut weights = vec![0.0; 4 * N];
        for at in [1, 2, N + 3, N + 4, 2 * N + 5] {
            weights[at] = 1.0;
        }
        let candidates = candidates(&weights);
        for (target, id) in
            [(0.0, 1), (1.0, 2), (2.0, N + 3), (2.5, N + 3), (3.0, N + 4), (4.0, 2 * N + 5), (5.0, 2 * N + 5)]
        {
            assert_eq!(candidates.draw_from_all(target), id as u32, "{target}");
        }
    }

    #[test]
    fn a_nucleus_that_rounding_leaves_out_of_reach_is_everything() {
        let mut weights = vec![0.0; 1000];
        weights[..300].fill(0.5);
        let mut candidates = candidates(&weights);
        candidates.keep_nucleus(151.0);
        assert_eq!(candidates.kept.len(), 300);
        candidates.keep_nucleus(149.9);
        assert_eq!(candidates.kept.len(), 300);
        candidates.keep_nucleus(2.0);
        assert_eq!(candidates.kept.len(), 4);
    }
}
