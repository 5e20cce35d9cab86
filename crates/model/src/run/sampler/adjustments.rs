//! From biases, `min_tokens` and the penalties of the output to the op's adjustments, each token once.

use vllm_apple_executor::{RowTask, SamplingParams};
use vllm_apple_ops::sample::Adjustment;

/// The adjustments of all rows of a turn.
pub(super) struct Adjustments {
    /// In the op's words. While a row is collected, the last word counts occurrences in the output.
    table: Vec<[u32; Adjustment::WORDS]>,
    /// The most that the table may hold.
    most: usize,
    /// One more than a token's place among the row's; all zero between rows.
    places: Vec<u32>,
}

/// There is no room for a row.
struct Full;

impl Adjustments {
    pub(super) fn new(vocab_size: usize, most: usize) -> Self {
        Self { table: Vec::with_capacity(most), most, places: vec![0; vocab_size] }
    }

    pub(super) fn clear(&mut self) {
        self.table.clear();
    }

    pub(super) fn table(&self) -> &[[u32; Adjustment::WORDS]] {
        &self.table
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.table.capacity() * size_of::<[u32; Adjustment::WORDS]>() + size_of_val(&self.places[..])
    }

    /// Adds a row's; where they begin and how many they are, or `None` if they do not fit.
    pub(super) fn add(&mut self, task: &RowTask<'_>) -> Option<[u32; 2]> {
        let first = self.table.len();
        let result = self.collect(task, first);
        for adjustment in &self.table[first..] {
            self.places[adjustment[Adjustment::TOKEN] as usize] = 0;
        }
        if result.is_err() {
            self.table.truncate(first);
            return None;
        }
        Some([first as u32, (self.table.len() - first) as u32])
    }

    /// Takes those of a row's adjustments that `seen` has over from it.
    pub(super) fn take_seen(&mut self, [first, count]: [u32; 2], seen: &mut [u32]) {
        for adjustment in &mut self.table[first as usize..][..count as usize] {
            let (word, bit) =
                (&mut seen[adjustment[Adjustment::TOKEN] as usize / 32], adjustment[Adjustment::TOKEN] % 32);
            adjustment[Adjustment::SEEN] = *word >> bit & 1;
            *word &= !(1 << bit);
        }
    }

    fn collect(&mut self, task: &RowTask<'_>, first: usize) -> Result<(), Full> {
        let RowTask::Sample { params, output_token_ids, eos_token_ids, .. } = task else { return Ok(()) };
        let &&SamplingParams { frequency_penalty, presence_penalty, .. } = params;
        if output_token_ids.len() < params.min_tokens as usize {
            for &token in params.stop_token_ids.iter().chain(*eos_token_ids) {
                self.change(token, first, |adjustment| adjustment[Adjustment::BIAS] = f32::NEG_INFINITY.to_bits())?;
            }
        }
        for &(token, bias) in params.logit_bias.iter() {
            self.change(token, first, |adjustment| {
                adjustment[Adjustment::BIAS] = (f32::from_bits(adjustment[Adjustment::BIAS]) + bias).to_bits();
            })?;
        }
        if frequency_penalty != 0.0 || presence_penalty != 0.0 {
            for &token in *output_token_ids {
                self.change(token, first, |adjustment| adjustment[Adjustment::SUBTRACT] += 1)?;
            }
            for count in self.table[first..].iter_mut().map(|adjustment| &mut adjustment[Adjustment::SUBTRACT]) {
                if *count > 0 {
                    *count = (frequency_penalty * *count as f32 + presence_penalty).to_bits();
                }
            }
        }
        Ok(())
    }

    /// Changes a token's adjustment. Tokens outside the vocabulary do not count.
    fn change(&mut self, token: u32, first: usize, f: impl FnOnce(&mut [u32; Adjustment::WORDS])) -> Result<(), Full> {
        let Some(place) = self.places.get_mut(token as usize) else { return Ok(()) };
        if *place == 0 {
            if self.table.len() == self.most {
                return Err(Full);
            }
            self.table.push(Adjustment { token, seen: false, bias: 0.0, subtract: 0.0 }.words());
            *place = (self.table.len() - first) as u32;
        }
        f(&mut self.table[first + *place as usize - 1]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task<'a>(params: &'a SamplingParams, output: &'a [u32]) -> RowTask<'a> {
        RowTask::Sample {
            params,
            seed: 0,
            prompt_token_ids: &[1],
            output_token_ids: output,
            eos_token_ids: &[8, 9],
            allowed_tokens: None,
        }
    }

    fn adjustment(token: u32, seen: bool, bias: f32, subtract: f32) -> Adjustment {
        Adjustment { token, seen, bias, subtract }
    }

    fn entries(adjustments: &Adjustments, [first, count]: [u32; 2]) -> Vec<Adjustment> {
        let words = &adjustments.table()[first as usize..][..count as usize];
        words.iter().map(|words| Adjustment::of_words(*words)).collect()
    }

    fn collect(params: &SamplingParams, output: &[u32]) -> Vec<Adjustment> {
        let mut adjustments = Adjustments::new(10, 10);
        let range = adjustments.add(&task(params, output)).unwrap();
        entries(&adjustments, range)
    }

    #[test]
    fn each_token_is_adjusted_once() {
        let default = SamplingParams::default;
        assert_eq!(collect(&default(), &[2]), []);
        let counted = SamplingParams { frequency_penalty: 0.5, presence_penalty: 1.0, ..default() };
        assert_eq!(collect(&counted, &[1, 2, 1, 99]), [adjustment(1, false, 0.0, 2.0), adjustment(2, false, 0.0, 1.5)]);
        for one in [
            SamplingParams { presence_penalty: 0.0, ..counted.clone() },
            SamplingParams { frequency_penalty: 0.0, ..counted },
        ] {
            let penalty = one.frequency_penalty + one.presence_penalty;
            assert_eq!(collect(&one, &[1]), [adjustment(1, false, 0.0, penalty)]);
        }
        // Biases of one token add up, and do not bring back what is held back.
        let held = SamplingParams {
            min_tokens: 1,
            stop_token_ids: [4].into(),
            logit_bias: [(5, 1.0), (4, 3.0), (5, 0.5)].into(),
            presence_penalty: -1.0,
            ..default()
        };
        let never = f32::NEG_INFINITY;
        let all = [4, 8, 9].map(|token| adjustment(token, false, never, 0.0));
        assert_eq!(collect(&held, &[]), [&all[..], &[adjustment(5, false, 1.5, 0.0)]].concat());
        assert_eq!(collect(&held, &[5]), [adjustment(5, false, 1.5, -1.0), adjustment(4, false, 3.0, 0.0)]);
    }

    #[test]
    fn what_was_seen_and_is_adjusted_is_marked_once() {
        let params = SamplingParams { presence_penalty: 1.0, ..SamplingParams::default() };
        let mut adjustments = Adjustments::new(100, 10);
        adjustments.add(&task(&params, &[7])).unwrap();
        let range = adjustments.add(&task(&params, &[7, 40, 99])).unwrap();
        let mut seen = [1 << 7 | 1 << 6, 1 << 9, 0, 1 << 3];
        adjustments.take_seen(range, &mut seen);
        assert_eq!(seen, [1 << 6, 1 << 9, 0, 0]);
        let expected = [(7, true), (40, false), (99, true)].map(|(token, seen)| adjustment(token, seen, 0.0, 1.0));
        assert_eq!(entries(&adjustments, range), expected);
        assert_eq!(entries(&adjustments, [0, 1]), [adjustment(7, false, 0.0, 1.0)]);
    }

    #[test]
    fn a_row_that_does_not_fit_leaves_no_trace() {
        let params = SamplingParams { frequency_penalty: 1.0, ..SamplingParams::default() };
        let mut adjustments = Adjustments::new(10, 5);
        let first = adjustments.add(&task(&params, &[1, 2, 3])).unwrap();
        assert_eq!(first, [0, 3]);
        assert_eq!(adjustments.add(&task(&params, &[4, 5, 3])), None);
        assert_eq!(adjustments.table().len(), 3);
        let second = adjustments.add(&task(&params, &[3, 4])).unwrap();
        assert_eq!(second, [3, 2]);
        let expected = |tokens: &[u32]| tokens.iter().map(|&t| adjustment(t, false, 0.0, 1.0)).collect::<Vec<_>>();
        assert_eq!(entries(&adjustments, second), expected(&[3, 4]));
        assert_eq!(entries(&adjustments, first), expected(&[1, 2, 3]));
        adjustments.clear();
        assert_eq!(adjustments.add(&task(&params, &[1, 2, 3, 4, 5])), Some([0, 5]));
    }
}
