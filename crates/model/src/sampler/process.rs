//! What changes logits before a token is picked: allowed tokens, `min_tokens`, `logit_bias` and the penalties.

use vllm_apple_executor::RowTask;
use vllm_apple_executor::SamplingParams;

/// Working memory for one row.
pub(super) struct Processor {
    logits: Vec<f32>,
    /// A bit per token; all zero between rows.
    seen: Vec<u64>,
    /// All zero between rows.
    counts: Vec<u32>,
}

impl Processor {
    pub(super) fn new(vocab_size: usize) -> Self {
        Self { logits: vec![0.0; vocab_size], seen: vec![0; vocab_size.div_ceil(64)], counts: vec![0; vocab_size] }
    }

    /// Bytes of the lists that it holds.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        size_of_val(&self.logits[..]) + size_of_val(&self.seen[..]) + size_of_val(&self.counts[..])
    }

    pub(super) fn bytes(vocab_size: usize) -> usize {
        vocab_size * (size_of::<f32>() + size_of::<u32>()) + vocab_size / 8
    }

    /// The row after all changes: `raw` itself if there are none.
    pub(super) fn process<'a>(&'a mut self, raw: &'a [f32], task: &RowTask<'_>) -> &'a [f32] {
        let RowTask::Sample { params, prompt_token_ids, output_token_ids, eos_token_ids, allowed_tokens, .. } = task
        else {
            return raw;
        };
        let must_go_on = output_token_ids.len() < params.min_tokens as usize;
        let has_penalties =
            params.repetition_penalty != 1.0 || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0;
        if allowed_tokens.is_none() && !must_go_on && params.logit_bias.is_empty() && !has_penalties {
            return raw;
        }
        self.logits.copy_from_slice(raw);
        if let Some(allowed) = allowed_tokens {
            forbid_others(&mut self.logits, allowed);
        }
        if must_go_on {
            for &token in params.stop_token_ids.iter().chain(*eos_token_ids) {
                forbid(&mut self.logits, token);
            }
        }
        for &(token, bias) in params.logit_bias.iter() {
            if bias == f32::NEG_INFINITY {
                forbid(&mut self.logits, token);
            }
            change(&mut self.logits, token, |logit| logit + bias);
        }
        if params.repetition_penalty != 1.0 {
            self.penalise_repetition(params.repetition_penalty, prompt_token_ids, output_token_ids);
        }
        if params.frequency_penalty != 0.0 || params.presence_penalty != 0.0 {
            self.penalise_output(params, output_token_ids);
        }
        &self.logits
    }

    fn penalise_repetition(&mut self, penalty: f32, prompt: &[u32], output: &[u32]) {
        for &token in prompt.iter().chain(output) {
            let (word, mask) = (token as usize / 64, 1u64 << (token % 64));
            let Some(bits) = self.seen.get_mut(word) else { continue };
            if *bits & mask == 0 {
                *bits |= mask;
                change(&mut self.logits, token, |logit| if logit > 0.0 { logit / penalty } else { logit * penalty });
            }
        }
        for &token in prompt.iter().chain(output) {
            if let Some(bits) = self.seen.get_mut(token as usize / 64) {
                *bits = 0;
            }
        }
    }

    fn penalise_output(&mut self, params: &SamplingParams, output: &[u32]) {
        for &token in output {
            if let Some(count) = self.counts.get_mut(token as usize) {
                *count += 1;
            }
        }
        for &token in output {
            let Some(count) = self.counts.get_mut(token as usize).filter(|count| **count > 0) else { continue };
            let penalty = params.frequency_penalty * *count as f32 + params.presence_penalty;
            *count = 0;
            change(&mut self.logits, token, |logit| logit - penalty);
        }
    }
}

/// Changes a logit. A finite one stays finite: the largest number stands for what is beyond, as in the op `sample`.
fn change(logits: &mut [f32], token: u32, f: impl Fn(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token as usize)
        && logit.is_finite()
    {
        *logit = f(*logit).clamp(f32::MIN, f32::MAX);
    }
}

fn forbid(logits: &mut [f32], token: u32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = f32::NEG_INFINITY;
    }
}

/// A bit of `allowed` per token; tokens beyond its end are not allowed.
fn forbid_others(logits: &mut [f32], allowed: &[u32]) {
    for (word, logits) in logits.chunks_mut(32).enumerate() {
        let bits = allowed.get(word).copied().unwrap_or(0);
        for (bit, logit) in logits.iter_mut().enumerate() {
            if bits >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}
