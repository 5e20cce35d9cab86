//! Sampling on the device: which rows it takes, what it is told about them, and what it answers. It knows no kernel.
//!
//! Whether a row goes to the device depends on the row alone, never on its company: sums are rounded otherwise there, so once in
//! millions of draws another token could be picked than on the host.

use crate::scratch::Allocate;
use vllm_apple_executor::SamplingParams;
use vllm_apple_executor::{ExecutorInfo, RowError, RowResult, RowTask, Sample, SamplingRow, TokenLogprobs};
use vllm_apple_ops as ops;
use vllm_apple_ops::sample::{Adjustment, MAX_TOP, Picked, SampleRow};
use vllm_apple_ops::{Backend, DType, Tensor};

/// Most tokens of a row that penalties and biases may concern; with more, the row is the host's.
const MAX_ADJUSTMENTS: usize = 2048;

/// Samples rows on the device. All memory is allocated once.
pub(crate) struct DeviceSampler<M> {
    buffers: Buffers<M>,
    plan: Plan,
}

/// The device's arguments and answers.
struct Buffers<M> {
    params: Tensor<M>,
    adjustments: Tensor<M>,
    picked: Tensor<M>,
    top: Tensor<M>,
}

impl<M> Buffers<M> {
    /// Memory for the rows of a step: one per request.
    fn new(info: &ExecutorInfo, new: Allocate<'_, M>) -> ops::Result<Self> {
        let rows = info.max_num_seqs;
        Ok(Self {
            params: new(DType::U32, rows, SampleRow::WORDS)?,
            adjustments: new(DType::U32, rows * MAX_ADJUSTMENTS, Adjustment::WORDS)?,
            picked: new(DType::U32, rows, Picked::WORDS)?,
            top: new(DType::U32, rows, 2 * MAX_TOP)?,
        })
    }
}

impl DeviceSampler<()> {
    /// Bytes that a sampler takes on the device and, for what it tells the device, on the host.
    pub(crate) fn bytes(info: &ExecutorInfo) -> u128 {
        let mut bytes = 0;
        let mut count = |dtype: DType, rows: usize, cols: usize| {
            bytes += (rows * cols * dtype.size()) as u128;
            Ok(Tensor::new((), dtype, rows, cols))
        };
        // Counting cannot fail.
        let _ = Buffers::new(info, &mut count);
        2 * bytes + 4 * info.vocab_size as u128
    }
}

impl<M> DeviceSampler<M> {
    /// A sampler of the steps that `info` allows.
    pub(crate) fn new(info: &ExecutorInfo, new: Allocate<'_, M>) -> ops::Result<Self> {
        Ok(Self { buffers: Buffers::new(info, new)?, plan: Plan::new(info) })
    }

    /// Takes the rows that the device can do and tells it about them. Nothing may be recorded. False: there are none.
    pub(crate) fn prepare<B: Backend<Memory = M>>(
        &mut self,
        backend: &B,
        rows: &[SamplingRow<'_>],
        num_logit_rows: usize,
    ) -> bool {
        self.plan.make(rows, num_logit_rows);
        backend.write(&mut self.buffers.params, bytemuck::cast_slice(&self.plan.params));
        backend.write(&mut self.buffers.adjustments, bytemuck::cast_slice(&self.plan.adjustment_words));
        self.plan.num_taken() > 0
    }

    /// Whether the device takes row `i`.
    pub(crate) fn takes(&self, i: usize) -> bool {
        self.plan.taken[i]
    }

    /// Records the op for the rows that the device takes.
    pub(crate) fn record<B: Backend<Memory = M>>(
        &mut self,
        backend: &mut B,
        logits: &mut Tensor<M>,
    ) -> ops::Result<()> {
        let rows = self.plan.num_taken();
        let Buffers { params, adjustments, picked, top } = &mut self.buffers;
        ops::Sample { rows, logits, params, adjustments, picked, top }.run(backend)
    }

    /// What the device answers, when it has run, to the `n`-th row that it takes, which is `row`.
    pub(crate) fn answer<B: Backend<Memory = M>>(&self, backend: &B, n: usize, row: &SamplingRow<'_>) -> RowResult {
        let words: &[u32] = bytemuck::cast_slice(backend.read(&self.buffers.picked));
        let picked = Picked::of_words(words.as_chunks().0[n]);
        if !picked.max.is_finite() {
            return Err(RowError::new(&row.task, picked.max));
        }
        let logprobs = row.num_logprobs.map(|num_top| {
            let words: &[u32] = bytemuck::cast_slice(backend.read(&self.buffers.top));
            let entries = words[n * 2 * MAX_TOP..][..2 * num_top].as_chunks::<2>().0.iter();
            let there = entries.take_while(|[id, _]| *id != u32::MAX);
            TokenLogprobs {
                logprob: picked.logprob,
                rank: picked.rank,
                top: there.map(|&[id, logprob]| (id, f32::from_bits(logprob))).collect(),
            }
        });
        Ok(Sample { token_id: picked.token, logprobs })
    }
}

/// The rows that the device takes, in its words.
struct Plan {
    vocab_size: usize,
    max_rows: usize,
    taken: Vec<bool>,
    /// Rows of the logits that a taken row changes: a second one is the host's.
    used: Vec<bool>,
    params: Vec<u32>,
    adjustment_words: Vec<u32>,
    row: RowAdjustments,
}

impl Plan {
    fn new(info: &ExecutorInfo) -> Self {
        Self {
            vocab_size: info.vocab_size,
            max_rows: info.max_num_seqs,
            taken: Vec::with_capacity(info.max_logit_rows),
            used: Vec::with_capacity(info.max_logit_rows),
            params: Vec::with_capacity(info.max_num_seqs * SampleRow::WORDS),
            adjustment_words: Vec::with_capacity(info.max_num_seqs * MAX_ADJUSTMENTS * Adjustment::WORDS),
            row: RowAdjustments::new(info.vocab_size),
        }
    }

    fn num_taken(&self) -> usize {
        self.params.len() / SampleRow::WORDS
    }

    fn make(&mut self, rows: &[SamplingRow<'_>], num_logit_rows: usize) {
        self.taken.clear();
        self.used.clear();
        self.used.resize(num_logit_rows, false);
        self.params.clear();
        self.adjustment_words.clear();
        for row in rows {
            let described = if self.num_taken() < self.max_rows { self.describe(row) } else { None };
            self.taken.push(described.is_some());
            if let Some(described) = described {
                self.used[row.logit_row] = true;
                self.params.extend(described.words());
                self.adjustment_words.extend(self.row.list.iter().flat_map(Adjustment::words));
            }
        }
    }

    /// The row as the device takes it, its adjustments in `self.row`; `None` if the device does not take it.
    fn describe(&mut self, row: &SamplingRow<'_>) -> Option<SampleRow> {
        let RowTask::Sample { params, seed, output_token_ids, allowed_tokens: None, .. } = &row.task else {
            return None;
        };
        if self.used.get(row.logit_row) != Some(&false) || row.num_logprobs.is_some_and(|n| n > MAX_TOP) {
            return None;
        }
        self.row.collect(&row.task)?;
        let first = self.adjustment_words.len() / Adjustment::WORDS;
        Some(SampleRow {
            logit_row: row.logit_row as u32,
            adjustments: [first as u32, self.row.list.len() as u32],
            scale: if params.is_greedy() { 0.0 } else { 1.0 / params.temperature },
            min_p: params.min_p,
            top_p: params.top_p,
            top_k: params.top_k.min(self.vocab_size as u32),
            repetition_penalty: params.repetition_penalty,
            seed: *seed,
            position: output_token_ids.len() as u64,
            num_top: row.num_logprobs.map(|n| n as u32),
        })
    }
}

/// The adjustments of one row, each token once.
struct RowAdjustments {
    list: Vec<Adjustment>,
    /// Occurrences in the output of each token of the list.
    counts: Vec<u32>,
    /// One more than a token's place in the list; all zero between rows.
    places: Vec<u32>,
}

impl RowAdjustments {
    fn new(vocab_size: usize) -> Self {
        let (list, counts) = (Vec::with_capacity(MAX_ADJUSTMENTS), Vec::with_capacity(MAX_ADJUSTMENTS));
        Self { list, counts, places: vec![0; vocab_size] }
    }

    /// Fills `list` for a task; `None` if it is more than a list can say. Tokens outside the vocabulary do not count, as on the host.
    fn collect(&mut self, task: &RowTask<'_>) -> Option<()> {
        self.list.clear();
        self.counts.clear();
        let result = self.collect_all(task);
        for adjustment in &self.list {
            self.places[adjustment.token as usize] = 0;
        }
        result
    }

    fn collect_all(&mut self, task: &RowTask<'_>) -> Option<()> {
        let RowTask::Sample { params, prompt_token_ids, output_token_ids, eos_token_ids, .. } = task else {
            return None;
        };
        let &&SamplingParams { repetition_penalty, frequency_penalty, presence_penalty, .. } = params;
        if output_token_ids.len() < params.min_tokens as usize {
            for &token in params.stop_token_ids.iter().chain(*eos_token_ids) {
                self.change(token, |adjustment, _| adjustment.bias = f32::NEG_INFINITY)?;
            }
        }
        for &(token, bias) in params.logit_bias.iter() {
            let mut twice = false;
            self.change(token, |adjustment, _| {
                // A sum of two biases would be rounded otherwise than on the host.
                twice = adjustment.bias.is_finite() && adjustment.bias != 0.0;
                adjustment.bias += bias;
            })?;
            if twice {
                return None;
            }
        }
        if repetition_penalty != 1.0 {
            for &token in prompt_token_ids.iter().chain(*output_token_ids) {
                self.change(token, |adjustment, _| adjustment.seen = true)?;
            }
        }
        if frequency_penalty != 0.0 || presence_penalty != 0.0 {
            for &token in *output_token_ids {
                self.change(token, |_, count| *count += 1)?;
            }
            for (adjustment, &count) in self.list.iter_mut().zip(&self.counts).filter(|entry| *entry.1 > 0) {
                adjustment.subtract = frequency_penalty * count as f32 + presence_penalty;
            }
        }
        Some(())
    }

    /// Changes a token's adjustment and its count; `None` if there is no room for it.
    fn change(&mut self, token: u32, f: impl FnOnce(&mut Adjustment, &mut u32)) -> Option<()> {
        let Some(place) = self.places.get_mut(token as usize) else { return Some(()) };
        if *place == 0 {
            if self.list.len() == MAX_ADJUSTMENTS {
                return None;
            }
            self.list.push(Adjustment { token, seen: false, bias: 0.0, subtract: 0.0 });
            self.counts.push(0);
            *place = self.list.len() as u32;
        }
        let index = *place as usize - 1;
        f(&mut self.list[index], &mut self.counts[index]);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::Sampler;
    use proptest::prelude::*;
    use vllm_apple_cpu::CpuBackend;
    use vllm_apple_ops::sample::{Reference, reference};

    fn info(vocab_size: usize) -> ExecutorInfo {
        ExecutorInfo {
            vocab_size,
            max_model_len: 4096,
            max_num_batched_tokens: 64,
            max_num_seqs: 2,
            max_logit_rows: 4,
            block_size: 16,
            num_blocks: 16,
        }
    }

    #[derive(Debug, Clone)]
    struct Row {
        params: SamplingParams,
        seed: u64,
        prompt: Vec<u32>,
        output: Vec<u32>,
        stop: Vec<u32>,
        num_logprobs: Option<usize>,
    }

    impl Row {
        fn at(&self, logit_row: usize) -> SamplingRow<'_> {
            let task = RowTask::Sample {
                params: &self.params,
                seed: self.seed,
                prompt_token_ids: &self.prompt,
                output_token_ids: &self.output,
                eos_token_ids: &self.stop,
                allowed_tokens: None,
            };
            SamplingRow { logit_row, task, num_logprobs: self.num_logprobs }
        }
    }

    /// What is counted before anything is allocated is what is allocated.
    #[test]
    fn bytes_are_those_of_the_buffers_and_of_their_copies_on_the_host() {
        let info = ExecutorInfo { vocab_size: 300, max_num_seqs: 5, ..info(300) };
        let mut allocated = 0;
        let sampler = DeviceSampler::new(&info, &mut |dtype, rows, cols| {
            let bytes = dtype.size() * rows * cols;
            allocated += bytes;
            Ok(Tensor::new(vec![0u8; bytes], dtype, rows, cols))
        })
        .unwrap();
        assert_eq!(DeviceSampler::bytes(&info), 2 * allocated as u128 + 4 * 300);
        let Plan { params, adjustment_words, row, .. } = &sampler.plan;
        let on_host = 4 * (params.capacity() + adjustment_words.capacity() + row.places.capacity());
        assert!(allocated + on_host <= 2 * allocated + 4 * 300);
    }

    #[test]
    fn rows_that_a_device_cannot_do_are_not_taken() {
        let cpu = CpuBackend::new(Some(1));
        let info = info(64);
        let mut sampler = DeviceSampler::new(&info, &mut |dtype, rows, cols| cpu.allocate(dtype, rows, cols)).unwrap();
        let row = plain();
        let mut masked = row.at(1);
        let RowTask::Sample { allowed_tokens, .. } = &mut masked.task else { unreachable!() };
        *allowed_tokens = Some(&[1, 1]);
        // Of rows that the device could do, it takes as many as requests may run.
        let rows = [row.at(0), masked.clone(), row.at(2), row.at(3)];
        assert!(sampler.prepare(&cpu, &rows, 4));
        assert_eq!([0, 1, 2, 3].map(|i| sampler.takes(i)), [true, false, true, false]);
        assert!(sampler.prepare(&cpu, &rows[..1], 1));
        assert!(!sampler.prepare(&cpu, &[masked], 2));
        assert!(!sampler.takes(0));
    }

    fn plain() -> Row {
        let (prompt, output, stop) = (vec![], vec![], vec![]);
        Row { params: SamplingParams::default(), seed: 1, prompt, output, stop, num_logprobs: None }
    }

    fn on_host(logits: &[f32], row: &Row) -> Result<Sample, String> {
        let mut out = Vec::new();
        let sequential = |n: usize, f: &(dyn Fn(usize) + Sync)| (0..n).for_each(f);
        Sampler::new(logits.len(), 1).sample(logits, &[row.at(0)], &mut out, &sequential)?;
        out.remove(0).map_err(|e| e.to_string())
    }

    /// By the op's definition, as the device is told about the row; `None` if the device does not take it.
    fn by_definition(logits: &[f32], row: &Row) -> Option<Reference> {
        let mut plan = Plan::new(&info(logits.len()));
        plan.make(&[row.at(0)], 1);
        let words: &[u32; SampleRow::WORDS] = plan.params.as_chunks().0.first()?;
        let adjustments: Vec<Adjustment> =
            plan.adjustment_words.as_chunks().0.iter().map(|words| Adjustment::of_words(*words)).collect();
        Some(reference(logits, &SampleRow::of_words(*words), &adjustments))
    }

    fn row() -> impl Strategy<Value = Row> {
        let temperature = prop_oneof![Just(0.0f32), Just(1.0), 0.1f32..3.0];
        let top_k = prop_oneof![Just(0u32), Just(1), 2u32..300];
        let top_p = prop_oneof![Just(1.0f32), 0.05f32..1.0];
        let min_p = prop_oneof![Just(0.0f32), 0.001f32..0.5];
        let repetition = prop_oneof![Just(1.0f32), 0.5f32..2.0];
        let penalties = (repetition, prop_oneof![Just(0.0f32), -2.0f32..2.0], prop_oneof![Just(0.0f32), -2.0f32..2.0]);
        let bias = prop::collection::btree_map(0u32..200, -5.0f32..5.0, 0..4);
        let tokens = || prop::collection::vec(0u32..220, 0..30);
        let num_logprobs = prop::option::of(0usize..=20);
        let texts = (tokens(), tokens(), prop::collection::vec(0u32..200, 0..3), 0u32..40);
        (temperature, top_k, top_p, min_p, penalties, bias, texts, any::<u64>(), num_logprobs).prop_map(
            |(temperature, top_k, top_p, min_p, penalties, bias, texts, seed, num_logprobs)| {
                let (repetition_penalty, frequency_penalty, presence_penalty) = penalties;
                let (prompt, output, stop, min_tokens) = texts;
                let params = SamplingParams {
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    repetition_penalty,
                    frequency_penalty,
                    presence_penalty,
                    logit_bias: bias.into_iter().collect(),
                    min_tokens,
                    ..SamplingParams::default()
                };
                Row { params, seed, prompt, output, stop, num_logprobs }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

        /// What the device computes by its definition is what the host computes.
        #[test]
        fn the_definition_is_that_of_the_host(
            logits in prop::collection::vec(prop_oneof![-8.0f32..8.0, (-6i32..6).prop_map(|l| l as f32)], 1..200),
            row in row(),
        ) {
            // The definition is of rows with a finite logit.
            let host = match on_host(&logits, &row) {
                Ok(host) => host,
                Err(reason) => {
                    prop_assert!(reason.contains("no token may be picked"), "{}", reason);
                    return Ok(());
                }
            };
            let definition = by_definition(&logits, &row).expect("nothing here is the host's");
            // Two roundings of weights and an exponential: see the conformance of the op.
            if definition.margin < 1e-5 {
                return Ok(());
            }
            prop_assert_eq!(host.token_id, definition.token);
            if let Some(logprobs) = host.logprobs {
                prop_assert_eq!(logprobs.rank, definition.rank);
                let ids: Vec<u32> = logprobs.top.iter().map(|entry| entry.0).collect();
                let num_top = row.num_logprobs.unwrap_or(0).min(definition.ranking.len());
                prop_assert_eq!(&ids[..], &definition.ranking[..num_top]);
                let own = (definition.token, logprobs.logprob);
                for (id, logprob) in logprobs.top.into_iter().chain([own]) {
                    prop_assert!((f64::from(logprob) - definition.logprobs[id as usize]).abs() < 1e-4);
                }
            }
        }
    }

    #[test]
    fn rows_that_the_device_cannot_do_are_the_hosts() {
        let vocab = 5000;
        let many: Vec<u32> = (0..=MAX_ADJUSTMENTS as u32).collect();
        let penalty = SamplingParams { repetition_penalty: 1.1, ..SamplingParams::default() };
        let twice = SamplingParams { logit_bias: [(7, 0.1), (7, 0.2)].into(), ..SamplingParams::default() };
        let rows = [
            Row { params: penalty.clone(), prompt: many.clone(), ..plain() },
            Row { params: penalty, prompt: many[1..].to_vec(), ..plain() },
            Row { params: twice, ..plain() },
            plain(),
        ];
        let logits = vec![0.0; vocab];
        let taken = rows.each_ref().map(|row| by_definition(&logits, row).is_some());
        assert_eq!(taken, [false, true, false, true]);

        let mut plan = Plan::new(&info(vocab));
        let (first, second) = (plain(), plain());
        let score = SamplingRow { logit_row: 2, task: RowTask::Score { token_id: 3 }, num_logprobs: Some(1) };
        let mut masked = second.at(3);
        if let RowTask::Sample { allowed_tokens, .. } = &mut masked.task {
            *allowed_tokens = Some(&[1]);
        }
        // A score, a mask, a row that is not there, the same row twice.
        plan.make(&[first.at(0), score, masked, second.at(4), second.at(0), second.at(1)], 4);
        assert_eq!(plan.taken, [true, false, false, false, false, true]);
        assert_eq!(plan.num_taken(), 2);
    }
}
