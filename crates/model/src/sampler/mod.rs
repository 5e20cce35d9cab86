//! Picks or scores a token from each row of logits, with vLLM's semantics. It knows no requests beyond a row's own parameters.
//!
//! Order, as in vLLM's V1 sampler: log-probabilities of the raw logits; allowed tokens, `min_tokens`, `logit_bias`,
//! penalties; then the largest logit, or temperature, `min_p`, `top_k`, `top_p` and one draw.
//! A row's result depends on nothing but the row: not on other rows, their order or the number of threads.

pub(crate) mod device;
mod draw;
mod logprobs;
mod math;
mod process;
mod top;

use draw::Candidates;
use process::Processor;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use vllm_apple_executor::MAX_LOGPROBS;
use vllm_apple_executor::{RowError, RowResult, RowTask, Sample, SamplingRow};
use vllm_apple_ops::philox;

/// Working memory for rows that are sampled at the same time.
pub struct Sampler {
    vocab_size: usize,
    slots: Vec<Mutex<Slot>>,
    /// A cell for each row, empty between calls.
    results: Vec<OnceLock<Result<RowResult, String>>>,
}

/// Working memory for one row.
struct Slot {
    processor: Processor,
    candidates: Candidates,
    top: Vec<(f32, u32)>,
}

/// Calls its second argument with `0..n`, on several threads or one.
pub type Parallel<'a> = &'a dyn Fn(usize, &(dyn Fn(usize) + Sync));

impl Sampler {
    /// A sampler of rows of `vocab_size` logits, with room for `max_rows` of them at a time; more rows make it grow.
    pub fn new(vocab_size: usize, max_rows: usize) -> Self {
        let slot = || Slot {
            processor: Processor::new(vocab_size),
            candidates: Candidates::new(vocab_size),
            top: Vec::with_capacity(top::room(MAX_LOGPROBS as usize)),
        };
        let slots = (0..num_slots()).map(|_| Mutex::new(slot())).collect();
        Self { vocab_size, slots, results: (0..max_rows).map(|_| OnceLock::new()).collect() }
    }

    /// Bytes of what a sampler takes for each thread.
    pub(crate) fn bytes(vocab_size: usize) -> usize {
        num_slots() * (Processor::bytes(vocab_size) + Candidates::bytes(vocab_size))
    }

    /// Answers `rows[i]` in `out[i]`, from `logits` of `[_, vocab_size]`. `out` is emptied first. A row for which no token may be picked,
    /// or whose logits are not numbers, has a [`RowError`].
    ///
    /// # Errors
    /// A row or a token that is not there: a fault of the caller. `out` is then incomplete.
    pub fn sample(
        &mut self,
        logits: &[f32],
        rows: &[SamplingRow<'_>],
        out: &mut Vec<RowResult>,
        parallel: Parallel<'_>,
    ) -> Result<(), String> {
        out.clear();
        out.reserve(rows.len());
        self.prepare_results(rows.len());
        let next = AtomicUsize::new(0);
        let results = &self.results;
        parallel(self.slots.len().min(rows.len()), &|slot| {
            // A slot is written before it is read, so what a panicking row left in it does not matter.
            let mut slot = self.slots[slot].lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(row) = rows.get(i) else { break };
                let result = self.row(logits, row).and_then(|logits| slot.sample(logits, row));
                // Each index is given out once, so the cell is empty.
                let _ = results[i].set(result);
            }
        });
        for cell in &mut self.results[..rows.len()] {
            out.push(cell.take().unwrap_or_else(|| Err("a row was not sampled".to_owned()))?);
        }
        Ok(())
    }

    /// Makes the first `num_rows` cells empty: an error or a panic may have left some full.
    fn prepare_results(&mut self, num_rows: usize) {
        if self.results.len() < num_rows {
            self.results.resize_with(num_rows, OnceLock::new);
        }
        for cell in &mut self.results[..num_rows] {
            cell.take();
        }
    }

    fn row<'l>(&self, logits: &'l [f32], row: &SamplingRow<'_>) -> Result<&'l [f32], String> {
        let rows = logits.len() / self.vocab_size;
        match row.logit_row < rows {
            true => Ok(&logits[row.logit_row * self.vocab_size..][..self.vocab_size]),
            false => Err(format!("row {} of the logits is asked for, the last step has {rows}", row.logit_row)),
        }
    }
}

/// Rows that can be sampled at the same time.
fn num_slots() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

impl Slot {
    fn sample(&mut self, logits: &[f32], row: &SamplingRow<'_>) -> Result<RowResult, String> {
        let token_id = match &row.task {
            RowTask::Score { token_id } if (*token_id as usize) < logits.len() => *token_id,
            RowTask::Score { token_id } => return Err(format!("token {token_id} is not in the vocabulary")),
            RowTask::Sample { params, seed, output_token_ids, .. } => {
                let processed = self.processor.process(logits, &row.task);
                let (best, max) = math::argmax(processed);
                if !max.is_finite() {
                    return Ok(Err(RowError::new(&row.task, max)));
                }
                match params.is_greedy() {
                    true => best,
                    false => {
                        let uniform = philox::uniform(*seed, output_token_ids.len() as u64);
                        self.candidates.draw(processed, max, params, uniform)
                    }
                }
            }
        };
        let logprobs = row.num_logprobs.map(|n| logprobs::compute(logits, token_id, n, &mut self.top));
        Ok(Ok(Sample { token_id, logprobs }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the plan of memory counts is what a vocabulary of a usual size takes, but for thousandths.
    #[test]
    fn the_bytes_of_a_sampler_are_those_that_it_takes() {
        for vocab_size in [32_000, 151_936] {
            let sampler = Sampler::new(vocab_size, 1);
            let slots = sampler.slots.iter().map(|slot| slot.lock().unwrap());
            let taken: usize = slots.map(|slot| slot.processor.taken() + slot.candidates.taken()).sum();
            let counted = Sampler::bytes(vocab_size);
            assert!(counted.abs_diff(taken) < taken / 1000, "{counted} of {taken}");
        }
    }
}
