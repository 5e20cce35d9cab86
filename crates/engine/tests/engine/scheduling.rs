//! Who computes what in which step: budget, chunks, fairness, preemption, abort, failure.

use std::collections::BTreeMap;

use vllm_apple_engine::fake::{FakeExecutor, Fault, expected_output};
use vllm_apple_engine::{Engine, EngineConfig, EngineRequest, EngineStats, FinishReason, SubmitError};
use vllm_apple_executor::{Batch, Executor, ExecutorError, ExecutorInfo, RowResult, SamplingParams, SamplingRow};

use crate::{check, engine, fake, greedy, outputs, prompt, run, small_info, step};

#[test]
fn a_long_prefill_is_chunked_and_decodes_go_on_beside_it() {
    let mut engine = engine(&small_info(), &[]);
    let decode = engine.submit(greedy(prompt(0, 4), 12)).unwrap();
    let mut got = BTreeMap::new();
    step(&mut engine, &mut got);
    let prefill = engine.submit(greedy(prompt(10, 40), 2)).unwrap();
    for chunk in [15, 15, 10] {
        assert!(step(&mut engine, &mut got).contains(&decode));
        assert_eq!(engine.stats().last_step_tokens, 1 + chunk);
    }
    assert_eq!(got[&prefill].tokens.len(), 1);
    while engine.has_unfinished_requests() {
        step(&mut engine, &mut got);
    }
    assert_eq!(got[&prefill].done(), expected_output(engine.info(), &greedy(prompt(10, 40), 2)));
}

#[test]
fn a_prompt_that_is_scored_leaves_decodes_their_rows_of_logits() {
    let mut engine = engine(&small_info(), &[]);
    let mut got = BTreeMap::new();
    let decode = engine.submit(greedy(prompt(40, 2), 30)).unwrap();
    step(&mut engine, &mut got);
    let mut scored = greedy(prompt(0, 40), 1);
    scored.params.prompt_logprobs = Some(0);
    let scored = engine.submit(scored).unwrap();
    let behind = engine.submit(greedy(prompt(45, 3), 20)).unwrap();
    assert!(step(&mut engine, &mut got).contains(&decode));
    assert!(engine.stats().last_step_tokens <= 5 + 3, "of 6 rows 5 are for two requests that run and one that waits");
    assert!(got.contains_key(&behind), "it need not wait for scores");
    while !got.contains_key(&scored) {
        let ids = step(&mut engine, &mut got);
        assert!(ids.contains(&decode) && ids.contains(&behind));
    }
    assert!(engine.stats().num_steps > 8, "40 rows, of each step at most 4");
}

#[test]
fn a_short_prompt_does_not_wait_for_the_end_of_a_long_one() {
    for costly_context in [None, Some(1000)] {
        let info = ExecutorInfo {
            max_num_batched_tokens: 64 + 4,
            max_model_len: 800,
            num_blocks: 400,
            costly_context,
            ..small_info()
        };
        let mut engine = engine(&info, &[]);
        let mut got = BTreeMap::new();
        let long = engine.submit(greedy(prompt(0, 600), 2)).unwrap();
        let short = engine.submit(greedy(prompt(7, 12), 2)).unwrap();
        let behind = engine.submit(greedy(prompt(9, 600), 2)).unwrap();
        assert_eq!(step(&mut engine, &mut got), [short], "{costly_context:?}");
        let mut ends = Vec::new();
        while engine.has_unfinished_requests() {
            for id in step(&mut engine, &mut got) {
                if id != short && got[&id].tokens.len() == 1 {
                    ends.push((id, engine.stats().num_steps));
                }
            }
        }
        // The older one has three quarters until it is done.
        let steps: Vec<_> = ends.iter().map(|(_, at)| *at).collect();
        assert_eq!(ends.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [long, behind]);
        assert!(steps[1] - steps[0] > steps[0] / 3, "{steps:?}");
    }
}

#[test]
fn a_long_prompt_alone_has_the_whole_step() {
    let mut engine = engine(&small_info(), &[]);
    engine.submit(greedy(prompt(0, 40), 1)).unwrap();
    let mut chunks = Vec::new();
    while engine.has_unfinished_requests() {
        outputs(&mut engine);
        chunks.push(engine.stats().last_step_tokens);
    }
    assert_eq!(chunks, [16, 16, 8]);
}

#[test]
fn requests_start_in_the_order_of_their_arrival() {
    let mut engine = engine(&small_info(), &[]);
    let requests: Vec<EngineRequest> = (0..10).map(|i| greedy(prompt(i * 3, 5 + i), 2 + i % 3)).collect();
    let ids: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let mut started = Vec::new();
    while engine.has_unfinished_requests() {
        outputs(&mut engine);
        started.extend_from_slice(engine.newly_scheduled());
        assert!(engine.stats().last_step_requests <= 4 && engine.stats().last_step_tokens <= 16);
    }
    assert_eq!(started, ids);
}

#[test]
fn the_youngest_gives_way_and_resumes_with_what_it_had() {
    // Each needs 6 blocks in the end, there are 9.
    let info = ExecutorInfo { num_blocks: 9, max_model_len: 24, ..small_info() };
    let mut engine = engine(&info, &[]);
    let requests = [greedy(prompt(0, 8), 15), greedy(prompt(20, 8), 15)];
    let old = engine.submit(requests[0].clone()).unwrap();
    let young = engine.submit(requests[1].clone()).unwrap();
    let mut got = BTreeMap::new();
    while engine.stats().num_preemptions == 0 {
        step(&mut engine, &mut got);
    }
    let (before, stats) = (got[&young].tokens.len(), engine.stats());
    assert!(before > 0 && stats.num_waiting == 1 && stats.num_running == 1);
    while engine.has_unfinished_requests() {
        let ids = step(&mut engine, &mut got);
        assert!(ids.contains(&old) || got[&old].finish.is_some(), "the oldest never waits");
    }
    for (id, request) in [(old, &requests[0]), (young, &requests[1])] {
        assert_eq!(got[&id].done(), expected_output(&info, request));
        assert_eq!(got[&id].num_cached_tokens, 0, "counted when first scheduled");
    }
}

/// Tokens computed in all until two requests that do not fit together are done.
fn computed_over_a_preemption(enable_prefix_caching: bool, prompt_logprobs: Option<u32>) -> usize {
    let info = ExecutorInfo { num_blocks: 9, max_model_len: 24, ..small_info() };
    let config = EngineConfig { enable_prefix_caching, ..EngineConfig::default() };
    let mut engine = Engine::new(fake(&info, &[]), config).unwrap();
    for start in [0, 20] {
        let mut request = greedy(prompt(start, 8), 15);
        request.params.prompt_logprobs = prompt_logprobs;
        engine.submit(request).unwrap();
    }
    let mut computed = 0;
    while engine.has_unfinished_requests() {
        outputs(&mut engine);
        computed += engine.stats().last_step_tokens;
    }
    assert!(engine.stats().num_preemptions > 0);
    computed
}

#[test]
fn a_preempted_request_finds_its_own_blocks() {
    let needed = 2 * (8 + 14);
    let recomputed = computed_over_a_preemption(false, None);
    assert!(recomputed > needed);
    let found = computed_over_a_preemption(true, None);
    assert!(needed < found && found < recomputed);
    assert!(computed_over_a_preemption(true, Some(0)) < recomputed, "its prompt is scored once");
}

#[test]
fn a_preempted_request_goes_before_younger_ones() {
    let info = ExecutorInfo { num_blocks: 9, max_model_len: 24, max_num_seqs: 2, ..small_info() };
    let mut engine = engine(&info, &[]);
    for start in [0, 20, 40] {
        engine.submit(greedy(prompt(start, 8), 15)).unwrap();
    }
    let mut started = Vec::new();
    while engine.has_unfinished_requests() {
        outputs(&mut engine);
        started.extend(engine.newly_scheduled().iter().map(|id| id.0));
    }
    assert_eq!(started[..4], [0, 1, 1, 2]);
}

#[test]
fn a_lone_request_reaches_the_models_length_in_the_smallest_pool() {
    let info = ExecutorInfo { num_blocks: 4, max_model_len: 17, ..small_info() };
    let mut engine = engine(&info, &[]);
    let request = EngineRequest::new(prompt(0, 3), SamplingParams { temperature: 0.0, ..Default::default() });
    let got = check(&mut engine, &[request.clone(), request]);
    assert_eq!(got[1].tokens.len(), 14);
    let smaller = ExecutorInfo { num_blocks: 3, ..info };
    let request = EngineRequest::new(prompt(0, 3), SamplingParams::default());
    let refused = crate::engine(&smaller, &[]).submit(request).unwrap_err();
    assert_eq!(refused, SubmitError::NeverFits { max_num_tokens: 17, needed: 4, block_size: 4, num_blocks: 3 });
}

#[test]
fn a_long_prompt_waits_until_all_of_it_fits_and_then_keeps_its_blocks() {
    let info = ExecutorInfo { num_blocks: 8, max_model_len: 32, ..small_info() };
    let mut engine = engine(&info, &[]);
    engine.submit(greedy(prompt(0, 12), 8)).unwrap();
    outputs(&mut engine);
    // Scoring makes it slow, so that others could join behind its first chunks and take the blocks of its later ones.
    let mut scored = greedy(prompt(20, 28), 1);
    scored.params.prompt_logprobs = Some(0);
    let long = engine.submit(scored).unwrap();
    let two_blocks = engine.submit(greedy(prompt(5, 6), 2)).unwrap();
    let one_block = engine.submit(greedy(prompt(5, 2), 2)).unwrap();
    let mut started = Vec::new();
    while engine.has_unfinished_requests() {
        outputs(&mut engine);
        started.extend_from_slice(engine.newly_scheduled());
    }
    assert_eq!(started, [long, two_blocks, one_block], "nobody is overtaken, nobody starts twice");
    assert_eq!(engine.stats().num_preemptions, 0);
}

#[test]
fn abort_frees_at_once_wherever_the_request_is() {
    let info = ExecutorInfo { max_num_seqs: 1, ..small_info() };
    let mut engine = engine(&info, &[]);
    let running = engine.submit(greedy(prompt(0, 10), 20)).unwrap();
    let waiting = engine.submit(greedy(prompt(0, 10), 20)).unwrap();
    outputs(&mut engine);
    assert_eq!(engine.abort(waiting).unwrap().finish, Some(FinishReason::Abort));
    assert_eq!(engine.stats().num_waiting, 0);
    assert!(engine.stats().num_used_blocks > 0);
    assert_eq!(engine.abort(running).unwrap().finish, Some(FinishReason::Abort));
    assert_eq!(engine.stats().num_used_blocks, 0);
    assert_eq!(engine.check_integrity(), Ok(()));
    assert_eq!(engine.abort(running), None);
    assert!(!engine.has_unfinished_requests());
    let after = check(&mut engine, &[greedy(prompt(0, 10), 3)]);
    assert_eq!(after[0].num_cached_tokens, 8, "what an aborted request has computed stays known");
}

#[test]
fn a_failed_step_ends_its_requests_and_no_others() {
    let info = ExecutorInfo { max_num_seqs: 2, ..small_info() };
    let mut engine = engine(&info, &[(1, Fault::Forward)]);
    let requests: Vec<EngineRequest> = (0..3).map(|i| greedy(prompt(i, 4), 5)).collect();
    let ids: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let got = run(&mut engine);
    for id in &ids[..2] {
        assert_eq!(got[id].tokens.len(), 1);
        assert!(matches!(got[id].finish, Some(FinishReason::Error(_))));
    }
    assert_eq!(got[&ids[2]].done(), expected_output(&info, &requests[2]));
}

#[test]
fn after_a_fatal_error_the_engine_takes_no_more() {
    let mut engine = engine(&small_info(), &[(1, Fault::Fatal)]);
    engine.submit(greedy(prompt(0, 4), 5)).unwrap();
    outputs(&mut engine);
    let error = engine.step(&mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("fatal fault in step 1"), "{error}");
    assert_eq!(engine.step(&mut Vec::new()).unwrap_err(), error);
    assert!(!engine.has_unfinished_requests());
    assert_eq!(engine.check_integrity(), Ok(()));
    assert!(matches!(engine.submit(greedy([1], 1)), Err(SubmitError::EngineDead(_))));
}

/// An executor that answers one row fewer than it is asked.
struct Forgetful(FakeExecutor);

impl Executor for Forgetful {
    fn info(&self) -> &ExecutorInfo {
        self.0.info()
    }

    fn forward(&mut self, batch: &Batch) -> Result<(), ExecutorError> {
        self.0.forward(batch)
    }

    fn sample(&mut self, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        self.0.sample(rows, out)?;
        out.pop();
        Ok(())
    }
}

#[test]
fn an_executor_that_leaves_a_row_unanswered_stops_the_engine() {
    let mut engine = Engine::new(Forgetful(fake(&small_info(), &[])), EngineConfig::default()).unwrap();
    for start in [0, 20] {
        engine.submit(greedy(prompt(start, 4), 5)).unwrap();
    }
    let error = engine.step(&mut Vec::new()).unwrap_err();
    assert!(error.reason.contains("answered 1 of 2"), "{error}");
    assert!(!engine.has_unfinished_requests());
}

#[test]
fn the_statistics_say_what_happened() {
    let mut engine = engine(&small_info(), &[(2, Fault::Forward)]);
    let expected = EngineStats { num_blocks: 32, ..EngineStats::default() };
    assert_eq!(engine.stats(), expected);

    engine.submit(greedy(prompt(0, 10), 20)).unwrap();
    outputs(&mut engine);
    let expected = EngineStats {
        num_running: 1,
        kv_cache_usage: 3.0 / 32.0,
        num_used_blocks: 3,
        prefix_cache_queries: 10,
        prompt_tokens: 10,
        generation_tokens: 1,
        num_steps: 1,
        last_step_tokens: 10,
        last_step_requests: 1,
        ..expected
    };
    assert_eq!(engine.stats(), expected);

    // The first needs no more blocks; the second shares two of its three.
    engine.submit(greedy(prompt(0, 10), 20)).unwrap();
    outputs(&mut engine);
    let expected = EngineStats {
        num_running: 2,
        kv_cache_usage: 4.0 / 32.0,
        num_used_blocks: 4,
        prefix_cache_queries: 20,
        prefix_cache_hits: 8,
        prompt_tokens: 20,
        generation_tokens: 3,
        num_steps: 2,
        last_step_tokens: 1 + 2,
        last_step_requests: 2,
        ..expected
    };
    assert_eq!(engine.stats(), expected);

    outputs(&mut engine);
    let expected = EngineStats {
        num_running: 0,
        kv_cache_usage: 0.0,
        num_used_blocks: 0,
        num_steps: 3,
        num_failed_steps: 1,
        last_step_tokens: 2,
        ..expected
    };
    assert_eq!(engine.stats(), expected);
}

#[test]
fn a_full_engine_refuses() {
    let info = ExecutorInfo { max_num_seqs: 1, ..small_info() };
    let config = EngineConfig { max_waiting: 1, ..EngineConfig::default() };
    let mut engine = Engine::new(fake(&info, &[]), config).unwrap();
    engine.submit(greedy([1], 1)).unwrap();
    engine.submit(greedy([2], 1)).unwrap();
    let refused = engine.submit(greedy([3], 1)).unwrap_err();
    assert_eq!(refused, SubmitError::QueueFull { max_num_seqs: 1, max_waiting: 1 });
    run(&mut engine);
    engine.submit(greedy([3], 1)).unwrap();
}

#[test]
fn a_seeded_request_gives_the_same_tokens_alone_and_in_a_batch() {
    let mut seeded = greedy(prompt(0, 9), 12);
    (seeded.params.temperature, seeded.params.seed) = (1.0, Some(42));
    let mut other = seeded.clone();
    other.params.seed = Some(43);
    let alone = check(&mut engine(&small_info(), &[]), &[seeded.clone()]);
    let batched = check(&mut engine(&small_info(), &[]), &[other, seeded, greedy(prompt(3, 30), 9)]);
    assert_eq!(batched[1].tokens, alone[0].tokens);
    assert_ne!(batched[0].tokens, alone[0].tokens);
}

#[test]
fn the_engines_seed_decides_the_tokens_of_requests_without_one() {
    let run_with = |seed| {
        let config = EngineConfig { seed, ..EngineConfig::default() };
        let mut engine = Engine::new(fake(&small_info(), &[]), config).unwrap();
        let request = EngineRequest::new(prompt(0, 9), SamplingParams { max_tokens: Some(12), ..Default::default() });
        engine.submit(request.clone()).unwrap();
        engine.submit(request).unwrap();
        run(&mut engine).into_values().map(|got| got.tokens).collect::<Vec<_>>()
    };
    assert_eq!(run_with(1), run_with(1));
    assert_ne!(run_with(1), run_with(2));
    let two = run_with(1);
    assert_ne!(two[0], two[1]);
}
