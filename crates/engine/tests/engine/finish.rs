//! When a request ends: vLLM's rules, as cases.

use std::sync::Arc;

use vllm_apple_engine::FinishReason::{self, Length, Stop};
use vllm_apple_engine::fake::{FakeConfig, FakeExecutor};
use vllm_apple_engine::{Engine, EngineConfig, EngineRequest};
use vllm_apple_executor::{ExecutorInfo, SamplingParams};

use crate::{check, engine, greedy, prompt, run, small_info};

const EOS: u32 = 2;

/// Outputs 10, 11, EOS, 12, 13, 12, 13 whatever is asked, then the fake model's tokens.
fn end_of(change: fn(&mut SamplingParams)) -> (usize, FinishReason) {
    let info = ExecutorInfo { max_model_len: 12, ..small_info() };
    let script = vec![10, 11, EOS, 12, 13, 12, 13];
    let fake = FakeExecutor::new(FakeConfig { info, script, ..FakeConfig::default() });
    let mut engine = Engine::new(fake, EngineConfig::default()).unwrap();
    let mut request = EngineRequest::new(vec![1, 2, 3, 4, 5], SamplingParams::default());
    request.eos_token_ids = Arc::from([EOS]);
    change(&mut request.params);
    let id = engine.submit(request).unwrap();
    let (tokens, finish) = run(&mut engine)[&id].done();
    (tokens.len(), finish)
}

#[test]
fn a_request_ends_at_eos_stop_token_or_length() {
    assert_eq!(end_of(|_| ()), (3, Stop { token: EOS }));
    assert_eq!(end_of(|p| p.max_tokens = Some(2)), (2, Length));
    assert_eq!(end_of(|p| p.max_tokens = Some(3)), (3, Stop { token: EOS }), "a stop at the limit is a stop");
    assert_eq!(end_of(|p| p.stop_token_ids = [11].into()), (2, Stop { token: 11 }));
    assert_eq!(end_of(|p| p.ignore_eos = true), (7, Length), "the model's length: 5 + 7 = 12");
    let ignore_eos_and_stop = |p: &mut SamplingParams| (p.ignore_eos, p.stop_token_ids) = (true, [13].into());
    assert_eq!(end_of(ignore_eos_and_stop), (5, Stop { token: 13 }));
}

#[test]
fn stop_tokens_before_min_tokens_do_not_end_a_request() {
    // The script ignores that the sampler must hold these tokens back; the engine does not rely on it.
    assert_eq!(end_of(|p| p.min_tokens = 3), (3, Stop { token: EOS }));
    assert_eq!(end_of(|p| p.min_tokens = 4), (7, Length));
    assert_eq!(end_of(|p| (p.min_tokens, p.stop_token_ids) = (4, [11, 12].into())), (4, Stop { token: 12 }));
    assert_eq!(end_of(|p| (p.min_tokens, p.max_tokens) = (4, Some(4))), (4, Length));
}

#[test]
fn the_sampler_is_told_which_tokens_min_tokens_holds_back() {
    let mut engine = engine(&small_info(), &[]);
    let unbounded = engine.submit(greedy(prompt(0, 5), 20)).unwrap();
    let first = run(&mut engine)[&unbounded].tokens[0];
    let mut request = greedy(prompt(0, 5), 20);
    request.params.min_tokens = 3;
    request.params.stop_token_ids = [first].into();
    let got = check(&mut engine, &[request]);
    assert_ne!(got[0].tokens[0], first);
}
