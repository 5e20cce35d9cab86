//! Drafts: what they save, and that nothing but the number of steps tells of them.

use std::sync::Arc;

use vllm_apple_engine::FinishReason::{Length, Stop};
use vllm_apple_engine::fake::{FakeConfig, FakeExecutor, Fault};
use vllm_apple_engine::{Engine, EngineConfig, EngineRequest, EngineStats, FinishReason, Speculation};
use vllm_apple_executor::{ExecutorInfo, SamplingParams};

use crate::{Got, check, greedy, prompt, run, small_info};

fn info() -> ExecutorInfo {
    ExecutorInfo { max_num_batched_tokens: 24, max_logit_rows: 24, ..small_info() }
}

const SPECULATION: Speculation = Speculation { num_speculative_tokens: 4, prompt_lookup_min: 1, prompt_lookup_max: 3 };

/// An engine whose requests answer with `script`, with up to four drafts.
fn engine(info: ExecutorInfo, script: Vec<u32>, faults: Vec<(u64, Fault)>) -> Engine<FakeExecutor> {
    let fake = FakeExecutor::new(FakeConfig { info, script, faults, ..FakeConfig::default() });
    Engine::new(fake, EngineConfig { speculation: Some(SPECULATION), ..EngineConfig::default() }).unwrap()
}

/// What the answer to a prompt of 5 tokens is, and how it came about.
fn answer(script: &[u32], change: impl FnOnce(&mut SamplingParams)) -> (Vec<u32>, FinishReason, EngineStats) {
    let mut engine = engine(info(), script.to_vec(), Vec::new());
    let mut request = EngineRequest::new(vec![40, 41, 42, 43, 44], SamplingParams::default());
    request.eos_token_ids = Arc::from([2]);
    request.params.max_tokens = Some(script.len() as u32);
    change(&mut request.params);
    let id = engine.submit(request).unwrap();
    let Got { tokens, finish, .. } = run(&mut engine)[&id].clone();
    (tokens, finish.unwrap(), engine.stats())
}

#[test]
fn what_repeats_takes_fewer_steps() {
    let script: Vec<u32> = [5, 6, 7].repeat(7);
    let (tokens, finish, stats) = answer(&script, |_| ());
    assert_eq!((&tokens, finish), (&script, Length));
    // The first four tokens take a step each; then come five a step, but that the last has no drafts behind it.
    let of =
        |stats: EngineStats| (stats.num_steps, stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens);
    assert_eq!(of(stats), (4 + 4, 4, 4 * 3 + 1, 4 * 3 + 1));
    assert_eq!(stats.generation_tokens, 21);
    let (tokens, _, stats) = answer(&(5..26).collect::<Vec<_>>(), |_| ());
    assert_eq!((tokens.len(), of(stats)), (21, (21, 0, 0, 0)));
}

#[test]
fn what_comes_otherwise_ends_the_drafts() {
    // Drafts of 7, 8, 9, 10 behind the second 6, of which the first two are right.
    let script = [5, 6, 7, 8, 9, 10, 6, 7, 8, 20, 21, 22];
    let (tokens, _, stats) = answer(&script, |_| ());
    assert_eq!(tokens, script);
    assert_eq!((stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens), (1, 4, 2));
}

#[test]
fn an_end_among_the_drafts_ends_the_answer() {
    let script: Vec<u32> = [5, 6, 2, 7].repeat(4);
    let ends = |change: fn(&mut SamplingParams)| {
        let (tokens, finish, _) = answer(&script, change);
        (tokens.len(), finish)
    };
    assert_eq!(ends(|p| p.ignore_eos = true), (16, Length));
    assert_eq!(ends(|p| p.min_tokens = 5), (7, Stop { token: 2 }));
    assert_eq!(
        ends(|p| (p.ignore_eos, p.stop_token_ids, p.min_tokens) = (true, [7].into(), 9)),
        (12, Stop { token: 7 })
    );
    for max in 1..=16 {
        let (tokens, finish, _) = answer(&script, |p| (p.ignore_eos, p.max_tokens) = (true, Some(max)));
        assert_eq!((tokens.len(), finish), (max as usize, Length));
    }
}

/// A request that repeats itself beside one whose prompt takes steps, and with as many as there may be.
#[test]
fn steps_with_prompts_have_no_drafts_and_no_step_has_too_many_tokens() {
    let script: Vec<u32> = [5, 6].repeat(20);
    let mut engine = engine(ExecutorInfo { max_num_seqs: 24, ..info() }, script.clone(), Vec::new());
    let mut ids = vec![engine.submit(greedy(prompt(0, 5), 40)).unwrap()];
    let mut outputs = Vec::new();
    for _ in 0..4 {
        engine.step(&mut outputs).unwrap();
    }
    assert!(outputs.len() > 1, "it has drafts");
    ids.push(engine.submit(greedy(prompt(10, 10), 40)).unwrap());
    engine.step(&mut outputs).unwrap();
    assert_eq!((outputs.len(), engine.stats().last_step_tokens), (2, 11));
    ids.extend((0..4).map(|i| engine.submit(greedy(prompt(i, 2), 40)).unwrap()));
    let mut most = 0;
    while engine.has_unfinished_requests() {
        let before = engine.stats().num_drafts;
        engine.step(&mut outputs).unwrap();
        assert_eq!(engine.check_integrity(), Ok(()));
        assert!(outputs.len() <= engine.max_outputs());
        let EngineStats { last_step_tokens, last_step_requests, num_drafts, .. } = engine.stats();
        if num_drafts > before && last_step_requests == 6 {
            most = most.max(last_step_tokens);
        }
    }
    assert_eq!(most, 8);
}

/// The second row of a step fails, which only counts if the first picked the draft before it; and blocks are for requests before they are for drafts.
#[test]
fn drafts_take_nothing_from_anyone() {
    let tight = ExecutorInfo { num_blocks: 8, block_size: 2, max_model_len: 16, max_num_seqs: 2, ..info() };
    let mut engine = engine(tight, Vec::new(), Vec::new());
    let requests = [greedy(vec![1, 2, 1, 2, 1, 2, 1], 3), greedy(vec![3, 3, 3, 3, 3, 3, 3], 2)];
    check(&mut engine, &requests);
    assert_eq!(engine.stats().num_preemptions, 0);
}

#[test]
fn wrong_drafts_keep_no_blocks_that_others_need() {
    let preemptions = |speculation: Option<Speculation>| {
        let limits = ExecutorInfo {
            num_blocks: 4,
            block_size: 8,
            max_num_batched_tokens: 24,
            max_logit_rows: 24,
            ..small_info()
        };
        let script = vec![5, 20, 21, 22, 23, 24, 25, 26];
        let fake = FakeExecutor::new(FakeConfig { info: limits, script, ..FakeConfig::default() });
        let mut engine = Engine::new(fake, EngineConfig { speculation, ..EngineConfig::default() }).unwrap();
        engine.submit(greedy(prompt(30, 14), 4)).unwrap();
        engine.submit(greedy(vec![5, 6, 7, 8], 8)).unwrap();
        run(&mut engine);
        engine.stats().num_preemptions
    };
    assert_eq!(preemptions(None), 0);
    assert_eq!(preemptions(Some(SPECULATION)), 0);
}

#[test]
fn a_step_that_fails_leaves_no_drafts() {
    let script: Vec<u32> = [5, 6].repeat(20);
    let mut engine = engine(info(), script, vec![(4, Fault::Forward)]);
    let id = engine.submit(greedy(prompt(0, 5), 40)).unwrap();
    let got = run(&mut engine);
    assert!(matches!(got[&id].finish, Some(FinishReason::Error(_))));
    assert_eq!(engine.check_integrity(), Ok(()));
}
