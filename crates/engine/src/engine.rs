//! The step: schedule, compute, sample, take in. Synchronous and owned by one thread; it knows no channels and no clock.

use std::sync::Arc;

use vllm_apple_executor::recycle;
use vllm_apple_executor::{Batch, Executor, ExecutorError, ExecutorInfo, RowResult, SamplingRow};

use crate::admission::{Admission, ConfigError, EngineConfig, SubmitError};
use crate::grammar::GrammarError;
use crate::masks::Masks;
use crate::request::{EngineRequest, FinishReason, Request, RequestId, RequestOutput};
use crate::scheduler::Scheduler;
use crate::speculation;
use crate::stats::EngineStats;

/// The engine cannot go on. Its requests are gone and it takes no more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the engine has stopped and must be restarted: {reason}")]
pub struct EngineError {
    /// What the executor said.
    pub reason: String,
}

/// Continuous batching over one executor.
#[derive(Debug)]
pub struct Engine<E: Executor> {
    executor: E,
    admission: Arc<Admission>,
    scheduler: Scheduler,
    masks: Masks,
    batch: Batch,
    /// Empty between steps.
    rows: Vec<SamplingRow<'static>>,
    answers: Vec<RowResult>,
    /// The same of hidden states.
    hidden: Vec<f32>,
    num_steps: u64,
    num_failed_steps: u64,
    dead: Option<EngineError>,
}

impl<E: Executor> Engine<E> {
    /// An engine within the executor's limits.
    ///
    /// # Errors
    /// If the limits are such that nothing could run, or a running request could starve.
    pub fn new(executor: E, config: EngineConfig) -> Result<Self, ConfigError> {
        let info = executor.info().clone();
        let scheduler = Scheduler::new(&info, config.enable_prefix_caching, config.speculation);
        let most_tokens = info.num_blocks.saturating_mul(info.block_size).saturating_add(1);
        if most_tokens < info.max_model_len {
            tracing::warn!(
                "the KV cache holds requests of {most_tokens} tokens at most, the model's length is {}: \
                 longer requests and those without max_tokens will be refused; \
                 lower max_model_len or give the KV cache more memory",
                info.max_model_len
            );
        }
        let admission = Arc::new(Admission::new(info, config)?);
        let info = &admission.info;
        Ok(Self {
            batch: Batch::with_room_for(info),
            rows: Vec::with_capacity(info.max_logit_rows),
            answers: Vec::with_capacity(info.max_logit_rows),
            hidden: Vec::with_capacity(info.max_logit_rows * info.embedding_size.unwrap_or(0)),
            executor,
            masks: Masks::new(info.vocab_size),
            admission,
            scheduler,
            num_steps: 0,
            num_failed_steps: 0,
            dead: None,
        })
    }

    /// What computes the steps.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// The same, between steps.
    pub fn executor_mut(&mut self) -> &mut E {
        &mut self.executor
    }

    /// The executor's limits.
    pub fn info(&self) -> &ExecutorInfo {
        &self.admission.info
    }

    /// The most that a step brings.
    pub fn max_outputs(&self) -> usize {
        self.info().max_num_seqs.max(self.admission.config.speculation.map_or(0, |_| speculation::MAX_TOKENS))
    }

    /// Queues a request.
    ///
    /// # Errors
    /// If it is invalid, can never fit, or the engine is full or dead.
    pub fn submit(&mut self, request: EngineRequest) -> Result<RequestId, SubmitError> {
        if let Some(error) = &self.dead {
            return Err(SubmitError::EngineDead(error.reason.clone()));
        }
        let request = self.admission.prepare(request)?;
        if self.num_unfinished_requests() >= self.admission.capacity() {
            return Err(self.admission.queue_full());
        }
        self.admission.hash(&request);
        let id = request.id;
        self.scheduler.add(request);
        Ok(id)
    }

    /// Drops a request and frees its blocks at once. `None` if it is unknown or has finished.
    pub fn abort(&mut self, id: RequestId) -> Option<RequestOutput> {
        self.masks.forget(id);
        self.scheduler.abort(id)
    }

    /// Drops all requests.
    pub fn abort_all(&mut self) -> Vec<RequestOutput> {
        self.masks.forget_all();
        self.scheduler.end_all(&FinishReason::Abort)
    }

    /// Runs one step and fills `outputs`, emptied first, with what it brought: for each request at most one output, or with
    /// [`Speculation`](crate::Speculation) at most one for each of its tokens, in their order. A step that fails ends its requests with [`FinishReason::Error`], and the next may run.
    ///
    /// Nothing is allocated for a step of any size but what belongs to a request: its lists when it begins to run, and the
    /// log-probabilities that it asks for. `outputs` should have room for [`Engine::max_outputs`].
    ///
    /// # Errors
    /// If the executor cannot go on. All requests are gone then, with all later calls failing the same way.
    pub fn step(&mut self, outputs: &mut Vec<RequestOutput>) -> Result<(), EngineError> {
        outputs.clear();
        if let Some(error) = &self.dead {
            return Err(error.clone());
        }
        self.scheduler.schedule();
        if self.scheduler.running().is_empty() {
            return Ok(());
        }
        self.masks.want(self.scheduler.running());
        self.scheduler.fill(&mut self.batch);
        self.num_steps += 1;
        match self.execute() {
            Ok(()) => match self.info().embedding_size {
                None => self.scheduler.update(self.answers.drain(..), outputs),
                Some(size) => self.scheduler.update_pooled(&self.hidden, size, outputs),
            },
            Err(ExecutorError::Step(reason)) => {
                tracing::error!("a step of {} requests failed: {reason}", self.batch.num_requests());
                self.num_failed_steps += 1;
                self.scheduler.fail_running(&reason, outputs);
            }
            Err(ExecutorError::Fatal(reason)) => return Err(self.die(reason)),
        }
        self.guide(outputs);
        Ok(())
    }

    /// Says of requests that their grammar ended why, and has the masks of those that go on computed while others take in the step.
    fn guide(&mut self, outputs: &mut [RequestOutput]) {
        for output in outputs.iter_mut().filter(|output| output.finish.is_some()) {
            if let Some(failure) = self.masks.failure(output.id) {
                let reason = format!("the grammar cannot go on: {failure}");
                output.finish = Some(match failure {
                    GrammarError::Form(_) => FinishReason::Invalid(reason),
                    GrammarError::OutOfMemory(_) => FinishReason::OutOfMemory(reason),
                    GrammarError::Internal(_) => FinishReason::Error(reason),
                });
            }
            self.masks.forget(output.id);
        }
        self.masks.want(self.scheduler.running());
    }

    /// Computes the batch and fills `answers`. Masks that take longer than what is between two steps are computed beside this one, which
    /// then samples in a second submission; its bits are the same.
    fn execute(&mut self) -> Result<(), ExecutorError> {
        if let Some(size) = self.info().embedding_size {
            return self.execute_pooled(size);
        }
        let in_one = self.masks.are_here(self.scheduler.running());
        if !in_one {
            self.executor.forward(&self.batch)?;
            self.masks.wait(self.scheduler.running());
        }
        let mut rows: Vec<SamplingRow<'_>> = std::mem::take(&mut self.rows);
        self.scheduler.sampling_rows(&self.masks, &mut rows);
        let expected = rows.len();
        let result = match in_one {
            true => self.executor.step(&self.batch, &rows, &mut self.answers),
            false if rows.is_empty() => {
                self.answers.clear();
                Ok(())
            }
            false => self.executor.sample(&rows, &mut self.answers),
        };
        self.rows = recycle(rows);
        result?;
        match self.answers.len() {
            got if got == expected => Ok(()),
            got => Err(ExecutorError::Fatal(format!("the executor answered {got} of {expected} sampling rows"))),
        }
    }

    /// Computes the batch and fills `hidden`.
    fn execute_pooled(&mut self, size: usize) -> Result<(), ExecutorError> {
        self.executor.forward(&self.batch)?;
        self.executor.hidden(&mut self.hidden)?;
        let (expected, got) = (self.batch.logit_rows.len() * size, self.hidden.len());
        match got == expected {
            true => Ok(()),
            false => Err(ExecutorError::Fatal(format!("the executor has {got} elements of {expected} hidden ones"))),
        }
    }

    fn die(&mut self, reason: String) -> EngineError {
        tracing::error!("the executor cannot go on: {reason}");
        self.masks.forget_all();
        self.scheduler.end_all(&FinishReason::Error(reason.clone()));
        let error = EngineError { reason };
        self.dead = Some(error.clone());
        error
    }

    /// Empties the prefix cache, if no request runs. Whether it did.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.scheduler.reset_prefix_cache()
    }

    /// Whether a step has something to do.
    pub fn has_unfinished_requests(&self) -> bool {
        self.num_unfinished_requests() > 0
    }

    fn num_unfinished_requests(&self) -> usize {
        self.scheduler.running().len() + self.scheduler.num_waiting()
    }

    /// Requests that the last step took from the queue, preempted ones that it resumed among them.
    pub fn newly_scheduled(&self) -> &[RequestId] {
        self.scheduler.newly_scheduled()
    }

    /// The state now and the totals so far.
    pub fn stats(&self) -> EngineStats {
        let kv = self.scheduler.kv();
        let totals = &self.scheduler.totals;
        EngineStats {
            num_running: self.scheduler.running().len(),
            num_waiting: self.scheduler.num_waiting(),
            kv_cache_usage: kv.num_used_blocks() as f64 / kv.num_blocks() as f64,
            num_used_blocks: kv.num_used_blocks(),
            num_blocks: kv.num_blocks(),
            prefix_cache_queries: kv.prefix_cache_queries,
            prefix_cache_hits: kv.prefix_cache_hits,
            num_preemptions: totals.preemptions,
            prompt_tokens: totals.prompt_tokens,
            generation_tokens: totals.generation_tokens,
            num_drafts: totals.drafts,
            num_draft_tokens: totals.draft_tokens,
            num_accepted_tokens: totals.accepted_tokens,
            num_steps: self.num_steps,
            num_failed_steps: self.num_failed_steps,
            last_step_tokens: self.batch.num_tokens(),
            last_step_requests: self.batch.num_requests(),
        }
    }

    /// Checks that free and held blocks add up, that every holder is counted, that the prefix cache and the blocks agree,
    /// and that each request's lengths are in order.
    ///
    /// # Errors
    /// What is wrong: a bug of the engine.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.scheduler.check_integrity()
    }

    pub(crate) fn admission(&self) -> Arc<Admission> {
        Arc::clone(&self.admission)
    }

    /// Queues a request that was prepared on another thread.
    pub(crate) fn add(&mut self, request: Request) {
        self.scheduler.add(request);
    }
}

#[cfg(all(test, feature = "fake"))]
mod tests {
    use super::*;
    use crate::fake::{FakeConfig, FakeExecutor};

    #[test]
    fn the_integrity_check_is_that_of_the_scheduler() {
        let config = EngineConfig::default();
        let mut engine = Engine::new(FakeExecutor::new(FakeConfig::default()), config).unwrap();
        let mut request = engine.admission().prepare(EngineRequest::new(vec![1], Default::default())).unwrap();
        assert_eq!(engine.check_integrity(), Ok(()));
        request.num_computed_tokens = 1;
        engine.add(request);
        assert!(engine.check_integrity().is_err(), "it waits and counts a token");
    }
}
