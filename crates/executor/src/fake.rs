//! A deterministic executor without a model, and the oracle that says what it must answer. It knows no engine.
//!
//! Its KV cache stores for each slot the token, its position and a hash of the history it was computed with. The next token
//! is a function of all slots of a sequence, read through the block table. A wrong block table, slot, position or stale
//! cached block therefore gives a wrong token. [`expected_output`] computes the same from the plain list of tokens.

use std::collections::HashSet;
use std::time::Duration;

use crate::{
    Batch, Executor, ExecutorError, ExecutorInfo, Pooling, RowError, RowResult, RowTask, Sample, SamplingParams,
    SamplingRow, TokenLogprobs, allows,
};

/// How a [`FakeExecutor`] behaves.
#[derive(Debug, Clone)]
pub struct FakeConfig {
    /// The limits it reports and enforces.
    pub info: ExecutorInfo,
    /// What goes wrong in which `forward`, counted from 0.
    pub faults: Vec<(u64, Fault)>,
    /// How long `forward` takes.
    pub step_time: Duration,
    /// The first output tokens of every request, whatever its prompt and parameters; then the fake model goes on.
    pub script: Vec<u32>,
}

impl Default for FakeConfig {
    fn default() -> Self {
        let info = ExecutorInfo {
            vocab_size: 1000,
            max_model_len: 256,
            max_num_batched_tokens: 64,
            costly_context: None,
            embedding_size: None,
            max_num_seqs: 8,
            max_logit_rows: 16,
            block_size: 16,
            num_blocks: 64,
        };
        Self { info, faults: Vec::new(), step_time: Duration::ZERO, script: Vec::new() }
    }
}

/// What goes wrong in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `forward` writes garbage and fails.
    Forward,
    /// `sample` fails.
    Sample,
    /// `sample` has no answer to its first row: the logits are not numbers.
    Row,
    /// `forward` says that the executor cannot go on.
    Fatal,
    /// `forward` panics.
    Panic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    token: u32,
    position: u32,
    history: u64,
}

const GARBAGE: Slot = Slot { token: u32::MAX, position: u32::MAX, history: 0xbad };

/// One row of logits: a hash that stands for them, and the tokens it was computed from.
#[derive(Debug)]
struct Logits {
    hash: u64,
    tokens: Vec<u32>,
}

/// See the module's documentation. Panics when a batch or a sampling row breaks an invariant.
#[derive(Debug)]
pub struct FakeExecutor {
    config: FakeConfig,
    slots: Vec<Slot>,
    rows: Vec<Logits>,
    step: u64,
}

impl FakeExecutor {
    /// A fake with an empty KV cache.
    pub fn new(config: FakeConfig) -> Self {
        let slots = vec![GARBAGE; config.info.num_blocks * config.info.block_size];
        Self { config, slots, rows: Vec::new(), step: 0 }
    }

    fn fault(&self, step: u64) -> Option<Fault> {
        self.config.faults.iter().find(|(at, _)| *at == step).map(|&(_, fault)| fault)
    }

    fn slot_of(&self, batch: &Batch, request: usize, position: usize) -> usize {
        let block_size = self.config.info.block_size;
        let block = batch.block_table[request * batch.block_table_stride + position / block_size] as usize;
        block * block_size + position % block_size
    }

    /// Writes every token of one request, each with the history that the cache holds for the token before it.
    fn write(&mut self, batch: &Batch, request: usize) {
        for t in tokens_of(batch, request) {
            let position = batch.positions[t];
            let before = match position {
                0 => 0,
                _ => self.slots[self.slot_of(batch, request, position as usize - 1)].history,
            };
            let token = batch.token_ids[t];
            let history = extend_history(before, token, position);
            self.slots[batch.slot_mapping[t] as usize] = Slot { token, position, history };
        }
    }

    /// Reads a sequence up to `position` through the block table.
    fn read(&self, batch: &Batch, request: usize, position: usize) -> Logits {
        let slots = (0..=position).map(|p| self.slots[self.slot_of(batch, request, p)]);
        Logits { hash: slots.clone().fold(0, attend), tokens: slots.map(|slot| slot.token).collect() }
    }

    fn answer(&self, row: &SamplingRow<'_>) -> RowResult {
        let Logits { hash, tokens } = &self.rows[row.logit_row];
        let mut mask = None;
        let token_id = match &row.task {
            RowTask::Score { token_id } => *token_id,
            RowTask::Sample { params, seed, prompt_token_ids, output_token_ids, eos_token_ids, allowed_tokens } => {
                let known: Vec<u32> = prompt_token_ids.iter().chain(*output_token_ids).copied().collect();
                assert_eq!(&known, tokens, "the row's tokens are not those that its block table leads to");
                let num_output = output_token_ids.len();
                let must_go_on = num_output < params.min_tokens as usize;
                let ends = |token: u32| params.stop_token_ids.contains(&token) || eos_token_ids.contains(&token);
                mask = *allowed_tokens;
                let is_allowed =
                    |token: u32| !(must_go_on && ends(token)) && mask.is_none_or(|mask| allows(mask, token));
                match self.config.script.get(num_output) {
                    Some(&scripted) => scripted,
                    None => pick(self.config.info.vocab_size, *hash, params, *seed, num_output, is_allowed)
                        .ok_or_else(|| RowError::new(&row.task, self.config.info.vocab_size, f32::NEG_INFINITY))?,
                }
            }
        };
        let logprobs = row.num_logprobs.map(|n| logprobs(self.config.info.vocab_size, *hash, mask, token_id, n));
        Ok(Sample { token_id, logprobs })
    }
}

impl Executor for FakeExecutor {
    fn info(&self) -> &ExecutorInfo {
        &self.config.info
    }

    fn forward(&mut self, batch: &Batch) -> Result<(), ExecutorError> {
        check_batch(batch, &self.config.info);
        std::thread::sleep(self.config.step_time);
        let step = self.step;
        self.step += 1;
        match self.fault(step) {
            Some(Fault::Forward) => {
                batch.slot_mapping.iter().for_each(|&slot| self.slots[slot as usize] = GARBAGE);
                return Err(ExecutorError::Step(format!("fake fault in step {step}")));
            }
            Some(Fault::Fatal) => return Err(ExecutorError::Fatal(format!("fake fatal fault in step {step}"))),
            Some(Fault::Panic) => panic!("fake panic in step {step}"),
            Some(Fault::Sample | Fault::Row) | None => (),
        }
        (0..batch.num_requests()).for_each(|request| self.write(batch, request));
        self.rows.clear();
        let mut request = 0;
        for &t in &batch.logit_rows {
            while batch.query_start_loc[request + 1] <= t {
                request += 1;
            }
            self.rows.push(self.read(batch, request, batch.positions[t as usize] as usize));
        }
        Ok(())
    }

    fn sample(&mut self, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        out.clear();
        let step = self.step - 1;
        if self.fault(step) == Some(Fault::Sample) {
            return Err(ExecutorError::Step(format!("fake sampling fault in step {step}")));
        }
        out.extend(rows.iter().map(|row| self.answer(row)));
        if self.fault(step) == Some(Fault::Row)
            && let Some(first) = out.first_mut()
        {
            *first = Err(RowError::NotFinite { max: "NaN".to_owned() });
        }
        Ok(())
    }

    fn hidden(&mut self, out: &mut Vec<f32>) -> Result<(), ExecutorError> {
        out.clear();
        let size = self.config.info.embedding_size.expect("hidden states are asked of an executor that has them");
        out.extend(self.rows.iter().flat_map(|row| hidden_row(row.hash, size)));
        if self.fault(self.step - 1) == Some(Fault::Row)
            && let Some(first) = out.first_mut()
        {
            *first = f32::NAN;
        }
        Ok(())
    }
}

/// A row of hidden states.
fn hidden_row(hash: u64, size: usize) -> impl Iterator<Item = f32> {
    (0..size as u32).map(move |element| logit(hash, element) - 4.0)
}

/// The vector that an engine must make of a prompt on the fake.
///
/// # Panics
/// If `info` says nothing of hidden states.
pub fn expected_pooled(info: &ExecutorInfo, prompt: &[u32], pooling: Pooling) -> Vec<f32> {
    let size = info.embedding_size.expect("the fake answers with hidden states");
    let row = |len: usize| hidden_row(plain_hash(&prompt[..len]), size);
    match pooling {
        Pooling::First => row(1).collect(),
        Pooling::Last => row(prompt.len()).collect(),
        Pooling::Mean => {
            let mut sum = vec![0.0; size];
            (1..=prompt.len()).for_each(|len| sum.iter_mut().zip(row(len)).for_each(|(sum, value)| *sum += value));
            sum.iter().map(|sum| sum / prompt.len() as f32).collect()
        }
    }
}

/// What the fake must answer to a request: its output tokens, and the last one if it is a stop token that ended it; else a length
/// did. Parameters that the fake ignores are ignored. Only for requests that are greedy or have a seed.
///
/// # Panics
/// If the request is neither.
pub fn expected_output(
    info: &ExecutorInfo,
    prompt: &[u32],
    params: &SamplingParams,
    eos_token_ids: &[u32],
) -> (Vec<u32>, Option<u32>) {
    let seed = params.seed.unwrap_or(0);
    assert!(params.is_greedy() || params.seed.is_some(), "the engine's choice of seed is not the oracle's to know");
    let mut tokens = prompt.to_vec();
    let mut output = Vec::new();
    let is_stop = |token: u32| params.stop_token_ids.contains(&token);
    let is_eos = |token: u32| eos_token_ids.contains(&token);
    loop {
        let may_stop = output.len() >= params.min_tokens as usize;
        let is_allowed = |token| may_stop || !(is_stop(token) || is_eos(token));
        let token = pick(info.vocab_size, plain_hash(&tokens), params, seed, output.len(), is_allowed)
            .expect("at least one token is allowed");
        tokens.push(token);
        output.push(token);
        let stops = is_stop(token) || (is_eos(token) && !params.ignore_eos);
        if stops && output.len() >= params.min_tokens as usize {
            return (output, Some(token));
        }
        if tokens.len() == info.max_model_len || Some(output.len()) == params.max_tokens.map(|n| n as usize) {
            return (output, None);
        }
    }
}

/// What the fake must answer to a request for log-probabilities of the prompt.
pub fn expected_prompt_logprobs(info: &ExecutorInfo, prompt: &[u32], num_logprobs: usize) -> Vec<Sample> {
    let score = |i: usize| {
        let logprobs = logprobs(info.vocab_size, plain_hash(&prompt[..i]), None, prompt[i], num_logprobs);
        Sample { token_id: prompt[i], logprobs: Some(logprobs) }
    };
    (1..prompt.len()).map(score).collect()
}

/// The hash that stands for the logits after `tokens`.
fn plain_hash(tokens: &[u32]) -> u64 {
    let mut history = 0;
    let slots = tokens.iter().zip(0..).map(|(&token, position)| {
        history = extend_history(history, token, position);
        Slot { token, position, history }
    });
    slots.fold(0, attend)
}

fn extend_history(before: u64, token: u32, position: u32) -> u64 {
    mix(mix(before ^ 0x5157, u64::from(token)), u64::from(position))
}

fn attend(hash: u64, slot: Slot) -> u64 {
    mix(mix(hash, slot.history), u64::from(slot.token) << 32 | u64::from(slot.position))
}

fn mix(a: u64, b: u64) -> u64 {
    let mut z = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A logit in [0, 8).
fn logit(hash: u64, token: u32) -> f32 {
    (mix(hash, u64::from(token)) >> 40) as f32 / (1 << 21) as f32
}

/// The most likely allowed token, if there is one; above temperature 0 from logits that the random stream has replaced.
fn pick(
    vocab_size: usize,
    hash: u64,
    params: &SamplingParams,
    seed: u64,
    num_output: usize,
    is_allowed: impl Fn(u32) -> bool,
) -> Option<u32> {
    let hash = if params.is_greedy() { hash } else { mix(hash, mix(seed, num_output as u64)) };
    let allowed = (0..vocab_size as u32).filter(|&token| is_allowed(token));
    allowed.reduce(|best, token| if logit(hash, token) > logit(hash, best) { token } else { best })
}

/// Among the tokens that the mask allows.
fn logprobs(vocab_size: usize, hash: u64, mask: Option<&[u32]>, token: u32, num_top: usize) -> TokenLogprobs {
    let leave = |token: u32| match mask {
        Some(mask) if !allows(mask, token) => f32::NEG_INFINITY,
        _ => logit(hash, token),
    };
    let logits: Vec<f32> = (0..vocab_size as u32).map(leave).collect();
    let log_sum = logits.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln() as f32;
    let mut order: Vec<u32> = (0..vocab_size as u32).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    let own = logits[token as usize];
    TokenLogprobs {
        logprob: own - log_sum,
        rank: 1 + logits.iter().filter(|&&other| other > own).count() as u32,
        top: order[..num_top].iter().map(|&token| (token, logits[token as usize] - log_sum)).collect(),
    }
}

fn tokens_of(batch: &Batch, request: usize) -> std::ops::Range<usize> {
    batch.query_start_loc[request] as usize..batch.query_start_loc[request + 1] as usize
}

/// Panics unless the batch is well-formed, within the limits, and writes no slot twice. A request may read what another one writes.
fn check_batch(batch: &Batch, info: &ExecutorInfo) {
    let (num_tokens, num_requests) = (batch.num_tokens(), batch.num_requests());
    assert!(num_tokens > 0, "an empty step");
    assert!(num_tokens <= info.max_num_batched_tokens, "{num_tokens} tokens");
    assert!(num_requests <= info.max_num_seqs, "{num_requests} requests");
    assert!(batch.logit_rows.len() <= info.max_logit_rows, "{} rows of logits", batch.logit_rows.len());
    assert!(batch.logit_rows.is_sorted_by(|a, b| a < b), "logit rows are not ascending");
    assert!(batch.logit_rows.iter().all(|&t| (t as usize) < num_tokens), "a logit row past the tokens");
    assert_eq!(batch.positions.len(), num_tokens);
    assert_eq!(batch.query_start_loc.len(), num_requests + 1);
    assert_eq!(batch.block_table.len(), num_requests * batch.block_table_stride);
    assert_eq!(batch.slot_mapping.iter().collect::<HashSet<_>>().len(), num_tokens, "a slot is written twice");

    for request in 0..num_requests {
        let tokens = tokens_of(batch, request);
        let seq_len = batch.seq_lens[request] as usize;
        assert!(!tokens.is_empty() && seq_len <= info.max_model_len, "request {request}: {tokens:?}, {seq_len}");
        let positions = seq_len - tokens.len()..seq_len;
        assert!(positions.map(|p| p as u32).eq(batch.positions[tokens.clone()].iter().copied()));
        let row = &batch.block_table[request * batch.block_table_stride..][..seq_len.div_ceil(info.block_size)];
        assert!(row.iter().all(|&block| (block as usize) < info.num_blocks), "a block past the KV cache");
        assert_eq!(row.iter().collect::<HashSet<_>>().len(), row.len(), "a block twice in one table");
        for t in tokens {
            assert!((batch.token_ids[t] as usize) < info.vocab_size, "a token past the vocabulary");
            let position = batch.positions[t] as usize;
            let block = row[position / info.block_size] as usize;
            let slot = block * info.block_size + position % info.block_size;
            assert_eq!(batch.slot_mapping[t] as usize, slot, "a slot outside the request's block table");
        }
    }
}
