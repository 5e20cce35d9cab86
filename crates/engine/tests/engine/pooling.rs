//! Requests for vectors on the fake executor: what is refused, how long they may be, and what is found in the prefix cache.

use vllm_apple_engine::fake::{FakeExecutor, Fault, expected_pooled};
use vllm_apple_engine::{Engine, EngineRequest, FinishReason, RequestId, RequestOutput, SubmitError};
use vllm_apple_executor::{ExecutorInfo, Pooling};

use crate::{greedy, small_info};

fn info() -> ExecutorInfo {
    ExecutorInfo { embedding_size: Some(4), ..small_info() }
}

fn engine(info: &ExecutorInfo) -> Engine<FakeExecutor> {
    crate::engine(info, &[])
}

fn prompt(len: usize) -> Vec<u32> {
    crate::prompt(0, len as u32)
}

/// The outputs of all requests, in the order of their ends.
fn run(engine: &mut Engine<FakeExecutor>) -> Vec<RequestOutput> {
    let (mut all, mut outputs) = (Vec::new(), Vec::new());
    while engine.has_unfinished_requests() {
        engine.step(&mut outputs).unwrap();
        engine.check_integrity().unwrap();
        all.append(&mut outputs);
    }
    assert_eq!(engine.stats().num_used_blocks, 0);
    all
}

fn submit(engine: &mut Engine<FakeExecutor>, prompt: Vec<u32>, pooling: Pooling) -> RequestId {
    engine.submit(EngineRequest::pooled(prompt, pooling)).unwrap()
}

#[test]
fn vectors_are_the_oracles_in_steps_of_any_size() {
    for max_tokens in [8, 9, 64] {
        let info = ExecutorInfo { max_num_batched_tokens: max_tokens, ..info() };
        let mut engine = engine(&info);
        for pooling in [Pooling::Last, Pooling::First, Pooling::Mean] {
            let prompts: Vec<Vec<u32>> = (1..=info.max_model_len).step_by(5).map(prompt).collect();
            let ids: Vec<_> = prompts.iter().map(|prompt| submit(&mut engine, prompt.clone(), pooling)).collect();
            let outputs = run(&mut engine);
            assert_eq!(outputs.len(), prompts.len(), "each ends once");
            for output in outputs {
                let at = ids.iter().position(|id| *id == output.id).unwrap();
                assert_eq!(output.finish, Some(FinishReason::Pooled));
                assert_eq!(output.pooled, Some(expected_pooled(&info, &prompts[at], pooling)), "{pooling:?}");
            }
        }
    }
}

#[test]
fn the_prefix_cache_serves_those_that_need_the_last_token_alone() {
    let mut engine = engine(&info());
    let block_size = engine.info().block_size;
    let len = 2 * block_size + 1;
    for (pooling, cached) in [(Pooling::Mean, 0), (Pooling::Last, 2 * block_size), (Pooling::First, 0)] {
        submit(&mut engine, prompt(len), pooling);
        assert_eq!(run(&mut engine)[0].num_cached_tokens, cached, "{pooling:?}");
    }
}

#[test]
fn a_prompt_may_be_as_long_as_the_model_and_no_longer() {
    let mut engine = engine(&info());
    let most = engine.info().max_model_len;
    submit(&mut engine, prompt(most), Pooling::Mean);
    assert_eq!(run(&mut engine)[0].finish, Some(FinishReason::Pooled));
    let refused = engine.submit(EngineRequest::pooled(prompt(most + 1), Pooling::Last)).unwrap_err();
    assert!(!refused.to_string().contains("must follow"), "{refused}");
    assert!(matches!(refused, SubmitError::TooLong { min_output_tokens: 0, .. }));
    // All of it is computed, so that its last token needs a slot.
    let mut small = self::engine(&ExecutorInfo { num_blocks: 2, ..info() });
    let fits = 2 * small.info().block_size;
    submit(&mut small, prompt(fits), Pooling::Last);
    let refused = small.submit(EngineRequest::pooled(prompt(fits + 1), Pooling::Last)).unwrap_err();
    assert!(matches!(refused, SubmitError::NeverFits { needed: 3, .. }));
}

#[test]
fn a_model_does_one_of_both() {
    let refused = engine(&info()).submit(greedy([1, 2], 3)).unwrap_err();
    assert!(refused.to_string().contains("makes embeddings"), "{refused}");
    let mut generates = engine(&small_info());
    let refused = generates.submit(EngineRequest::pooled(vec![1], Pooling::Last)).unwrap_err();
    assert!(refused.to_string().contains("makes no embeddings"), "{refused}");
}

#[test]
fn what_is_no_number_ends_its_own_request_and_is_not_cached() {
    let info = info();
    let mut engine = crate::engine(&info, &[(0, Fault::Row)]);
    let block = info.block_size;
    let failed = submit(&mut engine, prompt(block + 1), Pooling::Last);
    let other = submit(&mut engine, vec![7], Pooling::Last);
    let outputs = run(&mut engine);
    let of = |id| outputs.iter().find(|output| output.id == id).unwrap();
    assert!(matches!(&of(failed).finish, Some(FinishReason::Error(reason)) if reason.contains("NaN")));
    assert_eq!(of(other).pooled, Some(expected_pooled(&info, &[7], Pooling::Last)));
    submit(&mut engine, prompt(block + 1), Pooling::Last);
    assert_eq!(run(&mut engine)[0].num_cached_tokens, 0);
}
