//! The integrity check, which the other tests rely on, notices each kind of damage.

use super::*;
use crate::admission::{Admission, EngineConfig};
use crate::request::EngineRequest;

/// A scheduler of up to two running requests, after one step of those whose prompts have these lengths.
fn scheduler(prompts: &[usize]) -> Scheduler {
    let info = ExecutorInfo {
        vocab_size: 100,
        max_model_len: 40,
        max_num_batched_tokens: 16,
        max_num_seqs: 2,
        max_logit_rows: 2,
        block_size: 4,
        num_blocks: 16,
    };
    let mut scheduler = Scheduler::new(&info, true);
    let admission = Admission::new(info, EngineConfig::default()).unwrap();
    for &len in prompts {
        let params = vllm_apple_executor::SamplingParams::default();
        scheduler.add(admission.prepare(EngineRequest::new(vec![1; len], params)).unwrap());
    }
    scheduler.schedule();
    let answers = scheduler.running.iter().map(|_| Ok(Sample { token_id: 7, logprobs: None })).collect::<Vec<_>>();
    scheduler.update(answers.into_iter(), &mut Vec::new());
    scheduler
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
fn an_older_request_in_the_middle_of_its_prompt_is_noticed() {
    let error = damaged(&[6, 6], |scheduler| scheduler.running[0].num_computed_tokens -= 1);
    assert!(error.contains("mid-prefill"), "{error}");
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
