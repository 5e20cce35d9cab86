//! One step: from what vLLM scheduled to the executor's batch, and from its answers to tokens. It knows no Python.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use vllm_apple_executor::{Batch, Executor, ExecutorError, RowError, RowResult, RowTask, SamplingRow};

use crate::load::EngineError;
use crate::logprobs::Table;
use crate::request::Request;
use crate::requests::Requests;

/// Masks of the tokens that grammars allow, by request.
pub type Grammar = HashMap<String, Vec<u32>>;

/// What a step brought, request by request in the order in which they were scheduled.
#[derive(Default)]
pub struct Outcome {
    /// One token, or none while the prompt is not computed.
    pub tokens: Vec<Vec<u32>>,
    /// A row per request, if any request asked.
    pub logprobs: Option<Table>,
    /// The scores of whole prompts.
    pub prompt_logprobs: Vec<(String, Table)>,
    /// Requests that have no token any more, and why; whether their logits are no numbers.
    pub failed: Vec<(String, String, bool)>,
}

/// What computes, and the memory of its steps.
pub struct Stepper {
    executor: Box<dyn Executor>,
    batch: Batch,
    answers: Vec<RowResult>,
    /// In the executor, since the start.
    time: Duration,
}

impl Stepper {
    pub fn new(executor: Box<dyn Executor>) -> Self {
        let batch = Batch::with_room_for(executor.info());
        Self { executor, batch, answers: Vec::new(), time: Duration::ZERO }
    }

    /// In the executor, since the start.
    pub fn executor_time(&self) -> Duration {
        self.time
    }

    /// Computes so many tokens of each of these requests.
    pub fn step(
        &mut self,
        requests: &mut Requests,
        scheduled: &[(String, usize)],
        grammar: &Grammar,
    ) -> Result<Outcome, EngineError> {
        let mut outcome = Outcome::default();
        for (id, num_tokens) in scheduled {
            let request = requests.get_mut(id)?;
            request.schedule(*num_tokens, self.executor.info().block_size).map_err(|problem| {
                EngineError::Use(format!("request {id} cannot be computed as scheduled: {problem}"))
            })?;
            if request.lost {
                end(id, request, "the engine slept while it ran".to_owned(), false, &mut outcome);
            }
            self.score(id, request, &mut outcome)?;
        }
        self.compute(requests, scheduled, grammar)?;
        self.take_answers(requests, scheduled, grammar, &mut outcome)?;
        Ok(outcome)
    }

    /// Computes and scores a request's prompt tokens up to the last of its chunk, which the others' step computes: scoring takes a row of
    /// logits per token, and there may be fewer rows than tokens in a step. The results do not depend on how a prompt is cut.
    fn score(&mut self, id: &str, request: &mut Request, outcome: &mut Outcome) -> Result<(), EngineError> {
        let info = self.executor.info();
        let (block_size, most) = (info.block_size, info.max_logit_rows.min(info.max_num_batched_tokens));
        let last = request.end - 1;
        while !request.to_score(request.num_computed..last).is_empty() {
            let start = request.num_computed;
            let end = request.to_score(start..last.min(start + most)).end;
            let scored = request.to_score(start..end);
            self.batch.clear(end.div_ceil(block_size));
            request.push(start..end, block_size, scored.len(), &mut self.batch);
            let row = |position: usize| SamplingRow {
                logit_row: position - scored.start,
                task: RowTask::Score { token_id: request.tokens[position + 1] },
                num_logprobs: request.params.prompt_logprobs.map(|n| n as usize),
            };
            let rows: Vec<_> = scored.clone().map(row).collect();
            let start = Instant::now();
            step_or_repeat(&mut *self.executor, &self.batch, &rows, &mut self.answers)?;
            self.time += start.elapsed();
            for answer in self.answers.drain(..) {
                match answer {
                    Ok(score) => request.scores.push(score),
                    Err(error) => fail(id, request, &error, false, outcome),
                }
            }
            request.num_computed = end;
        }
        Ok(())
    }

    /// The step of all requests: one row of logits for each that picks or scores a token.
    fn compute(
        &mut self,
        requests: &Requests,
        scheduled: &[(String, usize)],
        grammar: &Grammar,
    ) -> Result<(), EngineError> {
        let (block_size, vocab_size) = (self.executor.info().block_size, self.executor.info().vocab_size);
        let chosen: Vec<&Request> = scheduled.iter().map(|(id, _)| requests.get(id)).collect::<Result<_, _>>()?;
        let mask = |(request, (id, _)): (&&Request, &(String, usize))| match request.is_complete() {
            true => request.mask(grammar.get(id).map(Vec::as_slice), vocab_size),
            false => None,
        };
        let masks: Vec<_> = chosen.iter().zip(scheduled).map(mask).collect();
        self.batch.clear(chosen.iter().map(|request| request.end.div_ceil(block_size)).max().unwrap_or(0));
        let mut rows = Vec::with_capacity(chosen.len());
        for (request, mask) in chosen.into_iter().zip(&masks) {
            let row = request.row(rows.len(), mask.as_deref());
            request.push(request.num_computed..request.end, block_size, row.iter().len(), &mut self.batch);
            rows.extend(row);
        }
        let start = Instant::now();
        step_or_repeat(&mut *self.executor, &self.batch, &rows, &mut self.answers)?;
        self.time += start.elapsed();
        Ok(())
    }

    fn take_answers(
        &mut self,
        requests: &mut Requests,
        scheduled: &[(String, usize)],
        grammar: &Grammar,
        outcome: &mut Outcome,
    ) -> Result<(), EngineError> {
        let mut answers = self.answers.drain(..);
        let mut samples = Vec::with_capacity(scheduled.len());
        let mut num_logprobs = None;
        for (id, _) in scheduled {
            let request = requests.get_mut(id)?;
            let (has_row, scores) = (request.has_row(), request.scores_last());
            let mut token = None;
            match has_row.then(|| answers.next().expect("an answer per row")) {
                Some(Ok(score)) if scores => request.scores.push(score),
                Some(Ok(sample)) => {
                    outcome.prompt_logprobs.extend(request.prompt_table().map(|table| (id.clone(), table)));
                    token = Some(sample);
                }
                Some(Err(error)) => fail(id, request, &error, grammar.contains_key(id), outcome),
                None => {}
            }
            let token = token.or_else(|| (request.failed && request.is_complete()).then(|| request.end_sample()));
            if token.is_some() {
                num_logprobs = num_logprobs.max(request.params.logprobs);
            }
            let token_id = token.as_ref().map(|sample| sample.token_id);
            request.tokens.extend(token_id);
            outcome.tokens.push(token_id.into_iter().collect());
            samples.push(token);
        }
        outcome.logprobs = num_logprobs.map(|n| {
            let mut table = Table::new(n as usize);
            samples.iter().for_each(|sample| table.push(sample.as_ref()));
            table
        });
        Ok(())
    }
}

/// A failed step leaves nothing behind that its repetition does not write anew; and vLLM would end with every request that it has.
fn step_or_repeat(
    executor: &mut dyn Executor,
    batch: &Batch,
    rows: &[SamplingRow<'_>],
    answers: &mut Vec<RowResult>,
) -> Result<(), ExecutorError> {
    match executor.step(batch, rows, answers) {
        Err(error @ ExecutorError::Step(_)) => {
            tracing::error!("{error}; repeating it");
            executor.step(batch, rows, answers)
        }
        result => result,
    }
}

/// Its own fault, so it ends alone.
fn fail(id: &str, request: &mut Request, error: &RowError, has_grammar: bool, outcome: &mut Outcome) {
    let reason = match error {
        // The executor knows masks and biases, not what they were made of.
        RowError::NoTokenAllowed { .. } => {
            let grammar = if has_grammar { "its grammar (`structured_outputs`), " } else { "" };
            format!("{error}; {grammar}`allowed_token_ids` and `bad_words` may forbid tokens, too")
        }
        RowError::NotFinite { .. } => error.to_string(),
    };
    end(id, request, reason, matches!(error, RowError::NotFinite { .. }), outcome);
}

fn end(id: &str, request: &mut Request, reason: String, is_nan: bool, outcome: &mut Outcome) {
    if !request.failed {
        request.failed = true;
        outcome.failed.push((id.to_owned(), reason, is_nan));
    }
}
