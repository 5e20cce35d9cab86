//! Requests that have no token, beside others: whose fault is whose.

use vllm_apple_engine::fake::{Fault, expected_output};
use vllm_apple_engine::{EngineRequest, FinishReason};

use crate::{check, engine, greedy, outputs, prompt, run, small_info};

/// Every token would end it, and it may not end yet.
fn poison(start: u32) -> EngineRequest {
    let mut request = greedy(prompt(start, 6), 9);
    request.params.min_tokens = 1;
    request.params.stop_token_ids = (0..small_info().vocab_size as u32).collect();
    request
}

#[test]
fn a_request_that_forbids_every_token_ends_alone() {
    let mut engine = engine(&small_info(), &[]);
    let bystanders: Vec<_> = (0..3).map(|i| greedy(prompt(i * 7, 5 + i), 8)).collect();
    let ids: Vec<_> = bystanders.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let poisoned: Vec<_> = (0..3).map(|i| engine.submit(poison(i * 11)).unwrap()).collect();
    let got = run(&mut engine);
    for (id, request) in ids.iter().zip(&bystanders) {
        assert_eq!(got[id].done(), expected_output(engine.info(), request));
    }
    for id in &poisoned {
        assert!(got[id].tokens.is_empty());
        let Some(FinishReason::Invalid(reason)) = &got[id].finish else { panic!("{:?}", got[id].finish) };
        assert!(reason.contains("min_tokens") && reason.contains("stop_token_ids"), "{reason}");
    }
    assert_eq!(engine.stats().num_failed_steps, 0);
}

/// A row of one request that scores its prompt fails: all rows of that request are its own, and those of the next are not shifted.
#[test]
fn a_row_that_is_no_number_ends_its_own_request_and_leaves_nothing_in_the_cache() {
    for scores in [None, Some(2)] {
        let mut engine = engine(&small_info(), &[(0, Fault::Row)]);
        let mut first = greedy(prompt(0, 8), 5);
        first.params.prompt_logprobs = scores;
        let failed = engine.submit(first).unwrap();
        let beside = greedy(prompt(20, 5), 5);
        let other = engine.submit(beside.clone()).unwrap();
        let got = run(&mut engine);
        assert!(matches!(&got[&failed].finish, Some(FinishReason::Error(reason)) if reason.contains("NaN")));
        assert_eq!(got[&other].done(), expected_output(engine.info(), &beside));
        assert_eq!(engine.stats().num_failed_steps, 0);
        let again = check(&mut engine, &[greedy(prompt(0, 8), 5)]);
        assert_eq!(again[0].num_cached_tokens, 0);
    }
}

/// Of two steps' tokens the first are in the cache when the second shows that something is wrong with them, or with its own.
#[test]
fn what_a_row_that_is_no_number_was_computed_from_is_not_found_again() {
    let mut engine = engine(&small_info(), &[(1, Fault::Row)]);
    let failed = engine.submit(greedy(prompt(0, 20), 5)).unwrap();
    assert!(matches!(run(&mut engine)[&failed].finish, Some(FinishReason::Error(_))));
    let again = check(&mut engine, &[greedy(prompt(0, 20), 5)]);
    assert_eq!(again[0].num_cached_tokens, 0);
    let known = check(&mut engine, &[greedy(prompt(0, 20), 5)]);
    assert_eq!(known[0].num_cached_tokens, 16, "what is computed anew is found");
}

#[test]
fn blocks_that_a_failed_request_shared_are_forgotten_and_stay_with_others() {
    let mut engine = engine(&small_info(), &[(1, Fault::Row)]);
    let failed = engine.submit(greedy(prompt(0, 12), 9)).unwrap();
    outputs(&mut engine);
    let sharing = greedy(prompt(0, 14), 9);
    let other = engine.submit(sharing.clone()).unwrap();
    let got = run(&mut engine);
    assert!(matches!(got[&failed].finish, Some(FinishReason::Error(_))));
    assert_eq!(got[&other].num_cached_tokens, 12);
    assert_eq!(got[&other].done(), expected_output(engine.info(), &sharing));
    assert_eq!(check(&mut engine, &[sharing])[0].num_cached_tokens, 0);
}
