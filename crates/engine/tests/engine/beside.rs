//! Requests beside a long prompt: who waits, and what the prompt gives away.

use std::collections::BTreeMap;

use vllm_apple_executor::ExecutorInfo;

use crate::{engine, greedy, prompt, run, small_info, step};

fn info() -> ExecutorInfo {
    ExecutorInfo { max_num_batched_tokens: 64, max_model_len: 1000, num_blocks: 1000, ..small_info() }
}

/// In which step each request has its first token, all of them submitted at once.
fn first_tokens(info: &ExecutorInfo, prompts: &[Vec<u32>]) -> Vec<u64> {
    let mut engine = engine(info, &[]);
    let ids: Vec<_> = prompts.iter().map(|tokens| engine.submit(greedy(tokens.clone(), 2)).unwrap()).collect();
    let (mut got, mut first) = (BTreeMap::new(), BTreeMap::new());
    while engine.has_unfinished_requests() {
        for id in step(&mut engine, &mut got) {
            first.entry(id).or_insert(engine.stats().num_steps);
        }
    }
    ids.iter().map(|id| first[id]).collect()
}

#[test]
fn a_second_answer_to_a_prompt_does_not_slow_the_first() {
    assert_eq!(first_tokens(&info(), &[prompt(0, 640)]), [10]);
    assert_eq!(first_tokens(&info(), &[prompt(0, 640), prompt(0, 640)]), [10, 11]);
}

#[test]
fn who_waits_for_blocks_does_not_slow_those_that_have_them() {
    let info = ExecutorInfo { num_blocks: 170, ..info() };
    assert_eq!(first_tokens(&info, &[prompt(0, 640), prompt(7, 100)])[0], 10);
}

#[test]
fn who_waits_for_a_prefix_holds_nobody_up() {
    assert_eq!(first_tokens(&info(), &[prompt(0, 630), prompt(0, 630), prompt(30, 4)]), [10, 10, 1]);
}

#[test]
fn many_answers_to_a_prompt_hold_nobody_up() {
    let info = ExecutorInfo { max_num_seqs: 64, max_logit_rows: 64, ..info() };
    let mut engine = engine(&info, &[]);
    let long = greedy(prompt(0, 630), 2);
    for _ in 0..20 {
        engine.submit(long.clone()).unwrap();
    }
    let short = engine.submit(greedy(prompt(30, 4), 2)).unwrap();
    let mut got = BTreeMap::new();
    assert!(step(&mut engine, &mut got).contains(&short));
}

/// The longest that a short prompt waits, in steps, if there is always one beside a long prompt and decodes.
fn longest_wait(info: &ExecutorInfo, decodes: u32) -> u64 {
    let mut engine = engine(info, &[]);
    for i in 0..decodes {
        engine.submit(greedy(vec![i, i + 1, i * i % 50], 5000)).unwrap();
    }
    let mut got = BTreeMap::new();
    (0..4).for_each(|_| drop(step(&mut engine, &mut got)));
    let long = engine.submit(greedy(prompt(0, 6000), 1)).unwrap();
    step(&mut engine, &mut got);
    let mut longest = 0;
    for i in 0.. {
        // Prompts that have nothing in common.
        let short =
            engine.submit(greedy((0..12).map(|k| (i * 3 + k * 7 + i * i * k) % 50).collect::<Vec<_>>(), 1)).unwrap();
        let begun = engine.stats().num_steps;
        while !got.contains_key(&short) && !got.contains_key(&long) {
            step(&mut engine, &mut got);
        }
        if got.contains_key(&long) {
            return longest;
        }
        longest = longest.max(engine.stats().num_steps - begun);
    }
    unreachable!()
}

#[test]
fn short_prompts_join_however_small_steps_are_and_however_deep_a_prompt_is() {
    let few =
        ExecutorInfo { max_num_seqs: 64, max_logit_rows: 64, max_model_len: 9000, num_blocks: 9000, ..small_info() };
    let check = |info: &ExecutorInfo, decodes| {
        let longest = longest_wait(info, decodes);
        assert!(longest <= 3, "{:?}, {decodes} decodes: {longest} steps for 12 tokens", info.costly_context);
    };
    check(&ExecutorInfo { max_num_batched_tokens: 64, ..few.clone() }, 40);
    for costly in [15_000, 1_000] {
        let slow = ExecutorInfo { max_num_batched_tokens: 128, costly_context: Some(costly), ..few.clone() };
        [0, 1, 40].into_iter().for_each(|decodes| check(&slow, decodes));
    }
}

#[test]
fn nobody_waits_for_a_block_that_does_not_come() {
    let mut engine = engine(&ExecutorInfo { num_blocks: 60, max_model_len: 240, ..small_info() }, &[]);
    engine.submit(greedy(prompt(0, 16), 1)).unwrap();
    run(&mut engine);
    // Its first blocks are known already, so that its own are not made known.
    let mut scored = greedy(prompt(0, 200), 1);
    scored.params.prompt_logprobs = Some(0);
    let scored = engine.submit(scored).unwrap();
    let mut got = BTreeMap::new();
    (0..3).for_each(|_| drop(step(&mut engine, &mut got)));
    // Takes the known ones.
    let other = engine.submit(greedy((0..39).map(|i| (i * 7 + 3) % 50).collect::<Vec<_>>(), 1)).unwrap();
    while !got.contains_key(&other) {
        step(&mut engine, &mut got);
    }
    let sharing = engine.submit(greedy(prompt(0, 12), 1)).unwrap();
    while !got.contains_key(&sharing) {
        step(&mut engine, &mut got);
    }
    assert!(!got.contains_key(&scored), "it waited for the end of a prompt that had passed the block");
}
