//! What a step may still take. It knows limits and costs, and of requests how long they are.

use vllm_apple_executor::ExecutorInfo;

use crate::request::{Chunk, Request};

/// Chunks do not get smaller than this, however far they are into a prompt: weights are read for each.
const MIN_CHUNK: usize = 16;

/// What is left of a step's limits.
pub(crate) struct Budget {
    tokens: usize,
    rows: usize,
    /// Of prompts, as if all were at their start.
    prompt_tokens: usize,
    /// What decodes leave of these, however many there are.
    prompt_tokens_beside_decodes: usize,
    costly_context: Option<usize>,
}

impl Budget {
    pub fn new(info: &ExecutorInfo) -> Self {
        Self {
            tokens: info.max_num_batched_tokens,
            rows: info.max_logit_rows,
            prompt_tokens: info.max_prompt_tokens(),
            prompt_tokens_beside_decodes: info.max_prompt_tokens().div_ceil(2),
            costly_context: info.costly_context,
        }
    }

    /// For a request that is not yet part of the step.
    pub fn has_room(&self) -> bool {
        self.tokens > 0 && self.rows > 0 && self.prompt_tokens > 0
    }

    /// Tokens with a row each that the step may still have.
    pub fn rows_left(&self) -> usize {
        self.tokens.min(self.rows)
    }

    /// What `request` computes next.
    pub fn chunk(&self, request: &Request) -> Chunk {
        let tokens = self.costly_context.map_or(self.tokens, |costly| {
            let smooth = as_costly(self.prompt_tokens, 0, request.num_computed_tokens, costly);
            smooth.max(MIN_CHUNK.min(self.prompt_tokens)).max(1).min(self.tokens)
        });
        request.next_chunk(tokens, self.rows)
    }

    /// Takes in the chunk of `request`. Who leaves a part of a prompt to the next step leaves nothing to others.
    pub fn spend(&mut self, request: &Request) {
        let Chunk { num_tokens, num_logits } = request.chunk;
        let start = request.num_computed_tokens;
        let is_unfinished = start + num_tokens < request.num_tokens();
        self.tokens = if is_unfinished { 0 } else { self.tokens - num_tokens };
        // Each running request may have a token, wherever it is.
        if let Some(costly) = self.costly_context {
            let least = if num_tokens > 1 { 0 } else { self.prompt_tokens_beside_decodes.min(self.prompt_tokens) };
            self.prompt_tokens = self.prompt_tokens.saturating_sub(as_costly(num_tokens, start, 0, costly)).max(least);
        }
        self.rows -= num_logits;
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
