//! Whole models through gpu/apple: the bits of the software device, and steps that the system ends.

extern crate objc_sim as vllm_apple_metal;

#[path = "../../model/tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{Sequence, load_on, metal, options, step};
use objc_sim::gpu::apple::{AppleGpu, PATIENCE};
use objc_sim::machine::{Fault, Speed, machine};
use objc_sim::runtime;
use vllm_apple_executor::{Batch, Executor};
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_model::ModelExecutor;
use vllm_apple_ops::{Backend, DType, Limits};

fn apple() -> MetalBackend<AppleGpu> {
    machine().speed = Speed::Fast;
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    MetalBackend::new(AppleGpu::open(PATIENCE, &options).unwrap(), options).unwrap()
}

/// A prompt in two chunks, and then two tokens, one after the other.
fn logits<B: Backend>(model: &mut ModelExecutor<B>) -> Vec<Vec<f32>> {
    let blocks = (0..model.info().num_blocks as u32).take(4).collect();
    let vocabulary = model.info().vocab_size as u32;
    let tokens = (0..40u32).map(|i| (i * 7 + 3) % vocabulary).collect();
    let mut sequences = [Sequence { tokens, computed: 0, blocks }];
    [17, 21, 1, 1].iter().flat_map(|&chunk| step(model, &mut sequences, &[(0, chunk)]).remove(0)).collect()
}

#[test]
fn models_compute_what_the_software_device_computes() {
    for (name, dtype) in [("llama", DType::BF16), ("gemma3", DType::F16), ("qwen3-moe", DType::BF16)] {
        let expected = logits(&mut load_on(metal(), name, &options(dtype, 64)));
        assert!(expected.iter().flatten().all(|logit| logit.is_finite()), "{name}");
        assert_eq!(logits(&mut load_on(apple(), name, &options(dtype, 64))), expected, "{name}");
        without_a_kernel(name, dtype, &expected);

        // In the smallest pieces, a command buffer for each.
        let mut backend = apple();
        backend.set_limits(Limits { read_bandwidth: 1.0, peak_flops: 1.0 });
        let mut model = load_on(backend, name, &options(dtype, 64));
        model.warm_up(&mut |_| {}).unwrap();
        // The queue's thread lets go of its last command buffer after it has said that it has run.
        std::thread::sleep(Duration::from_millis(200));
        let live = runtime::live();
        assert_eq!(logits(&mut model), expected, "{name} in pieces");
        // What ran too long is computed once more.
        machine().faults = [Fault::None, Fault::Error(2, "Caused GPU Timeout Error".to_owned())].into();
        assert_eq!(logits(&mut model), expected, "{name} after a timeout");
        assert!(machine().faults.is_empty());
        // And so is what others' faults took along; but once only.
        let victim =
            "Discarded (victim of GPU error/recovery) (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)";
        let victim = || Fault::Error(1, victim.to_owned());
        machine().faults = [Fault::None, victim()].into();
        assert_eq!(logits(&mut model), expected, "{name} after others' fault");
        let want = || Fault::Error(8, "Insufficient Memory".to_owned());
        machine().faults = [Fault::None, want()].into();
        assert_eq!(logits(&mut model), expected, "{name} after want of memory");
        for (fault, words) in [(victim(), "InnocentVictim"), (want(), "there was no memory for the step's commands")] {
            machine().faults = vec![fault; 1000].into();
            let mut batch = Batch::default();
            batch.clear(1);
            batch.push_request(&[1, 2, 3], 0, &[0], model.info().block_size, 3);
            let error = model.forward(&batch).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            machine().faults.clear();
            assert_eq!(logits(&mut model), expected, "{name} in the next step");
        }
        let start = Instant::now();
        while runtime::live() != live {
            assert!(start.elapsed() < Duration::from_secs(10), "{:?} after steps, {live:?} before", runtime::live());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(runtime::violations(), Vec::<String>::new());
}

/// What the compiler finds no registers for is computed in lower tiles, to the bit, which are compiled with the others.
fn without_a_kernel(name: &str, dtype: DType, expected: &[Vec<f32>]) {
    machine().refused = Some("matmul_32");
    let mut model = load_on(apple(), name, &options(dtype, 64));
    model.warm_up(&mut |_| {}).unwrap();
    let compiled = machine().compiled;
    assert_eq!(logits(&mut model), expected, "{name} without a kernel");
    assert_eq!(machine().compiled, compiled, "{name}: nothing is left to compile");
    machine().refused = None;
    let replaced: Vec<_> = model.backend().replaced().collect();
    assert!(replaced.iter().all(|(function, _)| function.starts_with("matmul_32")), "{replaced:?}");
    assert!(replaced[0].1.contains("exceeds available temporary registers"), "{replaced:?}");
}
