//! Which rows a turn takes, in the words of the op. Knows no memory but its own.

use super::Limits;
use super::adjustments::Adjustments;
use vllm_apple_executor::{RowTask, SamplingRow};
use vllm_apple_ops::sample::{Adjustment, MAX_TOP, SampleRow, mask_words};

/// The rows of a turn.
pub(super) struct Plan {
    limits: Limits,
    params: Vec<[u32; SampleRow::WORDS]>,
    adjustments: Adjustments,
    /// Bits of allowed tokens and of those that were seen.
    masks: Vec<u32>,
    /// What the turn does with each row of the logits.
    uses: Vec<Use>,
}

/// A row of the logits that is adjusted may be of one row alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Unused,
    Read,
    Adjusted,
}

impl Plan {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            params: Vec::with_capacity(limits.rows),
            adjustments: Adjustments::new(limits.vocab_size, limits.adjustments),
            masks: Vec::with_capacity(limits.masks * mask_words(limits.vocab_size)),
            uses: Vec::with_capacity(limits.rows),
        }
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.limits.vocab_size
    }

    pub(super) fn params(&self) -> &[[u32; SampleRow::WORDS]] {
        &self.params
    }

    pub(super) fn adjustments(&self) -> &[[u32; Adjustment::WORDS]] {
        self.adjustments.table()
    }

    /// Rows of logits and tokens whose logits the op changes for a while.
    pub(super) fn changes(&self) -> impl Iterator<Item = (usize, usize)> {
        self.params.iter().map(|words| SampleRow::of_words(*words)).flat_map(|row| {
            let [first, count] = row.adjustments.map(|n| n as usize);
            let tokens = self.adjustments()[first..][..count].iter().map(|words| words[Adjustment::TOKEN] as usize);
            tokens.map(move |token| (row.logit_row as usize, token))
        })
    }

    pub(super) fn masks(&self) -> &[u32] {
        &self.masks
    }

    /// Bytes of the lists that it holds, but for a byte per row of logits.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.params.capacity() * size_of::<[u32; SampleRow::WORDS]>()
            + self.adjustments.bytes()
            + self.masks.capacity() * size_of::<u32>()
    }

    /// Takes as many of the `rows` as one turn can, from the first on, and returns how many: at least one if there are any.
    pub(super) fn make(&mut self, rows: &[SamplingRow<'_>], num_logit_rows: usize) -> Result<usize, String> {
        self.params.clear();
        self.adjustments.clear();
        self.masks.clear();
        self.uses.clear();
        self.uses.resize(num_logit_rows, Use::Unused);
        for row in rows {
            check(row, num_logit_rows, self.limits.vocab_size)?;
            if !self.take(row) {
                break;
            }
        }
        Ok(self.params.len())
    }

    /// Describes the row; false if the turn has no room for it.
    fn take(&mut self, row: &SamplingRow<'_>) -> bool {
        let used = self.uses[row.logit_row];
        if used == Use::Adjusted || self.params.len() == self.limits.rows {
            return false;
        }
        let logit_row = row.logit_row as u32;
        let num_top = row.num_logprobs.map(|n| n as u32);
        let described = match &row.task {
            RowTask::Score { token_id } => {
                SampleRow { score: Some(*token_id), num_top, ..SampleRow::greedy(logit_row) }
            }
            RowTask::Sample { params, seed, prompt_token_ids, output_token_ids, allowed_tokens, .. } => {
                let words = mask_words(self.limits.vocab_size);
                let has_seen = params.repetition_penalty != 1.0;
                let num_masks = usize::from(allowed_tokens.is_some()) + usize::from(has_seen);
                if self.masks.len() / words + num_masks > self.limits.masks {
                    return false;
                }
                let Some(adjustments) = self.adjustments.add(&row.task) else { return false };
                if adjustments[1] > 0 && used != Use::Unused {
                    return false;
                }
                let mask = allowed_tokens.map(|allowed| self.push_mask(allowed));
                let seen = has_seen.then(|| {
                    let seen = self.push_mask(&[]);
                    let bits = &mut self.masks[seen as usize * words..];
                    set_bits(bits, prompt_token_ids);
                    set_bits(bits, output_token_ids);
                    self.adjustments.take_seen(adjustments, bits);
                    seen
                });
                SampleRow {
                    adjustments,
                    mask,
                    seen,
                    scale: if params.is_greedy() { 0.0 } else { 1.0 / params.temperature },
                    min_p: params.min_p,
                    top_p: params.top_p,
                    top_k: params.top_k.min(self.limits.vocab_size as u32),
                    repetition_penalty: params.repetition_penalty,
                    seed: *seed,
                    position: output_token_ids.len() as u64,
                    num_top,
                    ..SampleRow::greedy(logit_row)
                }
            }
        };
        self.uses[row.logit_row] = if described.adjustments[1] > 0 { Use::Adjusted } else { Use::Read };
        self.params.push(described.words());
        true
    }

    /// Adds a mask and returns its number. Tokens beyond the end of `bits` have none.
    fn push_mask(&mut self, bits: &[u32]) -> u32 {
        let words = mask_words(self.limits.vocab_size);
        let number = self.masks.len() / words;
        let bits = &bits[..bits.len().min(words)];
        self.masks.extend(bits);
        self.masks.resize((number + 1) * words, 0);
        number as u32
    }
}

/// Sets the bits of these tokens, but for those far beyond the vocabulary.
fn set_bits(mask: &mut [u32], tokens: &[u32]) {
    for token in tokens {
        if let Some(word) = mask.get_mut(*token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }
}

/// Refuses what is not there.
fn check(row: &SamplingRow<'_>, num_logit_rows: usize, vocab_size: usize) -> Result<(), String> {
    if row.logit_row >= num_logit_rows {
        return Err(format!("row {} of the logits is asked for, the last step has {num_logit_rows}", row.logit_row));
    }
    match row.task {
        RowTask::Score { token_id } if token_id as usize >= vocab_size => {
            return Err(format!("token {token_id} is not in the vocabulary"));
        }
        _ => (),
    }
    match row.num_logprobs {
        Some(n) if n > MAX_TOP => Err(format!("{n} alternatives are asked for, at most {MAX_TOP} are reported")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_apple_executor::SamplingParams;

    const VOCAB: usize = 40;

    fn plan() -> Plan {
        Plan::new(Limits { vocab_size: VOCAB, rows: 4, adjustments: VOCAB, masks: 2 })
    }

    fn row<'a>(logit_row: usize, params: &'a SamplingParams, allowed_tokens: Option<&'a [u32]>) -> SamplingRow<'a> {
        let task = RowTask::Sample {
            params,
            seed: 7,
            prompt_token_ids: &[1, 2, 3],
            output_token_ids: &[4, 5],
            eos_token_ids: &[],
            allowed_tokens,
        };
        SamplingRow { logit_row, task, num_logprobs: None }
    }

    fn turns(rows: &[SamplingRow<'_>]) -> Vec<usize> {
        let mut plan = plan();
        let mut left = rows;
        let mut turns = Vec::new();
        while !left.is_empty() {
            let num_rows = plan.make(left, 8).unwrap();
            assert!(num_rows > 0);
            turns.push(num_rows);
            left = &left[num_rows..];
        }
        turns
    }

    #[test]
    fn a_turn_ends_where_a_row_does_not_fit() {
        let plain = SamplingParams::default();
        let seen = SamplingParams { repetition_penalty: 1.5, ..plain.clone() };
        let counted = SamplingParams { presence_penalty: 1.5, ..plain.clone() };
        let all = SamplingParams { logit_bias: (0..VOCAB as u32).map(|token| (token, 1.0)).collect(), ..plain.clone() };
        // Rows.
        assert_eq!(turns(&[0, 1, 2, 3, 4, 5].map(|i| row(i, &plain, None))), [4, 2]);
        // Masks.
        assert_eq!(turns(&[0, 1, 2].map(|i| row(i, &plain, Some(&[1])))), [2, 1]);
        assert_eq!(turns(&[row(0, &seen, None), row(1, &plain, Some(&[1])), row(2, &plain, None)]), [3]);
        assert_eq!(turns(&[row(0, &seen, None), row(1, &seen, Some(&[1])), row(2, &plain, None)]), [1, 2]);
        // Adjustments: two tokens and all forty.
        assert_eq!(turns(&[row(0, &all, None), row(1, &counted, None), row(2, &counted, None)]), [1, 2]);
        assert_eq!(turns(&[row(0, &counted, None), row(1, &all, None), row(2, &counted, None)]), [1, 1, 1]);
        // A row of the logits that is adjusted has no company, others may have.
        assert_eq!(turns(&[row(3, &plain, None), row(3, &plain, Some(&[1])), row(3, &plain, None)]), [3]);
        assert_eq!(turns(&[row(3, &seen, None), row(3, &plain, None), row(3, &seen, None)]), [3]);
        assert_eq!(turns(&[row(3, &plain, None), row(3, &counted, None), row(3, &plain, None)]), [1, 1, 1]);
        assert_eq!(turns(&[row(3, &counted, None), row(2, &plain, None), row(3, &counted, None)]), [2, 1]);
        let score = SamplingRow { logit_row: 3, task: RowTask::Score { token_id: 3 }, num_logprobs: None };
        assert_eq!(turns(&[score.clone(), score.clone(), row(3, &counted, None), score]), [2, 1, 1]);
        assert_eq!(turns(&[]), [0; 0]);
    }

    #[test]
    fn rows_are_described_as_they_are() {
        let params = SamplingParams {
            temperature: 0.5,
            top_k: 1000,
            top_p: 0.7,
            min_p: 0.1,
            presence_penalty: 1.0,
            ..SamplingParams::default()
        };
        let mut greedy = params.clone();
        greedy.temperature = 1e-6;
        let mut plan = plan();
        let first = SamplingRow { num_logprobs: Some(3), ..row(2, &params, None) };
        let second = row(5, &greedy, Some(&[6]));
        let score = SamplingRow { logit_row: 1, task: RowTask::Score { token_id: 9 }, num_logprobs: Some(0) };
        assert_eq!(plan.make(&[first, second, score], 6), Ok(3));
        let described: Vec<SampleRow> = plan.params().iter().map(|words| SampleRow::of_words(*words)).collect();
        let expected = SampleRow {
            logit_row: 2,
            adjustments: [0, 2],
            scale: 2.0,
            min_p: 0.1,
            top_p: 0.7,
            top_k: VOCAB as u32,
            seed: 7,
            position: 2,
            num_top: Some(3),
            ..SampleRow::greedy(0)
        };
        assert_eq!(described[0], expected);
        let masked =
            SampleRow { logit_row: 5, adjustments: [2, 2], mask: Some(0), scale: 0.0, num_top: None, ..expected };
        assert_eq!(described[1], masked);
        assert_eq!(described[2], SampleRow { score: Some(9), num_top: Some(0), ..SampleRow::greedy(1) });
        assert_eq!(plan.masks(), [6, 0]);
        // What is adjusted says itself that it was seen; a token beyond the vocabulary was not.
        let seen = SamplingParams { repetition_penalty: 1.5, presence_penalty: 1.0, ..params };
        let mut both = row(0, &seen, Some(&[6, 1]));
        let RowTask::Sample { prompt_token_ids, .. } = &mut both.task else { unreachable!() };
        *prompt_token_ids = &[1, 4, 33, 64, 1000];
        plan.make(&[both], 6).unwrap();
        let described = SampleRow::of_words(plan.params()[0]);
        assert_eq!((described.mask, described.seen, described.adjustments), (Some(0), Some(1), [0, 2]));
        assert_eq!(plan.masks(), [6, 1, 2, 2]);
        assert!(plan.adjustments().iter().all(|words| Adjustment::of_words(*words).seen));
        // A longer mask than the vocabulary is cut.
        plan.make(&[row(0, &greedy, Some(&[1, 2, 3])), row(1, &greedy, Some(&[4]))], 6).unwrap();
        assert_eq!(plan.masks(), [1, 2, 4, 0]);
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let params = SamplingParams::default();
        let refused = |row: SamplingRow<'_>| plan().make(&[row], 3).unwrap_err();
        let score = |token_id| SamplingRow { logit_row: 2, task: RowTask::Score { token_id }, num_logprobs: Some(20) };
        assert_eq!(plan().make(&[score(39)], 3), Ok(1));
        assert_eq!(refused(score(40)), "token 40 is not in the vocabulary");
        assert_eq!(refused(row(3, &params, None)), "row 3 of the logits is asked for, the last step has 3");
        let many = SamplingRow { num_logprobs: Some(21), ..row(0, &params, None) };
        assert_eq!(refused(many), "21 alternatives are asked for, at most 20 are reported");
    }
}
