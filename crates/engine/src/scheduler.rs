//! Decides which tokens each step computes, and takes in what it brought. It knows lengths and blocks, no executor.

use std::collections::VecDeque;

use vllm_apple_executor::{Batch, ExecutorInfo, NOT_FINITE, RowError, RowResult, RowTask, Sample, SamplingRow};

use crate::budget::{Budget, Own};
use crate::kv_cache_manager::KvCacheManager;
use crate::masks::Masks;
use crate::prompt::Prompt;
use crate::request::{Chunk, FinishReason, Request, RequestId, RequestOutput};
use crate::speculation::{self, Speculation, next_drafts};

/// Requests that wait for a prefix and are passed by others, those with one prompt counted once: a step looks their blocks up again.
const MAX_PASSED: usize = 16;

/// All requests of the engine. Every running request is part of every step; the rest waits, first come first served.
#[derive(Debug)]
pub(crate) struct Scheduler {
    running: Vec<Request>,
    waiting: VecDeque<Request>,
    kv: KvCacheManager,
    info: ExecutorInfo,
    newly_scheduled: Vec<RequestId>,
    next_turn: u64,
    speculation: Option<Speculation>,
    /// Those of the request that is taken in.
    drafts: Vec<u32>,
    pub totals: Totals,
}

/// Counters that only grow.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub preemptions: u64,
    pub prompt_tokens: u64,
    pub generation_tokens: u64,
    pub drafts: u64,
    pub draft_tokens: u64,
    pub accepted_tokens: u64,
}

impl Scheduler {
    pub fn new(info: &ExecutorInfo, prefix_caching: bool, speculation: Option<Speculation>) -> Self {
        Self {
            running: Vec::with_capacity(info.max_num_seqs),
            waiting: VecDeque::new(),
            kv: KvCacheManager::new(info.num_blocks, info.block_size, prefix_caching),
            info: info.clone(),
            newly_scheduled: Vec::with_capacity(info.max_num_seqs),
            next_turn: 0,
            speculation,
            drafts: Vec::with_capacity(speculation::MAX_TOKENS),
            totals: Totals::default(),
        }
    }

    pub fn running(&self) -> &[Request] {
        &self.running
    }

    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn kv(&self) -> &KvCacheManager {
        &self.kv
    }

    /// Empties the prefix cache, if no request runs. Whether it did.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.kv.reset_prefix_cache()
    }

    /// Requests that the last [`Scheduler::schedule`] let run, resumed ones included.
    pub fn newly_scheduled(&self) -> &[RequestId] {
        &self.newly_scheduled
    }

    pub fn add(&mut self, mut request: Request) {
        request.turn = self.next_turn;
        self.next_turn += 1;
        // Room for it and for the running requests, should they be preempted.
        self.waiting.reserve(1 + self.running.len());
        self.waiting.push_back(request);
    }

    /// Drops a request wherever it is.
    pub fn abort(&mut self, id: RequestId) -> Option<RequestOutput> {
        let mut request = if let Some(i) = self.running.iter().position(|request| request.id == id) {
            self.running.remove(i)
        } else {
            let i = self.waiting.iter().position(|request| request.id == id)?;
            self.waiting.remove(i)?
        };
        Some(end(&mut self.kv, &mut request, FinishReason::Abort))
    }

    /// Gives every running request its chunk of the coming step, then lets waiting ones join.
    pub fn schedule(&mut self) {
        self.newly_scheduled.clear();
        let mut budget = Budget::new(&self.info, self.running.len(), self.waiting.len());
        self.schedule_running(&mut budget);
        self.schedule_waiting(&mut budget);
        self.use_what_is_left(&mut budget);
        self.draft(&budget);
        debug_assert!(!self.running.is_empty() || self.waiting.is_empty(), "a step must make progress");
    }

    /// Older requests come first; each has a token at least, so that no decode starves behind a prefill. Whoever needs a block that is not there takes
    /// it from the youngest.
    fn schedule_running(&mut self, budget: &mut Budget) {
        let is_in_prompt = |request: &Request| request.num_computed_tokens + 1 < request.num_tokens();
        let last_in_prompt = self.running.iter().rposition(is_in_prompt);
        let mut i = 0;
        while i < self.running.len() {
            let others_behind = self.others_may_join() || last_in_prompt > Some(i);
            let chunk = budget.chunk(&self.running[i], Own::One, others_behind);
            if self.kv.grow(&mut self.running[i], chunk.num_tokens) {
                let request = &mut self.running[i];
                request.chunk = chunk;
                budget.spend(request, Own::One, others_behind);
                self.kv.offer(request);
                i += 1;
            } else {
                self.preempt_youngest();
            }
        }
    }

    /// Preemption by recomputation: the request loses its blocks, keeps its tokens, and goes back to its place in the queue.
    /// The oldest request never loses its blocks to itself: alone it fits, or it would have been refused at submission.
    /// The youngest cannot join again in the same step: it needs at least the blocks that it lost, of which one is gone.
    fn preempt_youngest(&mut self) {
        if let Some(mut request) = self.running.pop() {
            self.kv.free(&mut request);
            // The front, but for those that it has passed.
            let at = self.waiting.partition_point(|other| other.turn < request.turn);
            self.waiting.insert(at, request);
            self.totals.preemptions += 1;
        }
    }

    /// What was left for others and nobody has taken is for the prompts that go on, older ones first.
    fn use_what_is_left(&mut self, budget: &mut Budget) {
        budget.leave_nothing();
        for request in self.running.iter_mut().filter(|request| request.goes_on()) {
            if !budget.has_rest() {
                break;
            }
            let chunk = std::mem::take(&mut request.chunk);
            // As if it were computed, to see what comes behind it.
            request.num_computed_tokens += chunk.num_tokens;
            let more = budget.chunk(request, Own::Nothing, false);
            if self.kv.grow(request, more.num_tokens) {
                request.chunk = more;
                budget.spend(request, Own::Nothing, false);
            }
            request.num_computed_tokens -= chunk.num_tokens;
            request.chunk.num_tokens += chunk.num_tokens;
            request.chunk.num_logits += chunk.num_logits;
            self.kv.offer(request);
        }
    }

    /// First come, first served, but for requests whose prefix another one computes: those behind them do not wait for that.
    fn schedule_waiting(&mut self, budget: &mut Budget) {
        let (mut first, mut passed) = (0, 0);
        let mut awaiting: Option<Prompt> = None;
        while self.running.len() < self.info.max_num_seqs && passed < MAX_PASSED && budget.has_room() {
            let Some(request) = self.waiting.get(first) else { break };
            // Several answers to one prompt wait for the same.
            if awaiting.as_ref().is_some_and(|prompt| prompt.is_same(&request.prompt)) {
                first += 1;
                continue;
            }
            let Some(mut request) = self.waiting.remove(first) else { break };
            request.begin(self.kv.block_size(), self.kv.prefix_caching(), self.info.embedding_size);
            if self.others_compute_its_prefix(&request) {
                awaiting = Some(request.prompt.clone());
                self.waiting.insert(first, request);
                (first, passed) = (first + 1, passed + 1);
                continue;
            }
            if !self.kv.start(&mut request) {
                self.waiting.insert(first, request);
                break;
            }
            self.newly_scheduled.push(request.id);
            // The end, but for those that have passed it.
            let at = self.running.partition_point(|other| other.turn < request.turn);
            self.running.insert(at, request);
            let others_behind = self.others_may_join();
            let request = &mut self.running[at];
            request.chunk = budget.chunk(request, Own::Nothing, others_behind);
            budget.spend(request, Own::Nothing, others_behind);
            self.kv.offer(request);
        }
    }

    /// Whether there is somebody to join, and a place.
    fn others_may_join(&self) -> bool {
        !self.waiting.is_empty() && self.running.len() < self.info.max_num_seqs
    }

    /// Whether a prompt that goes on after the step has the next block that the request would have to compute: it waits for that.
    fn others_compute_its_prefix(&self, request: &Request) -> bool {
        let mut unfinished = self.running.iter().filter(|other| other.goes_on()).peekable();
        unfinished.peek().is_some()
            && self.kv.first_unknown(request).is_some_and(|block| {
                // One that has passed the block would not make it known again.
                let has_it_ahead = |other: &Request| {
                    other.num_cached_blocks <= block
                        && other.block_hashes.get(block) == Some(&request.block_hashes[block])
                };
                unfinished.any(has_it_ahead)
            })
    }

    /// Adds drafts to the chunks of a small step in which no prompt is computed, of what limits and free blocks are left. Nobody loses anything
    /// for them.
    fn draft(&mut self, budget: &Budget) {
        let Some(speculation) = self.speculation else { return };
        let num_requests = self.running.len();
        if self.running.iter().any(|request| request.chunk.num_tokens > 1) {
            return;
        }
        let mut room = speculation::MAX_TOKENS.saturating_sub(num_requests).min(budget.rows_left());
        for (i, request) in self.running.iter_mut().enumerate().filter(|(_, request)| request.takes_drafts()) {
            // The last token of all is picked, and never computed.
            let useful = (request.max_num_tokens - request.num_tokens()).saturating_sub(1);
            let most = room.div_ceil(num_requests - i).min(request.most_drafts).min(useful);
            let known = request.token_ids.len();
            speculation.draft(&mut request.token_ids, most);
            let drafts = request.token_ids.len() - known;
            if !self.kv.grow(request, 1 + drafts) {
                request.token_ids.truncate(known);
                continue;
            }
            request.num_drafts = drafts;
            request.chunk.num_tokens += drafts;
            request.chunk.num_logits += drafts;
            room -= drafts;
        }
    }

    /// Lays out the scheduled chunks for the executor.
    pub fn fill(&self, batch: &mut Batch) {
        let stride = self.running.iter().map(|request| request.block_table.len()).max().unwrap_or(0);
        batch.clear(stride);
        for request in &self.running {
            let start = request.num_computed_tokens;
            let tokens = &request.token_ids[start..start + request.chunk.num_tokens];
            batch.push_request(tokens, start, &request.block_table, self.kv.block_size(), request.chunk.num_logits);
        }
    }

    /// Appends what is asked of each row of the batch's logits.
    pub fn sampling_rows<'a>(&'a self, masks: &'a Masks, rows: &mut Vec<SamplingRow<'a>>) {
        for request in &self.running {
            let end = request.num_computed_tokens + request.chunk.num_tokens;
            for position in end - request.chunk.num_logits..end {
                rows.push(sampling_row(request, masks, position, rows.len()));
            }
        }
    }

    /// Takes in a successful step: `answers` are those to [`Scheduler::sampling_rows`]. Appends what it brought to `outputs`. A row that
    /// has no token ends its own request; the others do not notice.
    pub fn update(&mut self, mut answers: impl Iterator<Item = RowResult>, outputs: &mut Vec<RequestOutput>) {
        let most_drafts = self.speculation.map_or(0, |speculation| speculation.num_speculative_tokens);
        let Self { kv, totals, drafts, .. } = self;
        self.running.retain_mut(|request| {
            let picks_token = request.picks_token();
            let Chunk { num_tokens, num_logits } = std::mem::take(&mut request.chunk);
            request.take_drafts(drafts);
            let num_scores = num_logits - if picks_token { 1 + drafts.len() } else { 0 };
            let mut error = take_scores(request, answers.by_ref().take(num_scores));
            let (mut num_picked, mut goes_on, mut ends) = (0, true, false);
            for answer in answers.by_ref().take(num_logits - num_scores) {
                // What follows a wrong draft, or the end, was never there.
                if !goes_on || error.is_some() {
                    continue;
                }
                match answer {
                    Ok(sample) => {
                        goes_on = drafts.get(num_picked) == Some(&sample.token_id);
                        num_picked += 1;
                        outputs.push(append(request, sample, totals));
                        ends = outputs.last().is_some_and(|output| output.finish.is_some());
                        goes_on &= !ends;
                    }
                    Err(of_row) => error = Some(of_row),
                }
            }
            if let Some(error) = error {
                // What its step computed is not committed: it must not be found in the prefix cache.
                if matches!(error, RowError::NotFinite { .. }) {
                    // Nor what earlier steps did: one in the middle of a prompt has no row that would have shown it.
                    kv.forget(request);
                }
                outputs.push(end(kv, request, reason(&error)));
                return false;
            }
            // Of the drafts those count behind which a token was picked.
            let num_accepted = num_picked.saturating_sub(1);
            kv.commit(request, num_tokens - drafts.len() + num_accepted);
            if !drafts.is_empty() {
                totals.drafts += 1;
                totals.draft_tokens += drafts.len() as u64;
                totals.accepted_tokens += num_accepted as u64;
                request.most_drafts = next_drafts(drafts.len(), num_accepted, most_drafts);
                kv.shrink(request);
            }
            if ends {
                kv.free(request);
            }
            !ends
        });
    }

    /// The same for requests for vectors: `hidden` are the rows of the batch's hidden states, of `size` elements each.
    pub fn update_pooled(&mut self, hidden: &[f32], size: usize, outputs: &mut Vec<RequestOutput>) {
        let (kv, totals) = (&mut self.kv, &mut self.totals);
        let mut rest = hidden;
        self.running.retain_mut(|request| {
            let Chunk { num_tokens, num_logits } = std::mem::take(&mut request.chunk);
            let (rows, others) = rest.split_at(num_logits * size);
            rest = others;
            if let Some(value) = rows.iter().find(|value| !value.is_finite()) {
                kv.forget(request);
                outputs.push(end(kv, request, FinishReason::Error(not_finite(*value))));
                return false;
            }
            let Some(pooled) = &mut request.pooled else { return true };
            pooled.take(rows);
            kv.commit(request, num_tokens);
            let goes_on = request.num_computed_tokens < request.num_tokens();
            if !goes_on {
                totals.prompt_tokens += request.prompt.len() as u64;
                outputs.push(vector(request));
                kv.free(request);
            }
            goes_on
        });
    }

    /// The step failed: none of its tokens may be trusted, so its requests end. Those that wait are untouched.
    pub fn fail_running(&mut self, reason: &str, outputs: &mut Vec<RequestOutput>) {
        let error = FinishReason::Error(reason.to_owned());
        self.running.iter().for_each(|request| self.kv.withdraw(request));
        outputs.extend(self.running.drain(..).map(|mut request| end(&mut self.kv, &mut request, error.clone())));
    }

    /// Ends every request, in the order of their turns.
    pub fn end_all(&mut self, reason: &FinishReason) -> Vec<RequestOutput> {
        let kv = &mut self.kv;
        let all = self.running.drain(..).chain(self.waiting.drain(..));
        all.map(|mut request| end(kv, &mut request, reason.clone())).collect()
    }

    pub fn check_integrity(&self) -> Result<(), String> {
        let holds = |request: &&Request| {
            !request.block_table.is_empty() || request.num_cached_blocks > 0 || request.num_computed_tokens > 0
        };
        if let Some(request) = self.waiting.iter().find(holds) {
            return Err(format!("request {} waits and holds blocks, or counts some", request.id.0));
        }
        self.kv.check_integrity(self.running.iter())
    }
}

/// The row at `position`: the last known token's row picks the next, as those of drafts do; any other scores the prompt token that follows.
fn sampling_row<'a>(request: &'a Request, masks: &'a Masks, position: usize, logit_row: usize) -> SamplingRow<'a> {
    let (task, num_logprobs) = if position + 1 < request.num_tokens() {
        (RowTask::Score { token_id: request.token_ids[position + 1] }, request.params.prompt_logprobs)
    } else {
        let task = RowTask::Sample {
            params: &request.params,
            seed: request.seed,
            prompt_token_ids: request.prompt_token_ids(),
            output_token_ids: &request.token_ids[request.prompt.len()..=position],
            eos_token_ids: &request.eos_token_ids,
            allowed_tokens: masks.of(request.id),
        };
        (task, request.params.logprobs)
    };
    SamplingRow { logit_row, task, num_logprobs: num_logprobs.map(|n| n as usize) }
}

/// Takes in the scores of prompt tokens, all of them.
fn take_scores(request: &mut Request, answers: impl Iterator<Item = RowResult>) -> Option<RowError> {
    let mut first_error = None;
    for answer in answers {
        request.num_scored_tokens += 1;
        match answer {
            Ok(score) => request.prompt_logprobs.push(score),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error
}

fn reason(error: &RowError) -> FinishReason {
    match error {
        RowError::NoTokenAllowed { .. } => FinishReason::Invalid(error.to_string()),
        RowError::NotFinite { .. } => FinishReason::Error(error.to_string()),
    }
}

/// Why a prompt has no vector.
fn not_finite(value: f32) -> String {
    format!("an element of the model's hidden states is {value}: {NOT_FINITE}")
}

/// What a prompt whose tokens are all computed brings.
fn vector(request: &mut Request) -> RequestOutput {
    let num_tokens = request.prompt.len();
    RequestOutput {
        pooled: request.pooled.as_mut().map(|pooled| pooled.finish(num_tokens)),
        ..RequestOutput::ended(request.id, request.num_cached_tokens.unwrap_or(0), FinishReason::Pooled)
    }
}

/// Appends a picked token and says what that brought.
fn append(request: &mut Request, sample: Sample, totals: &mut Totals) -> RequestOutput {
    let is_first = request.output_token_ids().is_empty();
    if is_first {
        totals.prompt_tokens += request.prompt.len() as u64;
    }
    totals.generation_tokens += 1;
    request.token_ids.push(sample.token_id);
    let wants_scores = is_first && request.params.prompt_logprobs.is_some();
    RequestOutput {
        id: request.id,
        sample: Some(sample),
        prompt_logprobs: wants_scores.then(|| std::mem::take(&mut request.prompt_logprobs)),
        pooled: None,
        num_cached_tokens: request.num_cached_tokens.unwrap_or(0),
        finish: request.finish_reason(),
    }
}

/// Ends a request without a token.
fn end(kv: &mut KvCacheManager, request: &mut Request, reason: FinishReason) -> RequestOutput {
    kv.free(request);
    RequestOutput::ended(request.id, request.num_cached_tokens.unwrap_or(0), reason)
}

#[cfg(test)]
mod tests;
