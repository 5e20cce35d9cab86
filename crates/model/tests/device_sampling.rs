//! Tokens that the device picks are those that the host's sampler picks from the same logits, in any company.

mod common;

use common::{load_on, metal, options};
use vllm_apple_executor::{Batch, Executor, RowTask, Sample, SamplingParams, SamplingRow};
use vllm_apple_model::sampler::Sampler;
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
        SamplingParams { top_p: 0.6, logit_bias: [(3, 4.0), (40, -3.0)].into(), min_tokens: 100, ..default() },
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
            eos_token_ids: &[5, 9],
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
        check(got.as_ref().unwrap(), expected.as_ref().unwrap());
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

/// Everything that can leave a row without a token, and whether that is the request's own fault.
fn poisons(vocab_size: u32) -> Vec<(SamplingParams, Option<&'static str>)> {
    let everything: Vec<u32> = (0..vocab_size).collect();
    let banned = everything.iter().map(|&token| (token, f32::NEG_INFINITY));
    let default = SamplingParams::default;
    vec![
        (SamplingParams { logit_bias: banned.collect(), ..default() }, Some("`logit_bias` bans all")),
        (
            SamplingParams { min_tokens: 1, stop_token_ids: everything.into(), ..default() },
            Some("`min_tokens` holds back"),
        ),
        // What is beyond the largest number is the largest number: these rows have a token.
        (SamplingParams { repetition_penalty: 1e-40, ..default() }, None),
        (SamplingParams { repetition_penalty: 1e-30, logit_bias: [(3, 100.0)].into(), ..default() }, None),
        (SamplingParams { repetition_penalty: 1e38, temperature: 0.0, ..default() }, None),
    ]
}

/// A row without a token is its own request's: on the device and on the host the others' answers are those without it, bit for bit.
#[test]
fn a_row_without_a_token_leaves_its_company_alone() {
    let mut model = load_on(metal(), "qwen2", &options(DType::F32, 128));
    let vocab_size = model.info().vocab_size as u32;
    let everything: Vec<u32> = (0..vocab_size).collect();
    let bystanders = params();
    let poisons = poisons(vocab_size);
    let prompts: Vec<Vec<u32>> = (0..bystanders.len()).map(prompt).collect();
    let mut batch = Batch::default();
    batch.clear(2);
    for (i, prompt) in prompts.iter().enumerate() {
        batch.push_request(prompt, 0, &[2 * i as u32, 2 * i as u32 + 1], model.info().block_size, 1);
    }
    model.forward(&batch).unwrap();
    let row = |logit_row: usize, params, prompt_token_ids| SamplingRow {
        logit_row,
        task: RowTask::Sample {
            params,
            seed: 7,
            prompt_token_ids,
            output_token_ids: &[],
            eos_token_ids: &[5, 9],
            allowed_tokens: None,
        },
        num_logprobs: Some(3),
    };
    let mut rows: Vec<_> = (1..bystanders.len()).map(|i| row(i, &bystanders[i], &*prompts[i])).collect();
    let mut alone = Vec::new();
    model.sample(&rows, &mut alone).unwrap();
    for (poison, words) in &poisons {
        rows.insert(2, row(0, poison, &everything));
        let mut together = Vec::new();
        model.sample(&rows, &mut together).unwrap();
        let sequential = |n: usize, f: &(dyn Fn(usize) + Sync)| (0..n).for_each(f);
        let mut on_host = Vec::new();
        Sampler::new(vocab_size as usize, rows.len()).sample(model.logits(), &rows, &mut on_host, &sequential).unwrap();
        rows.remove(2);
        for answer in [together.remove(2), on_host.remove(2)] {
            match (words, answer) {
                (None, Ok(_)) => (),
                (Some(words), Err(error)) => assert!(error.to_string().contains(words), "{error}"),
                (_, answer) => panic!("{poison:?}: {answer:?}"),
            }
        }
        assert_eq!(together, alone);
    }
}
