//! Every family against PyTorch: the recorded float32 logits, greedy tokens, and PyTorch's own errors in 16 bits.

use crate::common::{Sequence, golden_of, load_on, metal, models, options, quantised_models, step};
use safetensors::SafeTensors;
use serde_json::Value;
use vllm_apple_cpu::CpuBackend;
use vllm_apple_executor::{Executor, RowTask, SamplingParams, SamplingRow};
use vllm_apple_model::{LoadOptions, ModelExecutor};
use vllm_apple_ops::{Backend, DType};

/// A prompt of a golden file and its logits from `first` on.
struct Prompt {
    token_ids: Vec<u32>,
    greedy: Vec<u32>,
    max_model_len: usize,
    first: usize,
    logits: Vec<f32>,
}

struct Golden {
    record: Value,
    prompts: Vec<Prompt>,
}

fn read(name: &str) -> Golden {
    let record: Value =
        serde_json::from_slice(&std::fs::read(golden_of("logits", &format!("{name}.json"))).unwrap()).unwrap();
    let bytes = std::fs::read(golden_of("logits", &format!("{name}.safetensors"))).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let ids = |v: &Value| v.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let size = |v: &Value| v.as_u64().unwrap() as usize;
    let prompts = record["prompts"].as_array().unwrap().iter().enumerate().map(|(i, p)| Prompt {
        token_ids: ids(&p["token_ids"]),
        greedy: ids(&p["greedy"]),
        max_model_len: size(&p["max_model_len"]),
        first: size(&p["first_position"]),
        logits: DType::F32.decode(tensors.tensor(&format!("prompt.{i}")).unwrap().data()),
    });
    Golden { prompts: prompts.collect(), record }
}

/// Largest and mean absolute difference from the recorded logits, over all prompts.
fn errors<B: Backend>(
    backend: fn() -> B,
    name: &str,
    dtype: DType,
    kv_cache_dtype: DType,
    golden: &Golden,
) -> (f64, f64) {
    let (mut max, mut sum, mut count) = (0f64, 0f64, 0usize);
    for prompt in &golden.prompts {
        let options = LoadOptions { kv_cache_dtype: Some(kv_cache_dtype), ..options(dtype, prompt.max_model_len) };
        let mut model = load_on(backend(), name, &options);
        let (_, logits) = prefill(&mut model, &prompt.token_ids);
        let got = logits[prompt.first..].iter().flatten();
        assert_eq!(got.clone().count(), prompt.logits.len());
        for (&got, &expected) in got.zip(&prompt.logits) {
            let error = f64::from((got - expected).abs());
            assert!(error.is_finite());
            (max, sum, count) = (max.max(error), sum + error, count + 1);
        }
    }
    (max, sum / count as f64)
}

fn prefill<B: Backend>(model: &mut ModelExecutor<B>, tokens: &[u32]) -> (Sequence, Vec<Vec<f32>>) {
    let blocks = (0..model.info().num_blocks as u32).take(model.info().max_model_len.div_ceil(16)).collect();
    let mut sequences = [Sequence { tokens: tokens.to_vec(), computed: 0, blocks }];
    let logits = step(model, &mut sequences, &[(0, tokens.len())]).remove(0);
    let [sequence] = sequences;
    (sequence, logits)
}

fn pick_greedy<B: Backend>(model: &mut ModelExecutor<B>, logit_row: usize) -> u32 {
    let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let task = RowTask::Sample {
        params: &params,
        seed: 0,
        prompt_token_ids: &[],
        output_token_ids: &[],
        eos_token_ids: &[],
        allowed_tokens: None,
    };
    let mut picked = Vec::new();
    model.sample(&[SamplingRow { logit_row, task, num_logprobs: None }], &mut picked).unwrap();
    picked[0].as_ref().expect("a token may be picked").token_id
}

fn float32_logits_are_within_a_thousandth_of_their_deviation<B: Backend>(backend: fn() -> B, models: &[String]) {
    for name in models {
        let golden = read(name);
        let tolerance = 1e-3 * golden.record["logits_std"].as_f64().unwrap();
        let (max, mean) = errors(backend, name, DType::F32, DType::F32, &golden);
        println!("{name}: max {max:.2e} mean {mean:.2e} tolerance {tolerance:.2e}");
        assert!(max < tolerance, "{name}: largest difference {max}, allowed is {tolerance}");
    }
}

fn greedy_tokens_are_identical<B: Backend>(backend: fn() -> B, models: &[String]) {
    for name in models {
        for prompt in read(name).prompts {
            let mut model = load_on(backend(), name, &options(DType::F32, prompt.max_model_len));
            let (sequence, logits) = prefill(&mut model, &prompt.token_ids);
            let mut sequences = [sequence];
            let mut row = logits.len() - 1;
            for (i, &expected) in prompt.greedy.iter().enumerate() {
                let token = pick_greedy(&mut model, row);
                assert_eq!(token, expected, "{name}: token {i} after a prompt of {}", prompt.token_ids.len());
                sequences[0].tokens.push(token);
                step(&mut model, &mut sequences, &[(0, 1)]);
                row = 0;
            }
        }
    }
}

fn no_worse_than_pytorch<B: Backend>(backend: fn() -> B, models: &[String], dtype: DType) {
    let mut worse = Vec::new();
    for name in models {
        let golden = read(name);
        let recorded = &golden.record["pytorch_error"][dtype.to_string()];
        let (max, mean) = errors(backend, name, dtype, dtype, &golden);
        let (torch_max, torch_mean) = (recorded["max_abs"].as_f64().unwrap(), recorded["mean_abs"].as_f64().unwrap());
        let line = format!("{name}: max {max:.4} (PyTorch {torch_max:.4}), mean {mean:.5} (PyTorch {torch_mean:.5})");
        println!("{line}");
        if max > torch_max || mean > torch_mean {
            worse.push(line);
        }
    }
    assert!(worse.is_empty(), "{dtype}: worse than PyTorch:\n{}", worse.join("\n"));
}

/// With a cache of 16 bits beside activations of 32, keys and values are rounded and nothing else: that shows, and is no worse than
/// PyTorch with everything in 16 bits.
fn a_cache_of_16_bits_costs_less_than_a_model_of_16_bits<B: Backend>(backend: fn() -> B) {
    for (name, dtype) in [("qwen2", DType::BF16), ("llama", DType::F16), ("qwen3-moe", DType::BF16)] {
        let golden = read(name);
        let recorded = &golden.record["pytorch_error"][dtype.to_string()];
        let (max, mean) = errors(backend, name, DType::F32, dtype, &golden);
        let (_, exact) = errors(backend, name, DType::F32, DType::F32, &golden);
        println!("{name}, cache of {dtype}: max {max:.4}, mean {mean:.5}; in float32 mean {exact:.2e}");
        assert!(max <= recorded["max_abs"].as_f64().unwrap() && mean <= recorded["mean_abs"].as_f64().unwrap());
        assert!(mean > 10.0 * exact, "{name}: the cache is not of {dtype}");
    }
}

/// A cache of a larger type than the activations keeps what these hold, so that nothing gets worse.
fn a_cache_of_32_bits_is_no_worse_than_one_of_16<B: Backend>(backend: fn() -> B) {
    let golden = read("qwen2");
    let (_, small) = errors(backend, "qwen2", DType::BF16, DType::BF16, &golden);
    let (_, large) = errors(backend, "qwen2", DType::BF16, DType::F32, &golden);
    assert!(large < small, "mean error {large} with a cache of float32, {small} with one of bfloat16");
}

/// The tests of a backend.
macro_rules! golden_on {
    ($name:ident, $backend:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn float32_logits_are_within_a_thousandth_of_their_deviation() {
                super::float32_logits_are_within_a_thousandth_of_their_deviation(|| $backend, &models());
            }

            #[test]
            fn greedy_tokens_are_identical() {
                super::greedy_tokens_are_identical(|| $backend, &models());
            }

            #[test]
            fn bfloat16_is_no_worse_than_pytorch() {
                no_worse_than_pytorch(|| $backend, &models(), DType::BF16);
            }

            #[test]
            fn float16_is_no_worse_than_pytorch() {
                no_worse_than_pytorch(|| $backend, &models(), DType::F16);
            }

            #[test]
            fn a_cache_of_16_bits_costs_less_than_a_model_of_16_bits() {
                super::a_cache_of_16_bits_costs_less_than_a_model_of_16_bits(|| $backend);
            }

            #[test]
            fn a_cache_of_32_bits_is_no_worse_than_one_of_16() {
                super::a_cache_of_32_bits_is_no_worse_than_one_of_16(|| $backend);
            }
        }
    };
}

golden_on!(on_the_cpu, CpuBackend::new(Some(2)));
golden_on!(on_software_metal, metal());

/// The tests of a backend with quantised weights, against PyTorch with what the formats' own packages make of them.
macro_rules! quantised_on {
    ($module:ident, $backend:expr) => {
        mod $module {
            use super::*;

            #[test]
            fn float32_logits_are_within_a_thousandth_of_their_deviation() {
                super::float32_logits_are_within_a_thousandth_of_their_deviation(|| $backend, &quantised_models());
            }

            #[test]
            fn greedy_tokens_are_identical() {
                super::greedy_tokens_are_identical(|| $backend, &quantised_models());
            }

            // Other types are other activations, of which the ops' own tests have all.
            #[test]
            fn bfloat16_is_no_worse_than_pytorch() {
                no_worse_than_pytorch(|| $backend, &quantised_models(), DType::BF16);
            }
        }
    };
}

quantised_on!(quantised_on_the_cpu, CpuBackend::new(Some(2)));
quantised_on!(quantised_on_software_metal, metal());

#[test]
fn quantised_weights_in_float16_are_no_worse_than_pytorch_on_the_cpu() {
    no_worse_than_pytorch(|| CpuBackend::new(Some(2)), &quantised_models(), DType::F16);
}
