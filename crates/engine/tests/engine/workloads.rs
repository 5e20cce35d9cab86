//! Random workloads in tight limits: arrivals, shared prefixes, aborts, failing steps. After every step the engine's state
//! must be in order, and every token must be the oracle's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use vllm_apple_engine::fake::{Fault, expected_output, expected_prompt_logprobs};
use vllm_apple_engine::{
    Engine, EngineConfig, EngineRequest, FinishReason, RequestId, RequestOutput, Speculation, SubmitError,
};
use vllm_apple_executor::{ExecutorInfo, SamplingParams};

use crate::{Got, fake, outputs};

/// Small, so that drafts are right now and then.
const VOCAB_SIZE: usize = 12;

#[derive(Debug, Clone)]
struct Arrival {
    at_step: usize,
    request: EngineRequest,
    /// Aborted when this many steps have passed since the arrival.
    abort_after: Option<usize>,
}

#[derive(Debug, Clone)]
struct Workload {
    info: ExecutorInfo,
    config: EngineConfig,
    faults: Vec<(u64, Fault)>,
    arrivals: Vec<Arrival>,
}

fn info() -> impl Strategy<Value = ExecutorInfo> {
    let costly_context = prop::option::of(1..40usize);
    (1..5usize, 0..12usize, costly_context, 0..4usize, 1..6usize, 2..24usize, 4..40usize).prop_map(
        |(max_num_seqs, more_tokens, costly_context, more_rows, block_size, num_blocks, max_model_len)| ExecutorInfo {
            vocab_size: VOCAB_SIZE,
            max_model_len,
            max_num_batched_tokens: max_num_seqs + more_tokens,
            costly_context,
            embedding_size: None,
            max_num_seqs,
            max_logit_rows: max_num_seqs + more_rows,
            block_size,
            num_blocks,
        },
    )
}

/// Prompts share one of two prefixes and go on differently.
fn any_prompt() -> impl Strategy<Value = Vec<u32>> {
    let tail = prop::collection::vec(0..VOCAB_SIZE as u32, 0..6);
    (0..2u32, 1..20u32, tail).prop_map(|(family, len, tail)| {
        let shared = (0..len).map(|i| (family * 11 + i * 7) % VOCAB_SIZE as u32);
        shared.chain(tail).collect()
    })
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let seed = prop::option::of(0..5u64);
    let min_tokens = prop_oneof![3 => Just(0), 1 => 0..4u32];
    let stop_token_ids =
        prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(0..VOCAB_SIZE as u32, 1..3)].prop_map(Into::into);
    let max_tokens = prop_oneof![9 => (4..20u32).prop_map(Some), 1 => Just(None)];
    let scores = prop_oneof![3 => Just(None), 1 => (0..3u32).prop_map(Some)];
    (seed, min_tokens, stop_token_ids, any::<bool>(), max_tokens, scores.clone(), scores).prop_map(
        |(seed, min_tokens, stop_token_ids, ignore_eos, max_tokens, logprobs, prompt_logprobs)| SamplingParams {
            temperature: if seed.is_some() { 1.0 } else { 0.0 },
            seed,
            min_tokens,
            stop_token_ids,
            ignore_eos,
            max_tokens,
            logprobs,
            prompt_logprobs,
            ..SamplingParams::default()
        },
    )
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let abort_after = prop_oneof![4 => Just(None), 1 => (0..12usize).prop_map(Some)];
    (0..25usize, any_prompt(), any_params(), abort_after).prop_map(|(at_step, prompt, params, abort_after)| {
        let request = EngineRequest {
            prompt: prompt.into(),
            params,
            eos_token_ids: Arc::from([3]),
            grammar: None,
            pooling: None,
        };
        Arrival { at_step, request, abort_after }
    })
}

fn speculation() -> impl Strategy<Value = Option<Speculation>> {
    let some = (1..6usize, 1..3usize, 0..3usize).prop_map(|(num_speculative_tokens, prompt_lookup_min, more)| {
        Some(Speculation { num_speculative_tokens, prompt_lookup_min, prompt_lookup_max: prompt_lookup_min + more })
    });
    prop_oneof![1 => Just(None), 2 => some]
}

fn workload() -> impl Strategy<Value = Workload> {
    let fault = (0..60u64, prop_oneof![Just(Fault::Forward), Just(Fault::Sample)]);
    let faults = prop_oneof![Just(vec![]), prop::collection::vec(fault, 1..4)];
    let arrivals = prop::collection::vec(arrival(), 1..14);
    (info(), any::<bool>(), speculation(), faults, arrivals).prop_map(
        |(info, enable_prefix_caching, speculation, faults, arrivals)| Workload {
            info,
            config: EngineConfig { enable_prefix_caching, speculation, ..EngineConfig::default() },
            faults,
            arrivals,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn every_token_is_the_oracles_and_no_block_is_lost(workload in workload()) {
        Run::new(&workload).finish();
    }
}

/// One workload on its way.
struct Run<'a> {
    workload: &'a Workload,
    engine: Engine<vllm_apple_engine::fake::FakeExecutor>,
    submitted: BTreeMap<RequestId, &'a Arrival>,
    got: BTreeMap<RequestId, Got>,
    /// Requests that got a token in the last step and go on.
    decoding: BTreeSet<RequestId>,
}

impl<'a> Run<'a> {
    fn new(workload: &'a Workload) -> Self {
        let engine = Engine::new(fake(&workload.info, &workload.faults), workload.config.clone()).unwrap();
        let (submitted, got) = (BTreeMap::new(), BTreeMap::new());
        Self { workload, engine, submitted, got, decoding: BTreeSet::new() }
    }

    fn finish(mut self) {
        let last_arrival = self.workload.arrivals.iter().map(|arrival| arrival.at_step).max().unwrap_or(0);
        let mut step = 0;
        while step <= last_arrival || self.engine.has_unfinished_requests() {
            self.arrive(step);
            self.abort(step);
            self.step();
            step += 1;
            // Each request needs fewer steps alone than it has tokens; none may wait for ever.
            assert!(step < 25 + 14 * 40 * 2, "no end in sight");
        }
        assert_eq!(self.engine.stats().num_used_blocks, 0);
        for (id, arrival) in &self.submitted {
            self.check_request(&self.got[id], arrival);
        }
    }

    fn arrive(&mut self, step: usize) {
        for arrival in self.workload.arrivals.iter().filter(|arrival| arrival.at_step == step) {
            let must_fit = can_fit(&self.workload.info, &arrival.request);
            match self.engine.submit(arrival.request.clone()) {
                Ok(id) => {
                    assert!(must_fit);
                    self.submitted.insert(id, arrival);
                    self.got.insert(id, Got::default());
                }
                Err(SubmitError::TooLong { .. } | SubmitError::NeverFits { .. }) => assert!(!must_fit),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn abort(&mut self, step: usize) {
        for (id, arrival) in &self.submitted {
            if arrival.abort_after.is_some_and(|after| arrival.at_step + after == step)
                && let Some(output) = self.engine.abort(*id)
            {
                assert_eq!(self.engine.check_integrity(), Ok(()));
                self.decoding.remove(id);
                self.got.get_mut(id).unwrap().add(output);
            }
        }
    }

    fn step(&mut self) {
        let before = self.engine.stats();
        let outputs = outputs(&mut self.engine);
        let after = self.engine.stats();
        assert_eq!(self.engine.check_integrity(), Ok(()));
        self.check_order();
        if before.num_preemptions == after.num_preemptions {
            let ids: BTreeSet<RequestId> = outputs.iter().map(|output| output.id).collect();
            assert!(self.decoding.is_subset(&ids), "a decode starved: {:?} of {ids:?}", self.decoding);
        }
        self.decoding.clear();
        for output in outputs {
            self.check_output(&output);
            match output.finish {
                None => self.decoding.insert(output.id),
                Some(_) => self.decoding.remove(&output.id),
            };
            self.got.get_mut(&output.id).unwrap().add(output);
        }
    }

    /// First come, first served: who joins a step of `n` requests is one of the `n` oldest, preempted ones included, but that those whose prompts
    /// begin as another's may wait for that.
    fn check_order(&self) {
        let unfinished: Vec<_> = self.got.iter().filter(|(_, got)| got.finish.is_none()).map(|(id, _)| *id).collect();
        let begins = |id: &RequestId| self.submitted[id].request.prompt.iter().take(self.workload.info.block_size);
        let may_wait = |id: &RequestId| {
            self.workload.config.enable_prefix_caching
                && unfinished.iter().any(|other| other != id && begins(other).zip(begins(id)).all(|(a, b)| a == b))
        };
        for id in self.engine.newly_scheduled() {
            let older = unfinished.iter().filter(|&other| other < id && !may_wait(other)).count();
            assert!(older < self.engine.stats().last_step_requests, "{id:?} has overtaken one of {unfinished:?}");
        }
    }

    /// What the tokens alone do not say: log-probabilities and the share of the prefix cache.
    fn check_output(&self, output: &RequestOutput) {
        let request = &self.submitted[&output.id].request;
        let info = &self.workload.info;
        let num_cached = output.num_cached_tokens;
        assert!(num_cached.is_multiple_of(info.block_size) && num_cached < request.prompt.len());
        assert!(num_cached == 0 || self.workload.config.enable_prefix_caching);
        let Some(sample) = &output.sample else { return };
        let num_top = sample.logprobs.as_ref().map(|logprobs| logprobs.top.len() as u32);
        assert_eq!(num_top, request.params.logprobs);
        let is_first = self.got[&output.id].tokens.is_empty();
        let wanted = request.params.prompt_logprobs.filter(|_| is_first);
        let expected = wanted.map(|n| expected_prompt_logprobs(info, &request.prompt, n as usize));
        assert_eq!(output.prompt_logprobs, expected);
    }

    fn check_request(&self, got: &Got, arrival: &Arrival) {
        let (tokens, finish) = expected_output(&self.workload.info, &arrival.request);
        match got.finish.as_ref().expect("the request has not finished") {
            FinishReason::Abort => assert!(arrival.abort_after.is_some() && tokens.starts_with(&got.tokens)),
            FinishReason::Error(_) => assert!(!self.workload.faults.is_empty() && tokens.starts_with(&got.tokens)),
            reason => assert_eq!((&got.tokens, reason), (&tokens, &finish)),
        }
    }
}

/// Whether the request can reach its length alone, counted slot by slot.
fn can_fit(info: &ExecutorInfo, request: &EngineRequest) -> bool {
    let num_prompt = request.prompt.len();
    let least = num_prompt + request.params.min_tokens.max(1) as usize;
    let most = request.params.max_tokens.map_or(info.max_model_len, |n| num_prompt + n as usize);
    let computed = most.min(info.max_model_len) - 1;
    least <= info.max_model_len && computed <= info.num_blocks * info.block_size
}
