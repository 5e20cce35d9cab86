//! What the prefix cache gives, what it must not give, and what it forgets.

use vllm_apple_engine::fake::{Fault, expected_output, expected_prompt_logprobs};
use vllm_apple_engine::{Engine, EngineConfig, FinishReason, Prompt};
use vllm_apple_executor::ExecutorInfo;

use crate::{check, engine, fake, greedy, outputs, prompt, run, small_info};

#[test]
fn the_full_blocks_of_a_shared_prefix_are_computed_once() {
    let mut engine = engine(&small_info(), &[]);
    let first = check(&mut engine, &[greedy(prompt(0, 11), 3)]);
    assert_eq!(first[0].num_cached_tokens, 0);
    let mut continued = prompt(0, 10);
    continued.extend([40, 41, 42]);
    let second = check(&mut engine, &[greedy(continued, 3)]);
    assert_eq!(second[0].num_cached_tokens, 8);
    let stats = engine.stats();
    assert_eq!((stats.prefix_cache_queries, stats.prefix_cache_hits), (11 + 13, 8));
}

#[test]
fn a_known_prompt_still_computes_its_last_token() {
    let mut engine = engine(&small_info(), &[]);
    check(&mut engine, &[greedy(prompt(0, 8), 2)]);
    let again = check(&mut engine, &[greedy(prompt(0, 8), 2)]);
    assert_eq!(again[0].num_cached_tokens, 4, "the block with the last token is computed again");
}

#[test]
fn output_tokens_are_cached_too() {
    let mut engine = engine(&small_info(), &[]);
    let first = check(&mut engine, &[greedy(prompt(0, 6), 7)]);
    let mut conversation = prompt(0, 6);
    conversation.extend(&first[0].tokens);
    let second = check(&mut engine, &[greedy(conversation, 2)]);
    assert_eq!(second[0].num_cached_tokens, 12, "of 13 tokens the last was never computed");
}

#[test]
fn running_requests_share_the_blocks_of_their_prefix() {
    let mut engine = engine(&small_info(), &[]);
    let first = greedy(prompt(0, 12), 9);
    let id = engine.submit(first.clone()).unwrap();
    outputs(&mut engine);
    assert_eq!(engine.stats().num_used_blocks, 3);
    let second = engine.submit(greedy(prompt(0, 14), 2)).unwrap();
    outputs(&mut engine);
    // 13 tokens of the first take 4 blocks; the second shares 3 of them and adds 1.
    assert_eq!(engine.stats().num_used_blocks, 5);
    assert_eq!(engine.check_integrity(), Ok(()));
    let got = run(&mut engine);
    assert_eq!(got[&second].num_cached_tokens, 12);
    let (expected, finish) = expected_output(engine.info(), &first);
    assert_eq!((&got[&id].tokens[..], got[&id].finish.clone()), (&expected[2..], Some(finish)));
}

#[test]
fn requests_that_start_together_compute_their_prefix_once() {
    let mut engine = engine(&small_info(), &[]);
    let requests = [13, 13, 9].map(|len| greedy(prompt(0, len), 3));
    let got = check(&mut engine, &requests);
    assert_eq!(got.iter().map(|got| got.num_cached_tokens).collect::<Vec<_>>(), [0, 12, 8]);
    // A step of 13 + 1 + 1 tokens, and two of three.
    assert_eq!(engine.stats().num_steps, 3);
}

#[test]
fn a_prefix_that_takes_steps_is_waited_for() {
    for scored in [None, Some(0)] {
        let info = ExecutorInfo { max_num_batched_tokens: 24, max_model_len: 200, num_blocks: 200, ..small_info() };
        let mut engine = engine(&info, &[]);
        let mut requests = [90, 90, 90, 93].map(|len| greedy(prompt(0, len), 2));
        requests[0].params.prompt_logprobs = scored;
        let ids: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
        let (mut got, mut computed) = (std::collections::BTreeMap::new(), 0);
        while engine.has_unfinished_requests() {
            crate::step(&mut engine, &mut got);
            computed += engine.stats().last_step_tokens;
        }
        assert_eq!(ids.iter().map(|id| got[id].num_cached_tokens).collect::<Vec<_>>(), [0, 88, 88, 88]);
        assert_eq!(computed, 90 + 2 + 2 + 5 + 4, "{scored:?}: once, and what is behind the last block");
    }
}

#[test]
fn what_a_failed_step_was_to_fill_is_not_found() {
    let mut engine = Engine::new(fake(&small_info(), &[(0, Fault::Forward)]), EngineConfig::default()).unwrap();
    let ids = [0, 1].map(|_| engine.submit(greedy(prompt(0, 13), 3)).unwrap());
    let got = run(&mut engine);
    assert!(ids.iter().all(|id| matches!(got[id].finish, Some(FinishReason::Error(_)))));
    let again = check(&mut engine, &[greedy(prompt(0, 13), 3)]);
    assert_eq!(again[0].num_cached_tokens, 0);
}

#[test]
fn the_least_recently_used_prefix_is_forgotten_first() {
    let info = ExecutorInfo { num_blocks: 6, max_model_len: 24, ..small_info() };
    let mut engine = engine(&info, &[]);
    let cached = |engine: &mut _, start| check(engine, &[greedy(prompt(start, 9), 1)])[0].num_cached_tokens;
    assert_eq!(cached(&mut engine, 0), 0);
    assert_eq!(cached(&mut engine, 20), 0);
    assert_eq!(cached(&mut engine, 0), 8, "both prefixes fit: 4 blocks of 6");
    assert_eq!(cached(&mut engine, 30), 0, "this takes 3: two without content and the end of the prefix from 20 on");
    assert_eq!(cached(&mut engine, 0), 8, "used more recently than that from 20 on");
    assert_eq!(cached(&mut engine, 20), 4, "its end is evicted before its start");
}

#[test]
fn a_salt_shares_the_cache_with_the_same_salt_alone() {
    let mut engine = engine(&small_info(), &[]);
    let mut cached = |salt: Option<&str>| {
        let mut request = greedy(prompt(0, 11), 3);
        request.prompt = Prompt::salted(prompt(0, 11), salt);
        check(&mut engine, &[request])[0].num_cached_tokens
    };
    for salt in [None, Some("mine"), Some("yours")] {
        assert_eq!(cached(salt), 0);
        assert_eq!(cached(salt), 8);
    }
    assert_eq!(cached(None), 8);
}

#[test]
fn a_salted_request_finds_its_own_output_again() {
    let mut engine = engine(&small_info(), &[]);
    let mut salted = |tokens: Vec<u32>, max_tokens| {
        let mut request = greedy(tokens.clone(), max_tokens);
        request.prompt = Prompt::salted(tokens, Some("mine"));
        check(&mut engine, &[request]).remove(0)
    };
    // The first prompt fills no block: its first block has the salt, though it is hashed when output fills it.
    let first = salted(prompt(0, 3), 10);
    let mut conversation = prompt(0, 3);
    conversation.extend(&first.tokens);
    assert_eq!(salted(conversation.clone(), 2).num_cached_tokens, 12);
    assert_eq!(check(&mut engine, &[greedy(conversation, 2)])[0].num_cached_tokens, 0);
}

#[test]
fn turned_off_it_finds_nothing() {
    let config = EngineConfig { enable_prefix_caching: false, ..EngineConfig::default() };
    let mut engine = Engine::new(fake(&small_info(), &[]), config).unwrap();
    for _ in 0..2 {
        assert_eq!(check(&mut engine, &[greedy(prompt(0, 11), 3)])[0].num_cached_tokens, 0);
    }
    assert_eq!(engine.stats().prefix_cache_queries, 0);
}

#[test]
fn a_failed_step_leaves_nothing_in_the_cache() {
    for fault in [Fault::Forward, Fault::Sample] {
        // The prompt of 20 takes steps 0 and 1: the first leaves 16 good tokens, the second fails.
        let mut engine = engine(&small_info(), &[(1, fault)]);
        let id = engine.submit(greedy(prompt(0, 20), 5)).unwrap();
        let got = run(&mut engine);
        assert!(matches!(&got[&id].finish, Some(FinishReason::Error(reason)) if reason.contains("step 1")));
        assert_eq!(engine.stats().num_failed_steps, 1);
        let again = check(&mut engine, &[greedy(prompt(0, 21), 5)]);
        assert_eq!(again[0].num_cached_tokens, 16);
    }
}

#[test]
fn a_scored_prompt_skips_the_lookup_and_stays_within_the_rows_of_logits() {
    let mut engine = engine(&small_info(), &[]);
    check(&mut engine, &[greedy(prompt(0, 20), 3)]);
    let mut request = greedy(prompt(0, 20), 3);
    request.params.prompt_logprobs = Some(2);
    engine.submit(request.clone()).unwrap();
    let mut chunks = Vec::new();
    let mut got = Vec::new();
    while engine.has_unfinished_requests() {
        got.extend(outputs(&mut engine));
        chunks.push(engine.stats().last_step_tokens);
    }
    // Six rows of logits a step, the last of them for the first output token.
    assert_eq!(chunks, [6, 6, 6, 2, 1, 1]);
    assert_eq!(got[0].num_cached_tokens, 0);
    assert_eq!(engine.stats().prefix_cache_queries, 20, "those of the first request");
    let scores = got[0].prompt_logprobs.as_deref();
    assert_eq!(scores, Some(&expected_prompt_logprobs(engine.info(), &request.prompt, 2)[..]));
    assert!(got[1..].iter().all(|output| output.prompt_logprobs.is_none()));
    let tokens: Vec<u32> = got.iter().map(|output| output.sample.as_ref().unwrap().token_id).collect();
    assert_eq!(tokens, expected_output(engine.info(), &request).0);
}

#[test]
fn a_scored_prompt_of_one_token_has_no_scores() {
    let mut engine = engine(&small_info(), &[]);
    let mut request = greedy([7], 1);
    request.params.prompt_logprobs = Some(0);
    engine.submit(request).unwrap();
    assert_eq!(outputs(&mut engine)[0].prompt_logprobs, Some(Vec::new()));
}
