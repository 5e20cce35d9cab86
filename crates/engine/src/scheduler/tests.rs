//! The integrity check, which the other tests rely on, notices each kind of damage; and the sizes of chunks.

use super::*;
use crate::admission::{Admission, EngineConfig};
use crate::request::EngineRequest;

/// A scheduler of up to two running requests, after one step of those whose prompts have these lengths.
fn scheduler(prompts: &[usize]) -> Scheduler {
    scheduler_of(info(), prompts).0
}

fn info() -> ExecutorInfo {
    ExecutorInfo {
        vocab_size: 100,
        max_model_len: 40,
        max_num_batched_tokens: 16,
        costly_context: None,
        embedding_size: None,
        max_num_seqs: 2,
        max_logit_rows: 2,
        block_size: 4,
        num_blocks: 16,
    }
}

/// After a step with `prompts`, and what lets others in.
fn scheduler_of(info: ExecutorInfo, prompts: &[usize]) -> (Scheduler, impl Fn(&mut Scheduler, Vec<u32>) + use<>) {
    let mut scheduler = Scheduler::new(&info, true, None);
    let admission = Admission::new(info, EngineConfig::default()).unwrap();
    let add = move |scheduler: &mut Scheduler, tokens: Vec<u32>| {
        let params = vllm_apple_executor::SamplingParams::default();
        scheduler.add(admission.prepare(EngineRequest::new(tokens, params)).unwrap());
    };
    prompts.iter().for_each(|&len| add(&mut scheduler, vec![1; len]));
    step(&mut scheduler);
    (scheduler, add)
}

/// The tokens that each running request computed.
fn step(scheduler: &mut Scheduler) -> Vec<usize> {
    scheduler.schedule();
    let chunks = scheduler.running.iter().map(|request| request.chunk.num_tokens).collect();
    let answers: Vec<_> = (0..scheduler.running.iter().map(|request| request.chunk.num_logits).sum())
        .map(|_| Ok(Sample { token_id: 7, logprobs: None }))
        .collect();
    scheduler.update(answers.into_iter(), &mut Vec::new());
    chunks
}

fn damaged(prompts: &[usize], damage: impl FnOnce(&mut Scheduler)) -> String {
    let mut scheduler = scheduler(prompts);
    assert_eq!(scheduler.check_integrity(), Ok(()));
    damage(&mut scheduler);
    scheduler.check_integrity().unwrap_err()
}

/// A prompt of 6 tokens has 6 computed of 7, one full block of 4, and room for 8.
#[test]
fn lengths_out_of_order_are_noticed() {
    let of_computed = |num: usize| damaged(&[6], |scheduler| scheduler.running[0].num_computed_tokens = num);
    assert!(of_computed(3).contains("cached 4 <= computed 3"));
    assert!(of_computed(8).contains("computed 8 <= known 7"));
    let beyond_its_blocks = damaged(&[6], |scheduler| {
        scheduler.running[0].token_ids.extend([7; 5]);
        scheduler.running[0].num_computed_tokens = 9;
    });
    assert!(beyond_its_blocks.contains("computed 9 <= known 12, room 8"));
}

#[test]
fn a_waiting_request_that_holds_or_counts_blocks_is_noticed() {
    let damages: [fn(&mut Request); 3] = [
        |waiting| waiting.block_table.push(0),
        |waiting| waiting.num_cached_blocks = 1,
        |waiting| waiting.num_computed_tokens = 1,
    ];
    for damage in damages {
        let error = damaged(&[1, 1, 1], |scheduler| damage(&mut scheduler.waiting[0]));
        assert!(error.contains("request 2 waits"), "{error}");
    }
}

/// With 1000 positions before it, a token costs twice as much as the first, with 7000 eight times. Of 512 tokens two are for decodes,
/// one of which is in each step and costs what a token of a prompt does.
#[test]
fn chunks_get_smaller_the_further_they_are_into_a_prompt() {
    let limits = ExecutorInfo { max_model_len: 10_000, max_num_batched_tokens: 512, num_blocks: 5000, ..info() };
    let chunks = |costly_context| {
        let (mut scheduler, add) = scheduler_of(ExecutorInfo { costly_context, ..limits.clone() }, &[6]);
        add(&mut scheduler, vec![1; 8000]);
        let mut chunks = Vec::new();
        while chunks.iter().sum::<usize>() < 8000 {
            let step = step(&mut scheduler);
            assert_eq!(step[0], 1, "a decode is part of every step");
            chunks.push(step[1]);
        }
        chunks
    };
    assert_eq!(chunks(None)[..15], [511; 15]);
    let smaller = chunks(Some(1000));
    // Its first four tokens are the other prompt's.
    assert_eq!(smaller[..3], [508, 376, 312]);
    let (last, others) = smaller.split_last().unwrap();
    assert!(others.is_sorted_by(|a, b| a >= b) && others[others.len() - 1] < 90 && *last <= 90, "{smaller:?}");
}

/// Of 64 tokens, a decode takes one; half are left however many decode.
#[test]
fn a_prompt_and_the_decodes_beside_it_take_a_step_together() {
    for (decodes, chunk) in [(0, 64), (9, 64 - 9), (32, 32), (50, 32)] {
        let limits = ExecutorInfo {
            max_num_seqs: 51,
            max_logit_rows: 51,
            max_num_batched_tokens: 51 + 64,
            costly_context: Some(1_000_000),
            max_model_len: 1000,
            num_blocks: 1000,
            ..info()
        };
        let (mut scheduler, add) = scheduler_of(limits, &vec![1; decodes]);
        add(&mut scheduler, vec![2; 500]);
        let mut expected = vec![1; decodes];
        expected.push(chunk);
        assert_eq!(step(&mut scheduler), expected);
    }
}

/// A chunk has 16 tokens at least, however deep: that is more than there is for all, but only one prompt has them. Those behind it have a quarter besides.
#[test]
fn two_deep_prompts_do_not_make_a_step_twice_as_long() {
    let limits = ExecutorInfo {
        max_model_len: 10_000,
        max_num_batched_tokens: 130,
        costly_context: Some(1000),
        num_blocks: 9000,
        ..info()
    };
    let (mut scheduler, add) = scheduler_of(limits, &[]);
    add(&mut scheduler, vec![1; 9000]);
    add(&mut scheduler, vec![2; 9000]);
    let mut deepest = 0;
    while scheduler.running.len() < 2 || scheduler.running.iter().all(|request| request.num_computed_tokens < 8900) {
        let starts: Vec<usize> = scheduler.running.iter().map(|request| request.num_computed_tokens).collect();
        let chunks = step(&mut scheduler);
        let cost = |(&n, &start): (&usize, &usize)| n as f64 * (1.0 + (start as f64 + n as f64 / 2.0) / 1000.0);
        let all: f64 = chunks.iter().zip(starts.iter().chain([&0])).map(cost).sum();
        assert!(all <= 200.0, "{chunks:?} behind {starts:?} cost {all}");
        deepest = deepest.max(starts.first().copied().unwrap_or(0));
    }
    assert!(deepest > 8000, "{deepest}");
}
