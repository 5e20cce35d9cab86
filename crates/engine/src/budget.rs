//! What a step may still take. It knows limits and costs, and of requests how long they are.

use vllm_apple_executor::ExecutorInfo;

use crate::request::{Chunk, Request};

/// Chunks do not get smaller than this, however far they are into a prompt: weights are read for each.
const MIN_CHUNK: usize = 16;

/// Rows of logits that prompts which are scored leave to requests that wait: for so many of them.
const MAX_JOINING: usize = 16;

/// What is left of a step's limits, beside a token and a row of logits of each request that runs: these are its own, wherever it is.
pub(crate) struct Budget {
    tokens: usize,
    rows: usize,
    /// Of these, for requests that wait.
    rows_for_joining: usize,
    /// Of prompts, as if all were at their start.
    prompt_tokens: usize,
    /// What decodes leave of these, however many there are.
    prompt_tokens_beside_decodes: usize,
    costly_context: Option<usize>,
    /// A prompt goes on after the step.
    has_unfinished: bool,
    /// The least that a prompt joins for behind one that goes on.
    least: usize,
    /// Tokens that a chunk has at least, however far it is into its prompt: one prompt that goes on in a step has them.
    floor: usize,
    /// What those behind a prompt have of `prompt_tokens` although its least chunk took that.
    kept: usize,
}

/// What a request has for itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Own {
    /// It joins.
    Nothing,
    /// It runs: a token and a row.
    One,
}

impl Budget {
    pub fn new(info: &ExecutorInfo, num_running: usize, num_waiting: usize) -> Self {
        let rows = info.max_logit_rows - num_running;
        Self {
            tokens: info.max_num_batched_tokens - num_running,
            rows,
            rows_for_joining: num_waiting.min(info.max_num_seqs - num_running).min(MAX_JOINING).min(rows),
            prompt_tokens: info.max_prompt_tokens(),
            prompt_tokens_beside_decodes: info.max_prompt_tokens().div_ceil(2),
            costly_context: info.costly_context,
            has_unfinished: false,
            least: (info.max_prompt_tokens().min(info.max_num_batched_tokens - num_running) / 8).clamp(1, MIN_CHUNK),
            floor: MIN_CHUNK,
            kept: 0,
        }
    }

    /// For a request that is not yet part of the step.
    pub fn has_room(&self) -> bool {
        let least = if self.has_unfinished { self.least } else { 1 };
        self.rows > 0 && self.tokens >= least && self.prompt_tokens >= least
    }

    /// Nobody joins any more: what was for them is for others.
    pub fn leave_nothing(&mut self) {
        self.rows_for_joining = 0;
        self.prompt_tokens = self.prompt_tokens.saturating_sub(self.kept);
    }

    /// For more of a prompt that is part of the step.
    pub fn has_rest(&self) -> bool {
        self.rows > 0 && self.tokens > 0 && self.prompt_tokens > 0
    }

    /// Tokens with a row each that the step may still have.
    pub fn rows_left(&self) -> usize {
        self.tokens.min(self.rows)
    }

    /// What `request` computes next. A prompt that goes on after the step leaves a quarter to those behind it: a short one need not wait for the end
    /// of a long one.
    pub fn chunk(&self, request: &Request, own: Own, others_behind: bool) -> Chunk {
        let all = self.part(request, own, 0);
        let goes_on = request.num_computed_tokens + all.num_tokens < request.num_tokens();
        if others_behind && goes_on { self.part(request, own, 4) } else { all }
    }

    /// The same, where one of `shares` is left to others; 0: none.
    fn part(&self, request: &Request, own: Own, shares: usize) -> Chunk {
        let share = |n: usize| n - n.checked_div(shares).unwrap_or(0);
        let most = (own as usize + share(self.tokens)).max(1);
        let tokens = self.costly_context.map_or(most, |costly| {
            let prompt_tokens = share(self.prompt_tokens);
            let smooth = as_costly(prompt_tokens, 0, request.num_computed_tokens, costly);
            smooth.max(self.floor.min(prompt_tokens)).max(1).min(most)
        });
        request.next_chunk(tokens, self.rows_for(own))
    }

    /// Rows of logits that a request may have: who joins waits no more.
    fn rows_for(&self, own: Own) -> usize {
        let for_others = self.rows_for_joining.saturating_sub(usize::from(own == Own::Nothing));
        (own as usize + self.rows.saturating_sub(for_others)).max(1)
    }

    /// Takes in the chunk of `request`, with `others_behind` as it was made.
    pub fn spend(&mut self, request: &Request, own: Own, others_behind: bool) {
        let Chunk { num_tokens, num_logits } = request.chunk;
        let start = request.num_computed_tokens;
        self.has_unfinished |= request.goes_on();
        self.tokens -= num_tokens - own as usize;
        // Each running request may have a token, wherever it is.
        if let Some(costly) = self.costly_context {
            let least = if num_tokens > 1 { 0 } else { self.prompt_tokens_beside_decodes.min(self.prompt_tokens) };
            let for_others = if others_behind && request.goes_on() { self.prompt_tokens / 4 } else { 0 };
            let left = self.prompt_tokens.saturating_sub(as_costly(num_tokens, start, 0, costly)).max(least);
            if num_tokens > 1 && request.goes_on() {
                self.floor = 1;
            }
            self.kept = self.kept.max(for_others.saturating_sub(left));
            self.prompt_tokens = left.max(for_others);
        }
        self.rows -= num_logits.saturating_sub(own as usize);
        if own == Own::Nothing {
            self.rows_for_joining = self.rows_for_joining.saturating_sub(1);
        }
    }
}

/// How many tokens behind `to` others cost as much as `tokens` behind `from`: `n` cost `n + n * (start + n / 2) / costly`.
fn as_costly(tokens: usize, from: usize, to: usize, costly: usize) -> usize {
    let [tokens, from, to, costly] = [tokens, from, to, costly].map(|n| n as f64);
    let cost = tokens * (costly + from + tokens / 2.0);
    let slope = costly + to;
    ((slope * slope + 2.0 * cost).sqrt() - slope).round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_far_into_a_prompt_costs_no_more_than_one_at_its_start() {
        for costly in [100, 5_000, 100_000] {
            let cost = |n: usize, start: usize| n as f64 * (1.0 + (start as f64 + n as f64 / 2.0) / costly as f64);
            for max in [64, 512, 2048] {
                assert_eq!(as_costly(max, 0, 0, costly), max);
                for start in [1, 1000, 32_768, 1_000_000] {
                    let n = as_costly(max, 0, start, costly);
                    let [less, more] = [n.saturating_sub(1), n + 1].map(|n| cost(n, start));
                    assert!((less..more).contains(&cost(max, 0)), "{n} after {start} for {max}");
                }
            }
        }
    }
}
