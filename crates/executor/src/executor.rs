//! The seam between scheduling and computing: a step is `forward`, then `sample`, or both at once. It hides the model and the backend.

use crate::batch::Batch;
use crate::info::ExecutorInfo;
use crate::sampling_params::SamplingParams;

/// Computes steps. The server's engine drives it, and so may another scheduler; tests of the layers above use a fake one.
pub trait Executor: Send {
    /// The limits that the executor was built with.
    fn info(&self) -> &ExecutorInfo;

    /// Computes every token of `batch`: writes keys and values to the cache, keeps the logits of `batch.logit_rows`. A layer's keys and values are all
    /// written before any are read: a request may have blocks in its table that another one fills in the same step.
    ///
    /// # Errors
    /// The step failed as a whole: no token of it may be trusted, the cache's older content may.
    fn forward(&mut self, batch: &Batch) -> Result<(), ExecutorError>;

    /// Picks or scores tokens from the logits of the last `forward`. `out` is emptied first; then `out[i]` answers `rows[i]`: with a
    /// [`RowError`] where that row alone has no answer.
    ///
    /// # Errors
    /// As [`Executor::forward`]; what `out` holds then has no meaning.
    fn sample(&mut self, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError>;

    /// Puts the hidden states behind the final norm into `out`, emptied first: `[logit_rows, embedding_size]` of the last `forward`, in f32.
    ///
    /// # Errors
    /// It answers with logits, or as [`Executor::forward`].
    fn hidden(&mut self, out: &mut Vec<f32>) -> Result<(), ExecutorError> {
        out.clear();
        Err(ExecutorError::Step("the model answers with logits, not with hidden states".to_owned()))
    }

    /// [`Executor::forward`], and then [`Executor::sample`] if there are rows: for callers who know the rows beforehand. An executor
    /// whose device samples submits both at once.
    ///
    /// # Errors
    /// As both.
    fn step(&mut self, batch: &Batch, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        out.clear();
        self.forward(batch)?;
        if rows.is_empty() { Ok(()) } else { self.sample(rows, out) }
    }
}

impl<E: Executor + ?Sized> Executor for Box<E> {
    fn info(&self) -> &ExecutorInfo {
        (**self).info()
    }

    fn forward(&mut self, batch: &Batch) -> Result<(), ExecutorError> {
        (**self).forward(batch)
    }

    fn sample(&mut self, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        (**self).sample(rows, out)
    }

    fn hidden(&mut self, out: &mut Vec<f32>) -> Result<(), ExecutorError> {
        (**self).hidden(out)
    }

    fn step(&mut self, batch: &Batch, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        (**self).step(batch, rows, out)
    }
}

/// An empty list in the memory of `rows`, for rows that borrow from something else.
pub fn recycle<'a>(mut rows: Vec<SamplingRow<'_>>) -> Vec<SamplingRow<'a>> {
    rows.clear();
    // Nothing is converted, and what collects a vector's own iterator keeps its memory.
    rows.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

/// One row of the logits and what to do with it.
#[derive(Debug, Clone)]
pub struct SamplingRow<'a> {
    /// Index into the last batch's `logit_rows`.
    pub logit_row: usize,
    /// Pick a token, or score a known one.
    pub task: RowTask<'a>,
    /// Alternatives to report beside the token's own log-probability; `None` reports nothing.
    pub num_logprobs: Option<usize>,
}

/// What is asked of one row of logits.
#[derive(Debug, Clone)]
pub enum RowTask<'a> {
    /// Pick the next token.
    Sample {
        /// How to pick.
        params: &'a SamplingParams,
        /// Key of the request's random stream: `params.seed`, or the one that the engine chose.
        seed: u64,
        /// The prompt, for the penalties.
        prompt_token_ids: &'a [u32],
        /// The output so far, for the penalties and `min_tokens`; its length is the position in the random stream.
        output_token_ids: &'a [u32],
        /// End tokens, `ignore_eos` or not: like `params.stop_token_ids` not picked before `min_tokens`, as in vLLM.
        eos_token_ids: &'a [u32],
        /// What a grammar allows: bit `t % 32` of word `t / 32` allows token `t`, and none beyond the end is allowed; `None` allows all.
        /// As in vLLM, log-probabilities are among these tokens. What else a request may not pick does not count in them: a `logit_bias`
        /// of negative infinity bans it, and so may this mask where no log-probabilities are asked for.
        allowed_tokens: Option<&'a [u32]>,
    },
    /// Score this token (`prompt_logprobs`).
    Score {
        /// The token that follows in the prompt.
        token_id: u32,
    },
}

/// A picked or scored token. Its log-probabilities are the one part of a step's result that is allocated for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The token.
    pub token_id: u32,
    /// Its log-probability and its alternatives, if the row asked for them.
    pub logprobs: Option<TokenLogprobs>,
}

/// The answer to one row.
pub type RowResult = Result<Sample, RowError>;

/// Why a model computes no numbers, and what to do.
pub const NOT_FINITE: &str = "its weights are damaged or do not suit this input; float16, which ends at 65504, may be too narrow for it: where \
                              `dtype` is that, try bfloat16 or float32";

/// Why a row has no token. It is the fault of the row's own request: other rows of the step are as right as without it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// What the request asks for leaves nothing to pick.
    #[error("no token may be picked: {forbidden_by}; allow at least one token")]
    NoTokenAllowed {
        /// The parameters that forbid tokens.
        forbidden_by: &'static str,
    },
    /// The model computed no finite logit for this request.
    #[error("the model's largest logit is {max}: {NOT_FINITE}")]
    NotFinite {
        /// The largest logit, as text; NaN if one is.
        max: String,
    },
}

impl RowError {
    /// Why `task`, whose largest of `vocab_size` logits after all changes is `max`, has no token.
    pub fn new(task: &RowTask<'_>, vocab_size: usize, max: f32) -> Self {
        if let RowTask::Sample { params, output_token_ids, eos_token_ids, allowed_tokens, .. } = task
            && max == f32::NEG_INFINITY
        {
            let must_go_on = output_token_ids.len() < params.min_tokens as usize;
            let bans = params.logit_bias.iter().filter(|(_, bias)| *bias == f32::NEG_INFINITY);
            let mut forbidden: Vec<u32> = bans.map(|(token, _)| *token).collect();
            let banned = !forbidden.is_empty();
            if must_go_on {
                forbidden.extend(params.stop_token_ids.iter().chain(*eos_token_ids));
            }
            if leave_a_token(*allowed_tokens, forbidden, vocab_size) {
                return Self::NotFinite { max: max.to_string() };
            }
            let forbidden_by = match (allowed_tokens.is_some(), must_go_on, banned) {
                (true, true, _) => {
                    "`min_tokens` holds back all that `allowed_token_ids` or a form of the answer allows"
                }
                (true, false, true) => "`logit_bias` bans all that `allowed_token_ids` or a form of the answer allows",
                (true, false, false) => "`allowed_token_ids`, or a form of the answer, allows none",
                (false, true, true) => "`min_tokens` with `stop_token_ids`, and `logit_bias`, forbid all of them",
                (false, true, false) => "`min_tokens` holds back all `stop_token_ids`, which are the whole vocabulary",
                (false, false, _) => "`logit_bias` bans all of them",
            };
            return Self::NoTokenAllowed { forbidden_by };
        }
        Self::NotFinite { max: max.to_string() }
    }
}

/// Whether a token is left that may be picked, so that its logit is what is wrong: one that is no number counts as -inf.
fn leave_a_token(allowed: Option<&[u32]>, mut forbidden: Vec<u32>, vocab_size: usize) -> bool {
    forbidden.sort_unstable();
    let is_allowed = |token: u32| allowed.is_none_or(|mask| allows(mask, token));
    (0..vocab_size as u32).any(|token| is_allowed(token) && forbidden.binary_search(&token).is_err())
}

/// Whether a mask of [`RowTask::Sample`]'s `allowed_tokens` has the token.
pub fn allows(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Log-probabilities at one position, from the logits behind the grammar's mask and before biases, penalties and temperature (vLLM's
/// `raw_logprobs`). What the grammar forbids has negative infinity.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// The token's rank in the vocabulary: 1 is the most likely.
    pub rank: u32,
    /// The most likely tokens and their log-probabilities, best first; ties go to the smaller id. Where a grammar allows fewer than are
    /// asked for, forbidden ones follow: the list is as long as without it, as in vLLM.
    pub top: Vec<(u32, f32)>,
}

/// A failed step. What concerns one request alone is a [`RowError`].
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExecutorError {
    /// This step's requests fail; the next step may run.
    #[error("the step failed: {0}")]
    Step(String),
    /// The executor cannot go on: the engine must stop, loudly.
    #[error("the device is lost: {0}")]
    Fatal(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes down what it is asked.
    struct Log(ExecutorInfo, Vec<&'static str>);

    impl Executor for Log {
        fn info(&self) -> &ExecutorInfo {
            &self.0
        }

        fn forward(&mut self, _: &Batch) -> Result<(), ExecutorError> {
            self.1.push("forward");
            Ok(())
        }

        fn sample(&mut self, _: &[SamplingRow<'_>], _: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
            self.1.push("sample");
            Ok(())
        }
    }

    #[test]
    fn a_request_is_at_fault_only_if_it_leaves_no_token() {
        let is_its_fault = |allowed: Option<&[u32]>, min_tokens: u32, stop: &[u32], banned: &[u32]| {
            let logit_bias = banned.iter().map(|&token| (token, f32::NEG_INFINITY)).collect();
            let params = SamplingParams { min_tokens, stop_token_ids: stop.into(), logit_bias, ..Default::default() };
            let task = RowTask::Sample {
                params: &params,
                seed: 0,
                prompt_token_ids: &[5],
                output_token_ids: &[],
                eos_token_ids: &[1],
                allowed_tokens: allowed,
            };
            assert!(matches!(RowError::new(&task, 34, f32::INFINITY), RowError::NotFinite { .. }));
            matches!(RowError::new(&task, 34, f32::NEG_INFINITY), RowError::NoTokenAllowed { .. })
        };
        // Tokens 0, 1 and 33, and one that there is not.
        let mask = Some(&[0b11, 0b110][..]);
        assert!(!is_its_fault(mask, 0, &[0, 33], &[]), "nothing is held back");
        assert!(!is_its_fault(mask, 1, &[0], &[]));
        assert!(is_its_fault(mask, 1, &[0, 33], &[]));
        assert!(is_its_fault(mask, 1, &[700], &[33, 0]));
        assert!(is_its_fault(Some(&[0, 0]), 0, &[], &[]));
        assert!(!is_its_fault(None, 1, &[], &[]));
        assert!(!is_its_fault(None, 1, &[2], &[3]), "token 0 is left");
        let all: Vec<u32> = (0..34).collect();
        assert!(is_its_fault(None, 1, &all[2..], &[0]), "token 1 ends the answer");
        assert!(!is_its_fault(None, 0, &all, &[]));
    }

    #[test]
    fn a_mask_has_the_tokens_of_its_bits_and_none_beyond_them() {
        let allowed = |mask: &[u32]| (0..100).filter(|&token| allows(mask, token)).collect::<Vec<u32>>();
        assert_eq!(allowed(&[1 << 31 | 0b101, 0b10]), [0, 2, 31, 33]);
        assert_eq!(allowed(&[]), [0; 0]);
    }

    #[test]
    fn a_box_and_a_step_ask_the_executor() {
        let info = ExecutorInfo {
            vocab_size: 1,
            max_model_len: 1,
            max_num_batched_tokens: 1,
            costly_context: None,
            embedding_size: None,
            max_num_seqs: 1,
            max_logit_rows: 1,
            block_size: 1,
            num_blocks: 1,
        };
        let mut boxed = Box::new(Log(info, Vec::new()));
        let row = SamplingRow { logit_row: 0, task: RowTask::Score { token_id: 0 }, num_logprobs: None };
        let mut out = vec![Err(RowError::new(&row.task, 1, 0.0))];
        Executor::forward(&mut boxed, &Batch::default()).unwrap();
        Executor::sample(&mut boxed, std::slice::from_ref(&row), &mut out).unwrap();
        assert_eq!(boxed.1, ["forward", "sample"]);
        Executor::step(&mut boxed, &Batch::default(), &[], &mut out).unwrap();
        assert_eq!((&boxed.1[2..], out.len()), (&["forward"][..], 0));
        Executor::step(&mut boxed, &Batch::default(), &[row], &mut out).unwrap();
        assert_eq!(boxed.1[3..], ["forward", "sample"]);
    }
}
