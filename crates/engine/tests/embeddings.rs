//! Vectors of whole models against PyTorch, and their bits however they are computed: alone or among others, whole or in chunks, with a cached
//! prefix or without.

use std::path::PathBuf;

use serde_json::Value;
use vllm_apple_engine::{Engine, EngineConfig, EngineRequest, FinishReason};
use vllm_apple_executor::{Executor, Pooling};
use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_model::{Checkpoint, LoadOptions, LoadedModel};
use vllm_apple_ops::{Backend, DType};

const EMBEDDERS: [(&str, Pooling, bool); 2] =
    [("qwen3-last", Pooling::Last, true), ("llama-mean", Pooling::Mean, false)];

fn golden(kind: &str, name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/embedders").join(kind).join(name)
}

struct Golden {
    record: Value,
    prompts: Vec<Vec<u32>>,
    vectors: Vec<Vec<f32>>,
}

fn read(name: &str) -> Golden {
    let text = std::fs::read(golden("vectors", &format!("{name}.json"))).unwrap();
    let record: Value = serde_json::from_slice(&text).unwrap();
    let prompts = record["prompts"].as_array().unwrap();
    let ids = |p: &Value| p["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let vector = |p: &Value| p["vector"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
    Golden { prompts: prompts.iter().map(ids).collect(), vectors: prompts.iter().map(vector).collect(), record }
}

/// How prompts are run.
#[derive(Clone, Copy)]
struct Run {
    dtype: DType,
    max_num_seqs: usize,
    max_num_batched_tokens: usize,
    enable_prefix_caching: bool,
}

impl Run {
    fn whole(dtype: DType) -> Self {
        Self { dtype, max_num_seqs: 1, max_num_batched_tokens: 256, enable_prefix_caching: false }
    }

    fn engine<B: Backend>(self, backend: B, name: &str) -> Engine<impl Executor> {
        let checkpoint = Checkpoint::open(&golden("models", name)).unwrap().without_head();
        let options = LoadOptions {
            dtype: Some(self.dtype),
            max_model_len: Some(256),
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: Some(self.max_num_batched_tokens),
            ..LoadOptions::default()
        };
        let model = LoadedModel::load(backend, &checkpoint, &options).unwrap().allocate(48).unwrap();
        let config = EngineConfig { enable_prefix_caching: self.enable_prefix_caching, ..EngineConfig::default() };
        Engine::new(model, config).unwrap()
    }
}

/// The vectors of prompts that are submitted together, and tokens that were found in the prefix cache.
fn vectors(engine: &mut Engine<impl Executor>, prompts: &[Vec<u32>], pooling: Pooling) -> (Vec<Vec<f32>>, usize) {
    let request = |prompt: &Vec<u32>| EngineRequest::pooled(prompt.clone(), pooling);
    let ids: Vec<_> = prompts.iter().map(|prompt| engine.submit(request(prompt)).unwrap()).collect();
    let (mut got, mut cached, mut outputs) = (vec![Vec::new(); ids.len()], 0, Vec::new());
    while engine.has_unfinished_requests() {
        engine.step(&mut outputs).unwrap();
        engine.check_integrity().unwrap();
        for output in outputs.drain(..) {
            assert_eq!(output.finish, Some(FinishReason::Pooled));
            let at = ids.iter().position(|id| *id == output.id).unwrap();
            got[at] = output.pooled.expect("a vector comes with the end");
            cached += output.num_cached_tokens;
        }
    }
    (got, cached)
}

/// Largest and mean difference from PyTorch's float32.
fn errors<B: Backend>(backend: B, name: &str, pooling: Pooling, dtype: DType, golden: &Golden) -> (f64, f64) {
    let (got, _) = vectors(&mut Run::whole(dtype).engine(backend, name), &golden.prompts, pooling);
    let differences: Vec<f64> = got
        .iter()
        .zip(&golden.vectors)
        .flat_map(|(got, expected)| got.iter().zip(expected).map(|(a, b)| f64::from((a - b).abs())))
        .collect();
    assert_eq!(differences.len(), golden.prompts.len() * 64);
    // The larger one of NaN and a number is the number.
    assert!(differences.iter().all(|difference| difference.is_finite()), "{name}, {dtype}: {got:?}");
    (differences.iter().copied().fold(0.0, f64::max), differences.iter().sum::<f64>() / differences.len() as f64)
}

fn as_near_as_promised<B: Backend>(backend: fn(usize) -> B) {
    for (name, pooling, _) in EMBEDDERS {
        let golden = read(name);
        let std = golden.record["std"].as_f64().unwrap();
        let (max, _) = errors(backend(2), name, pooling, DType::F32, &golden);
        println!("{name}: largest difference {:.1e} of the deviation", max / std);
        assert!(max < 1e-3 * std, "{name}: {max}");
        for dtype in [DType::BF16, DType::F16] {
            let (max, mean) = errors(backend(2), name, pooling, dtype, &golden);
            let recorded = &golden.record["pytorch_error"][dtype.name()];
            let torch = |what: &str| recorded[what].as_f64().unwrap();
            println!("{name}, {dtype}: max {max:.4} ({:.4}), mean {mean:.5}", torch("max_abs"));
            assert!(max <= torch("max_abs") && mean <= torch("mean_abs"), "{name}, {dtype}: {max}, {mean}");
        }
    }
}

fn bits_are_the_same_however_it_is_run<B: Backend>(backend: fn(usize) -> B, runs: &[(usize, usize)]) {
    for (name, pooling, finds_prefixes) in EMBEDDERS {
        let mut prompts = read(name).prompts;
        let long = prompts.last().unwrap().clone();
        // Prompts that begin alike, the last of them with a full block more than is cached.
        prompts.extend([long[..100].to_vec(), [&long[..64], &[3; 40]].concat(), long[..96].to_vec()]);
        for pooling in [pooling, Pooling::First] {
            let mut alone = Run::whole(DType::BF16).engine(backend(1), name);
            let expected: Vec<Vec<f32>> = prompts
                .iter()
                .map(|prompt| vectors(&mut alone, std::slice::from_ref(prompt), pooling).0.remove(0))
                .collect();
            for &(max_num_seqs, max_num_batched_tokens) in runs {
                let run = Run { dtype: DType::BF16, max_num_seqs, max_num_batched_tokens, enable_prefix_caching: true };
                let mut engine = run.engine(backend(3), name);
                for is_known in [false, true] {
                    let (got, cached) = vectors(&mut engine, &prompts, pooling);
                    assert_eq!(got, expected, "{name}, {max_num_seqs}, {max_num_batched_tokens}");
                    let may_hit = finds_prefixes && pooling == Pooling::Last;
                    assert!(may_hit && (cached > 0 || !is_known) || cached == 0, "{name}: {cached}");
                }
            }
        }
    }
}

/// The tests of a backend with so many threads, and of steps of so many requests and tokens.
macro_rules! embeddings_on {
    ($name:ident, $backend:expr, $runs:expr) => {
        mod $name {
            #[test]
            fn as_near_as_promised() {
                super::as_near_as_promised($backend);
            }

            #[test]
            fn bits_are_the_same_however_it_is_run() {
                super::bits_are_the_same_however_it_is_run($backend, &$runs);
            }
        }
    };
}

embeddings_on!(on_the_cpu, |threads| vllm_apple_cpu::CpuBackend::new(Some(threads)), [(3, 7), (8, 64), (16, 256)]);
// Kernels take their time here.
embeddings_on!(on_software_metal, |_| super::metal(), [(8, 50)]);

fn metal() -> MetalBackend<SoftwareGpu> {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    MetalBackend::new(SoftwareGpu::fast().expect("clang is installed"), options).unwrap()
}
