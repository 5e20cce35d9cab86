//! Tokens that the device picks are those that the host's sampler picks from the same logits, in any company.

mod common;

use common::{load_on, metal, options};
use vllm_apple_model::sampler::Sampler;
use vllm_apple_model::{Batch, Executor, RowTask, Sample, SamplingParams, SamplingRow};
use vllm_apple_ops::DType;

/// How each request picks its token.
fn params() -> Vec<SamplingParams> {
    let default = SamplingParams::default;
    vec![
        SamplingParams { temperature: 0.0, ..default() },
        default(),
        SamplingParams { temperature: 0.7, top_k: 20, top_p: 0.9, ..default() },
        SamplingParams { min_p: 0.05, repetition_penalty: 1.3, ..default() },
        SamplingParams { temperature: 0.0, frequency_penalty: 1.5, presence_penalty: 0.5, ..default() },
        SamplingParams { top_p: 0.6, logit_bias: vec![(3, 4.0), (40, -3.0)], min_tokens: 100, ..default() },
    ]
}

const PROMPT_LEN: usize = 20;

/// Tokens of request `i`.
fn prompt(i: usize) -> Vec<u32> {
    (0..PROMPT_LEN as u32).map(|t| (t * 31 + i as u32 * 57) % 440).collect()
}

#[test]
fn the_device_picks_what_the_host_picks() {
    let mut model = load_on(metal(), "qwen2", &options(DType::F32, 128));
    let params = params();
    let prompts: Vec<Vec<u32>> = (0..params.len()).map(prompt).collect();
    let output: Vec<u32> = (0..12).map(|i| i * 5 % 440).collect();
    let mut batch = Batch::default();
    batch.clear(2);
    for (i, prompt) in prompts.iter().enumerate() {
        batch.push_request(prompt, 0, &[2 * i as u32, 2 * i as u32 + 1], model.info().block_size, 2);
    }
    // Of each request, one row is scored, and the next is sampled: one of them behind a mask, which the host takes.
    let mask = vec![0x5555_5555u32; model.info().vocab_size.div_ceil(32)];
    let mut rows = Vec::new();
    for (i, params) in params.iter().enumerate() {
        let score = RowTask::Score { token_id: 7 };
        rows.push(SamplingRow { logit_row: 2 * i, task: score, num_logprobs: Some(2) });
        let task = RowTask::Sample {
            params,
            seed: 99 + i as u64,
            prompt_token_ids: &prompts[i],
            output_token_ids: &output[..2 * i],
            stop_token_ids: &[5, 9],
            allowed_tokens: (i == 1).then_some(&mask),
        };
        rows.push(SamplingRow { logit_row: 2 * i + 1, task, num_logprobs: (i % 2 == 0).then_some(i) });
    }

    let mut together = Vec::new();
    model.step(&batch, &rows, &mut together).unwrap();
    let logits = model.logits().to_vec();
    let mut expected = Vec::new();
    let sequential = |n: usize, f: &(dyn Fn(usize) + Sync)| (0..n).for_each(f);
    Sampler::new(model.info().vocab_size, rows.len()).sample(&logits, &rows, &mut expected, &sequential).unwrap();
    assert_eq!(together.len(), expected.len());
    for (got, expected) in together.iter().zip(&expected) {
        check(got, expected);
    }

    // Apart from the step, and each row alone: the same bits.
    let mut again = Vec::new();
    model.sample(&rows, &mut again).unwrap();
    assert_eq!(again, together);
    for (row, expected) in rows.iter().zip(&together) {
        let mut alone = Vec::new();
        model.sample(std::slice::from_ref(row), &mut alone).unwrap();
        assert_eq!(&alone[0], expected);
    }
    assert_eq!(model.logits(), logits, "penalties have left no trace");
    let fallbacks = model.backend().fallbacks();
    assert!(fallbacks.iter().all(|(op, _)| *op != "sample"), "{fallbacks:?}");
}

/// The same tokens; log-probabilities up to rounding.
fn check(got: &Sample, expected: &Sample) {
    assert_eq!(got.token_id, expected.token_id);
    let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-5, "{a} {b}");
    match (&got.logprobs, &expected.logprobs) {
        (None, None) => (),
        (Some(got), Some(expected)) => {
            near(got.logprob, expected.logprob);
            assert_eq!((got.rank, got.top.len()), (expected.rank, expected.top.len()));
            for (got, expected) in got.top.iter().zip(&expected.top) {
                assert_eq!(got.0, expected.0);
                near(got.1, expected.1);
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn logits_that_are_no_numbers_are_an_error() {
    let mut model = load_on(metal(), "qwen2", &options(DType::F32, 128));
    let mut batch = Batch::default();
    batch.clear(2);
    let prompt = prompt(0);
    batch.push_request(&prompt, 0, &[0, 1], model.info().block_size, 1);
    // Every token is forbidden.
    let logit_bias = (0..model.info().vocab_size as u32).map(|token| (token, f32::NEG_INFINITY)).collect();
    let params = SamplingParams { logit_bias, ..SamplingParams::default() };
    let task = RowTask::Sample {
        params: &params,
        seed: 1,
        prompt_token_ids: &prompt,
        output_token_ids: &[],
        stop_token_ids: &[],
        allowed_tokens: None,
    };
    let error =
        model.step(&batch, &[SamplingRow { logit_row: 0, task, num_logprobs: None }], &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("no token can be picked: the largest logit is -inf"), "{error}");
}
