//! A request draws the same tokens on every backend, in any company, as vLLM's formulas say.

use crate::common::{load_on, metal, options};
use crate::on_backend::OnBackend;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::RefCell;
use vllm_apple_cpu::CpuBackend;
use vllm_apple_executor::{Batch, Executor, RowTask, Sample, SamplingParams, SamplingRow, allows};
use vllm_apple_metal::gpu::GpuError;
use vllm_apple_metal::gpu::faulty::{Faults, FaultyGpu, Request};
use vllm_apple_metal::gpu::software::{Edit, SoftwareGpu};
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_model::LoadOptions;
use vllm_apple_ops::sample::{SampleRow, reference};
use vllm_apple_ops::{Backend, DType};

/// A sampler on the CPU.
fn on_cpu(vocab_size: usize) -> OnBackend<CpuBackend> {
    OnBackend::new(CpuBackend::new(Some(2)), vocab_size, 8)
}

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
fn the_device_picks_what_the_cpu_picks() {
    let mut model = load_on(metal(), "qwen2", &options(DType::F32, 128));
    let params = params();
    let prompts: Vec<Vec<u32>> = (0..params.len()).map(prompt).collect();
    let output: Vec<u32> = (0..12).map(|i| i * 5 % 440).collect();
    let mut batch = Batch::default();
    batch.clear(2);
    for (i, prompt) in prompts.iter().enumerate() {
        batch.push_request(prompt, 0, &[2 * i as u32, 2 * i as u32 + 1], model.info().block_size, 2);
    }
    // Of each request, one row is scored, and the next is sampled: two of them behind a mask.
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
            allowed_tokens: [1, 3].contains(&i).then_some(&mask),
        };
        rows.push(SamplingRow { logit_row: 2 * i + 1, task, num_logprobs: (i % 2 == 0 || i == 3).then_some(i) });
    }

    let mut together = Vec::new();
    model.step(&batch, &rows, &mut together).unwrap();
    let logits = model.logits().to_vec();
    let expected = on_cpu(model.info().vocab_size).sample(&logits, &rows).unwrap();
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
    assert!(fallbacks.iter().all(|(kind, _)| kind.op != "sample"), "{fallbacks:?}");
}

#[test]
fn sampling_that_the_system_ended_is_done_again_once() {
    // Its sampling leaves the adjusted logits behind, as commands do that are ended between.
    let put_back = "row[adjustment[0]] = as_type<float>(adjustment[2]);";
    let edit = Edit::new(put_back, "if (false) row[adjustment[0]] = as_type<float>(adjustment[2]);");
    let faults = Faults::default();
    let gpu = FaultyGpu::new(SoftwareGpu::fast().unwrap().with_edit(edit), faults.clone());
    let mut model =
        load_on(MetalBackend::new(gpu, MetalOptions::default()).unwrap(), "qwen2", &options(DType::F32, 64));
    let mut undisturbed = load_on(metal(), "qwen2", &options(DType::F32, 64));
    let mut batch = Batch::default();
    batch.clear(1);
    batch.push_request(&[5, 6, 7], 0, &[0], model.info().block_size, 1);
    model.forward(&batch).unwrap();
    undisturbed.forward(&batch).unwrap();
    let params = SamplingParams {
        temperature: 0.0,
        repetition_penalty: 1.7,
        presence_penalty: 0.5,
        logit_bias: [(3, 4.0), (40, -3.0)].into(),
        ..SamplingParams::default()
    };
    let task = RowTask::Sample {
        params: &params,
        seed: 3,
        prompt_token_ids: &[5, 6, 7],
        output_token_ids: &[9, 11],
        eos_token_ids: &[],
        allowed_tokens: None,
    };
    // No alternatives: they are looked for among what this device leaves behind.
    let rows = [SamplingRow { logit_row: 0, task, num_logprobs: Some(0) }];
    let mut expected = Vec::new();
    undisturbed.sample(&rows, &mut expected).unwrap();
    let logits = model.logits().to_vec();
    assert_eq!(logits, undisturbed.logits());
    let too_long = || GpuError::TooLong("Caused GPU Timeout Error".to_owned());
    faults.fail_behind(0, too_long());
    let mut again = Vec::new();
    model.sample(&rows, &mut again).unwrap();
    assert_eq!((faults.left(), &again), (0, &expected), "nobody notices");
    assert_ne!(model.logits(), logits, "the commands have left something behind");
    faults.fail(Request::Submit, 0, too_long());
    faults.fail(Request::Submit, 0, too_long());
    let error = model.sample(&rows, &mut again).unwrap_err().to_string();
    assert!(error.contains("Timeout") && faults.left() == 0, "{error}");
}

/// The same tokens; log-probabilities up to rounding.
fn check(got: &Sample, expected: &Sample) {
    assert_eq!(got.token_id, expected.token_id);
    let near = |a: f32, b: f32| assert!(a == b || (a - b).abs() < 1e-5, "{a} {b}");
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

/// A row without a token is its own request's: on the device and on the CPU the others' answers are those without it, bit for bit.
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
        let mut on_cpu = on_cpu(vocab_size as usize).sample(model.logits(), &rows).unwrap();
        rows.remove(2);
        for answer in [together.remove(2), on_cpu.remove(2)] {
            match (words, answer) {
                (None, Ok(_)) => (),
                (Some(words), Err(error)) => assert!(error.to_string().contains(words), "{error}"),
                (_, answer) => panic!("{poison:?}: {answer:?}"),
            }
        }
        assert_eq!(together, alone);
        for (got, expected) in alone.iter().zip(on_cpu) {
            check(got.as_ref().unwrap(), &expected.unwrap());
        }
    }
}

/// Rows that no turn holds together: the same logits twice, adjusted; more adjusted tokens than the tables hold at once.
#[test]
fn rows_that_take_several_turns_are_answered_in_order() {
    let mut model = load_on(metal(), "qwen2", &LoadOptions { max_num_seqs: 2, ..options(DType::F32, 128) });
    let info = model.info().clone();
    let params = params();
    let prompts: Vec<Vec<u32>> = (0..params.len()).map(prompt).collect();
    let mut batch = Batch::default();
    batch.clear(2);
    for (i, prompt) in prompts[..2].iter().enumerate() {
        batch.push_request(prompt, 0, &[2 * i as u32, 2 * i as u32 + 1], info.block_size, 1);
    }
    let mask = vec![0x1111_1111u32; info.vocab_size.div_ceil(32)];
    let row = |logit_row, i: usize, masked: bool| SamplingRow {
        logit_row,
        task: RowTask::Sample {
            params: &params[i],
            seed: i as u64,
            prompt_token_ids: &prompts[i],
            output_token_ids: &prompts[0],
            eos_token_ids: &[5],
            allowed_tokens: masked.then_some(&mask),
        },
        num_logprobs: Some(4),
    };
    let rows: Vec<_> = (0..24).map(|n| row(n % 2, n * 5 % params.len(), n % 3 == 0)).collect();
    let mut together = Vec::new();
    model.step(&batch, &rows, &mut together).unwrap();
    assert_eq!(together.len(), rows.len());
    for (row, expected) in rows.iter().zip(&together) {
        let mut alone = Vec::new();
        model.sample(std::slice::from_ref(row), &mut alone).unwrap();
        assert_eq!(&alone[0], expected);
    }
    let mut again = together.clone();
    model.sample(&rows, &mut again).unwrap();
    assert_eq!(again, together);
}

#[derive(Debug, Clone)]
struct Row {
    params: SamplingParams,
    seed: u64,
    prompt: Vec<u32>,
    output: Vec<u32>,
    eos: Vec<u32>,
    allowed: Option<Vec<u32>>,
    num_logprobs: Option<usize>,
}

impl Row {
    fn at(&self, logit_row: usize) -> SamplingRow<'_> {
        let task = RowTask::Sample {
            params: &self.params,
            seed: self.seed,
            prompt_token_ids: &self.prompt,
            output_token_ids: &self.output,
            eos_token_ids: &self.eos,
            allowed_tokens: self.allowed.as_deref(),
        };
        SamplingRow { logit_row, task, num_logprobs: self.num_logprobs }
    }

    fn allows(&self, token: u32) -> bool {
        self.allowed.as_ref().is_none_or(|mask| allows(mask, token))
    }

    /// The logits after everything that changes them, by vLLM's formulas, one token after the other.
    fn processed(&self, logits: &[f32]) -> Vec<f32> {
        let p = &self.params;
        let count = |list: &[u32], token: u32| list.iter().filter(|&&t| t == token).count();
        let change = |(token, &raw): (u32, &f32)| {
            let held_back = self.output.len() < p.min_tokens as usize
                && (p.stop_token_ids.contains(&token) || self.eos.contains(&token));
            if held_back || !self.allows(token) {
                return f32::NEG_INFINITY;
            }
            let bias: f32 = p.logit_bias.iter().filter(|entry| entry.0 == token).map(|entry| entry.1).sum();
            let mut logit = raw + bias;
            if count(&self.prompt, token) + count(&self.output, token) > 0 {
                logit = if logit > 0.0 { logit / p.repetition_penalty } else { logit * p.repetition_penalty };
            }
            match count(&self.output, token) {
                0 => logit,
                n => logit - (p.frequency_penalty * n as f32 + p.presence_penalty),
            }
        };
        (0..).zip(logits).map(change).collect()
    }
}

/// Of equal infinities, too.
fn is_near(got: f32, expected: f64) -> bool {
    f64::from(got) == expected || (f64::from(got) - expected).abs() < 2e-5
}

fn row() -> impl Strategy<Value = Row> {
    let temperature = prop_oneof![Just(0.0f32), Just(1.0), 0.1f32..3.0];
    let top_k = prop_oneof![Just(0u32), Just(1), 2u32..300];
    let top_p = prop_oneof![Just(1.0f32), 0.05f32..1.0];
    let min_p = prop_oneof![Just(0.0f32), 0.001f32..0.5];
    let repetition = prop_oneof![Just(1.0f32), 0.5f32..2.0];
    let penalties = (repetition, prop_oneof![Just(0.0f32), -2.0f32..2.0], prop_oneof![Just(0.0f32), -2.0f32..2.0]);
    let bias = prop::collection::vec((0u32..200, -5.0f32..5.0), 0..4);
    let tokens = || prop::collection::vec(0u32..220, 0..30);
    let texts = (tokens(), tokens(), prop::collection::vec(0u32..200, 0..3), 0u32..40);
    let allowed = prop::option::weighted(0.3, prop::collection::vec(any::<u32>(), 1..9));
    let rest = (any::<u64>(), prop::option::of(0usize..=20), allowed);
    (temperature, top_k, top_p, min_p, penalties, bias, texts, rest).prop_map(
        |(temperature, top_k, top_p, min_p, penalties, bias, texts, (seed, num_logprobs, allowed))| {
            let (repetition_penalty, frequency_penalty, presence_penalty) = penalties;
            let (prompt, output, eos, min_tokens) = texts;
            let params = SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty,
                frequency_penalty,
                presence_penalty,
                logit_bias: bias.into(),
                min_tokens,
                ..SamplingParams::default()
            };
            Row { params, seed, prompt, output, eos, allowed, num_logprobs }
        },
    )
}

/// Samples one row.
fn sample_one<B: Backend>(on: &RefCell<OnBackend<B>>, logits: &[f32], row: &Row) -> Result<Sample, String> {
    let mut answers = on.borrow_mut().sample(logits, &[row.at(0)]).unwrap();
    answers.remove(0).map_err(|error| error.to_string())
}

/// Each request's token is that of vLLM's formulas and the op's definition, on every backend.
#[test]
fn all_backends_follow_the_formulas() {
    let vocab = prop_oneof![Just(1usize), Just(40), Just(199)];
    let logit = || prop_oneof![-8.0f32..8.0, (-6i32..6).prop_map(|l| l as f32)];
    let logits = vocab.prop_flat_map(move |vocab| prop::collection::vec(logit(), vocab));
    let backends = [1, 40, 199].map(|vocab| {
        let metal: OnBackend<MetalBackend<SoftwareGpu>> = OnBackend::new(metal(), vocab, 8);
        (vocab, RefCell::new(on_cpu(vocab)), RefCell::new(metal))
    });
    let mut runner = TestRunner::new(ProptestConfig { cases: 3000, ..ProptestConfig::default() });
    let result = runner.run(&(logits, row()), |(logits, row)| {
        let (_, cpu, metal) = backends.iter().find(|(vocab, ..)| *vocab == logits.len()).unwrap();
        let answers = [sample_one(cpu, &logits, &row), sample_one(metal, &logits, &row)];
        let processed = row.processed(&logits);
        if processed.iter().all(|l| *l == f32::NEG_INFINITY) {
            for answer in answers {
                prop_assert!(answer.unwrap_err().contains("no token may be picked"));
            }
            return Ok(());
        }
        let p = &row.params;
        let described = SampleRow {
            scale: if p.temperature == 0.0 { 0.0 } else { 1.0 / p.temperature },
            min_p: p.min_p,
            top_p: p.top_p,
            top_k: p.top_k,
            seed: row.seed,
            position: row.output.len() as u64,
            ..SampleRow::greedy(0)
        };
        let token = reference(&processed, &described, &[], &[]).token;
        // Log-probabilities are of what the mask leaves, and of nothing else.
        let forbidden = |token: u32| !row.allows(token);
        let left = |(token, &logit): (u32, &f32)| if forbidden(token) { f32::NEG_INFINITY } else { logit };
        let left: Vec<f32> = (0..).zip(&logits).map(left).collect();
        let raw = reference(&left, &SampleRow { score: Some(token), ..described }, &[], &[]);
        let order = raw.ranking.iter().copied().chain((0..logits.len() as u32).filter(|&token| forbidden(token)));
        let most_likely: Vec<u32> = order.take(row.num_logprobs.unwrap_or(0)).collect();
        for answer in answers {
            let answer = answer.unwrap();
            prop_assert_eq!(answer.token_id, token);
            prop_assert_eq!(answer.logprobs.is_some(), row.num_logprobs.is_some());
            if let Some(logprobs) = answer.logprobs {
                prop_assert_eq!(logprobs.rank, raw.rank);
                let ids: Vec<u32> = logprobs.top.iter().map(|entry| entry.0).collect();
                prop_assert_eq!(&ids, &most_likely);
                for (id, logprob) in logprobs.top.into_iter().chain([(token, logprobs.logprob)]) {
                    prop_assert!(is_near(logprob, raw.logprobs[id as usize]), "{id} {logprob} {:?}", raw.logprobs);
                }
            }
        }
        Ok(())
    });
    result.unwrap();
}
