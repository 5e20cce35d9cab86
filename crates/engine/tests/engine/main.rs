//! The engine over the fake executor, through its public interface only: every token is checked against the oracle.

mod beside;
mod finish;
mod grammar;
mod handle;
mod poison;
mod pooling;
mod prefix_cache;
mod scheduling;
mod speculation;
mod workloads;

use std::collections::BTreeMap;

use vllm_apple_engine::fake::{FakeConfig, FakeExecutor, Fault, expected_output};
use vllm_apple_engine::{Engine, EngineConfig, EngineRequest, FinishReason, RequestId, RequestOutput};
use vllm_apple_executor::{ExecutorInfo, SamplingParams};

/// Small limits in which every rule of the engine can be seen.
fn small_info() -> ExecutorInfo {
    ExecutorInfo {
        vocab_size: 50,
        max_model_len: 64,
        max_num_batched_tokens: 16,
        costly_context: None,
        embedding_size: None,
        max_num_seqs: 4,
        max_logit_rows: 6,
        block_size: 4,
        num_blocks: 32,
    }
}

fn fake(info: &ExecutorInfo, faults: &[(u64, Fault)]) -> FakeExecutor {
    FakeExecutor::new(FakeConfig { info: info.clone(), faults: faults.to_vec(), ..FakeConfig::default() })
}

fn engine(info: &ExecutorInfo, faults: &[(u64, Fault)]) -> Engine<FakeExecutor> {
    Engine::new(fake(info, faults), EngineConfig::default()).unwrap()
}

fn greedy(prompt: impl Into<Vec<u32>>, max_tokens: u32) -> EngineRequest {
    let params = SamplingParams { temperature: 0.0, max_tokens: Some(max_tokens), ..SamplingParams::default() };
    EngineRequest::new(prompt.into(), params)
}

/// Distinct tokens from `start` on, below the vocabulary size of [`small_info`].
fn prompt(start: u32, len: u32) -> Vec<u32> {
    (start..start + len).map(|token| token % 50).collect()
}

/// What a request got so far.
#[derive(Debug, Default, Clone, PartialEq)]
struct Got {
    tokens: Vec<u32>,
    num_cached_tokens: usize,
    finish: Option<FinishReason>,
}

impl Got {
    fn add(&mut self, output: RequestOutput) {
        assert_eq!(self.finish, None, "an output after the last one");
        self.tokens.extend(output.sample.map(|sample| sample.token_id));
        self.num_cached_tokens = output.num_cached_tokens;
        self.finish = output.finish;
    }

    fn done(&self) -> (Vec<u32>, FinishReason) {
        (self.tokens.clone(), self.finish.clone().expect("the request has not finished"))
    }
}

/// What one step brings.
fn outputs(engine: &mut Engine<FakeExecutor>) -> Vec<RequestOutput> {
    let mut outputs = Vec::new();
    engine.step(&mut outputs).unwrap();
    outputs
}

/// One step, checked; returns the requests that got an output.
fn step(engine: &mut Engine<FakeExecutor>, got: &mut BTreeMap<RequestId, Got>) -> Vec<RequestId> {
    let outputs = outputs(engine);
    assert_eq!(engine.check_integrity(), Ok(()));
    let ids = outputs.iter().map(|output| output.id).collect();
    for output in outputs {
        got.entry(output.id).or_default().add(output);
    }
    ids
}

/// Runs until nothing is left, and checks that nothing is held.
fn run(engine: &mut Engine<FakeExecutor>) -> BTreeMap<RequestId, Got> {
    let mut got = BTreeMap::new();
    while engine.has_unfinished_requests() {
        step(engine, &mut got);
    }
    assert_eq!(engine.stats().num_used_blocks, 0);
    got
}

/// Runs all requests together and checks each against the oracle.
fn check(engine: &mut Engine<FakeExecutor>, requests: &[EngineRequest]) -> Vec<Got> {
    let ids: Vec<RequestId> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let got = run(engine);
    for (id, request) in ids.iter().zip(requests) {
        assert_eq!(got[id].done(), expected_output(engine.info(), request));
    }
    ids.iter().map(|id| got[id].clone()).collect()
}
