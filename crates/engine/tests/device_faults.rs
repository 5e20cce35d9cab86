//! What a failing device does to requests: a real model on the Metal backend, over a software device that fails when told to.

use std::path::Path;

use vllm_apple_engine::{Engine, EngineConfig, EngineRequest, FinishReason, SubmitError};
use vllm_apple_executor::SamplingParams;
use vllm_apple_metal::gpu::GpuError;
use vllm_apple_metal::gpu::faulty::{Faults, FaultyGpu, Request};
use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_model::{Checkpoint, LoadError, LoadOptions, LoadedModel, ModelExecutor};
use vllm_apple_ops::{Backend, DType, Error};

type Model = ModelExecutor<MetalBackend<FaultyGpu<SoftwareGpu>>>;

/// A prompt of one step, one of several steps and two blocks, and a short one.
fn prompts() -> Vec<Vec<u32>> {
    [(20, 1), (40, 2), (3, 7)].iter().map(|&(len, by)| (0..len).map(|i| (5 + i * by) % 400).collect()).collect()
}

const MAX_TOKENS: u32 = 6;

fn load(faults: &Faults, options: MetalOptions) -> Result<Model, LoadError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/qwen2-moe");
    let checkpoint = Checkpoint::open(&path)?;
    let gpu = FaultyGpu::new(SoftwareGpu::fast().expect("clang is installed"), faults.clone());
    let load = LoadOptions {
        dtype: Some(DType::F32),
        max_model_len: Some(128),
        max_num_seqs: 4,
        max_num_batched_tokens: Some(24),
        ..LoadOptions::default()
    };
    let loaded = LoadedModel::load(MetalBackend::new(gpu, options)?, &checkpoint, &load)?;
    let num_blocks = loaded.num_blocks()?;
    loaded.allocate(num_blocks)
}

struct World {
    engine: Engine<Model>,
    /// Tokens and end of each request, in the order of submission.
    got: Vec<(Vec<u32>, Option<FinishReason>)>,
}

impl World {
    fn new(faults: &Faults, options: MetalOptions) -> Self {
        let model = load(faults, options).expect("no fault comes while it loads");
        Self { engine: Engine::new(model, EngineConfig::default()).expect("the limits fit"), got: Vec::new() }
    }

    fn submit_all(&mut self) {
        for prompt in prompts() {
            let params = SamplingParams { temperature: 0.0, max_tokens: Some(MAX_TOKENS), ..SamplingParams::default() };
            let id = self.engine.submit(EngineRequest::new(prompt, params)).expect("the request fits");
            assert_eq!(id.0 as usize, self.got.len(), "requests are numbered");
            self.got.push((Vec::new(), None));
        }
    }

    fn step(&mut self) {
        let mut outputs = Vec::new();
        self.engine.step(&mut outputs).expect("the device is not lost");
        assert_eq!(self.engine.check_integrity(), Ok(()));
        for output in outputs {
            let (tokens, finish) = &mut self.got[output.id.0 as usize];
            assert_eq!(*finish, None, "an output after the last one");
            tokens.extend(output.sample.map(|sample| sample.token_id));
            *finish = output.finish;
        }
    }

    /// Runs until nothing is left; the tokens of the last requests that were submitted together, all of which end well.
    fn run(&mut self) -> Vec<Vec<u32>> {
        while self.engine.has_unfinished_requests() {
            self.step();
        }
        assert_eq!(self.engine.stats().num_used_blocks, 0, "all blocks are free again");
        let last = self.got.len() - prompts().len();
        let done = |(tokens, finish): &(Vec<u32>, Option<FinishReason>)| {
            assert_eq!(*finish, Some(FinishReason::Length));
            tokens.clone()
        };
        self.got[last..].iter().map(done).collect()
    }
}

/// What a device without faults says.
fn right_tokens() -> Vec<Vec<u32>> {
    let mut world = World::new(&Faults::default(), MetalOptions::default());
    world.submit_all();
    let tokens = world.run();
    assert!(tokens.iter().all(|tokens| tokens.len() == MAX_TOKENS as usize));
    assert_eq!(world.engine.executor().backend().fallbacks(), []);
    tokens
}

fn failed() -> GpuError {
    GpuError::Commands("MTLCommandBufferErrorDomain 8".to_owned())
}

#[test]
fn a_failed_step_ends_its_requests_and_the_next_is_right() {
    let expected = right_tokens();
    let faults = Faults::default();
    let mut world = World::new(&faults, MetalOptions::default());
    // In the first step, between, and while all decode.
    for after in [0, 2, 5] {
        let first = world.got.len();
        world.submit_all();
        faults.fail(Request::Submit, after, failed());
        while faults.left() > 0 {
            world.step();
        }
        let ended: Vec<_> = world.got[first..].iter().filter(|(_, finish)| finish.is_some()).collect();
        assert!(!ended.is_empty());
        for (tokens, finish) in ended {
            let Some(FinishReason::Error(reason)) = finish else { panic!("{finish:?}") };
            assert!(reason.contains("MTLCommandBufferErrorDomain 8"), "{reason}");
            assert!(tokens.len() < MAX_TOKENS as usize);
        }
        // Those that were not in that step go on, and are right.
        while world.engine.has_unfinished_requests() {
            world.step();
        }
        for ((tokens, finish), expected) in world.got[first..].iter().zip(&expected) {
            assert!(expected.starts_with(tokens), "{tokens:?} is not how {expected:?} begins");
            assert!(matches!(finish, Some(FinishReason::Error(_))) || tokens == expected);
        }
        world.submit_all();
        assert_eq!(world.run(), expected);
    }
    assert_eq!(world.engine.stats().num_failed_steps, 3);
}

#[test]
fn a_step_that_the_system_ended_is_computed_again_once() {
    ended_steps(&GpuError::TooLong("Impacting Interactivity".to_owned()));
    ended_steps(&GpuError::Discarded("victim, by Interactivity".to_owned()));
}

fn ended_steps(error: &GpuError) {
    let expected = right_tokens();
    let too_long = || error.clone();
    let faults = Faults::default();
    let mut world = World::new(&faults, MetalOptions::default());
    for after in [0, 2, 5] {
        world.submit_all();
        faults.fail(Request::Submit, after, too_long());
        assert_eq!(world.run(), expected, "nobody notices");
        assert_eq!(faults.left(), 0);
    }
    assert_eq!(world.engine.stats().num_failed_steps, 0);
    // Twice is the end of the step, not of others.
    let first = world.got.len();
    world.submit_all();
    faults.fail(Request::Submit, 0, too_long());
    faults.fail(Request::Submit, 0, too_long());
    world.step();
    assert_eq!((faults.left(), world.engine.stats().num_failed_steps), (0, 1));
    let ended: Vec<_> = world.got[first..].iter().filter_map(|(_, finish)| finish.clone()).collect();
    assert!(!ended.is_empty());
    for finish in ended {
        assert!(matches!(&finish, FinishReason::Error(reason) if reason.contains("Interactivity")), "{finish:?}");
    }
    while world.engine.has_unfinished_requests() {
        world.step();
    }
    world.submit_all();
    assert_eq!(world.run(), expected);
}

#[test]
fn a_lost_device_stops_the_engine() {
    for after in [0, 3] {
        let faults = Faults::default();
        let mut world = World::new(&faults, MetalOptions::default());
        world.submit_all();
        faults.fail(Request::Submit, after, GpuError::Lost("no answer for 60 s".to_owned()));
        for _ in 0..after {
            world.step();
        }
        let error = world.engine.step(&mut Vec::new()).expect_err("the device is lost").to_string();
        assert!(error.contains("must be restarted") && error.contains("no answer for 60 s"), "{error}");
        assert_eq!(world.engine.check_integrity(), Ok(()));
        assert_eq!(world.engine.stats().num_used_blocks, 0);
        let refused = world.engine.submit(EngineRequest::new(vec![1], SamplingParams::default()));
        assert!(matches!(refused, Err(SubmitError::EngineDead(_))), "{refused:?}");
        assert!(world.engine.step(&mut Vec::new()).is_err(), "it stays lost");
    }
}

#[test]
fn memory_that_runs_out_while_loading_is_an_error_and_steps_need_none() {
    let refused = || GpuError::OutOfMemory { bytes: 77, purpose: "a test".to_owned() };
    for after in [0, 1, 5, 20] {
        let faults = Faults::default();
        faults.fail(Request::Allocate, after, refused());
        let error = load(&faults, MetalOptions::default()).err().expect("there is not enough memory");
        assert!(matches!(&error, LoadError::Backend(Error::OutOfMemory { bytes: 77, .. })), "{error}");
    }
    let faults = Faults::default();
    let mut world = World::new(&faults, MetalOptions::default());
    faults.fail(Request::Allocate, 0, refused());
    world.submit_all();
    world.run();
    assert_eq!(faults.left(), 1, "a step has asked the device for memory");
}

/// With such a fault at one of the submits, from the first to the last, before the first request.
fn prepared(error: &GpuError, check: impl Fn(Result<(), LoadError>)) {
    for after in (0..).map(|n| 4usize.pow(n) - 1) {
        let faults = Faults::default();
        let mut model = load(&faults, MetalOptions::default()).expect("no fault comes while it loads");
        faults.fail(Request::Submit, after, error.clone());
        let result = model.warm_up(&mut |_| {});
        if faults.left() > 0 {
            assert!(after > 10, "tests and steps are {after}");
            return result.expect("there was no fault");
        }
        check(result);
    }
}

#[test]
fn a_device_that_fails_before_the_first_request_is_refused() {
    for error in [failed(), GpuError::Lost("no answer for 60 s".to_owned())] {
        prepared(&error, |result| {
            let error = result.expect_err("the device failed");
            assert!(error.is_refusal(), "{error}");
        });
    }
    let no_memory = GpuError::OutOfMemory { bytes: 77, purpose: "a test".to_owned() };
    prepared(&no_memory, |result| {
        let error = result.expect_err("there is not enough memory");
        assert!(!error.is_refusal(), "{error}");
    });
}

#[test]
fn what_the_system_ended_before_the_first_request_is_done_again() {
    for error in [GpuError::TooLong("a test".to_owned()), GpuError::Discarded("a test".to_owned())] {
        prepared(&error, |result| result.expect("nothing is wrong"));
    }
}

#[test]
fn a_kernel_that_does_not_compile_is_computed_on_the_host_or_ends_its_requests() {
    let expected = right_tokens();
    let (mut ops, mut failed) = (std::collections::BTreeSet::new(), 0);
    for after in 0.. {
        let faults = Faults::default();
        let mut world = World::new(&faults, MetalOptions::default());
        let (file, function) = ("x.metal".to_owned(), "x".to_owned());
        faults.fail(Request::Compile, after, GpuError::Compile { file, function, reason: "no registers".to_owned() });
        world.submit_all();
        while world.engine.has_unfinished_requests() {
            world.step();
        }
        let failure = |(_, finish): &(Vec<u32>, Option<FinishReason>)| match finish {
            Some(FinishReason::Error(reason)) => Some(reason.clone()),
            _ => None,
        };
        // Of those whose step it was.
        if let Some(reason) = world.got.iter().find_map(failure) {
            // What would take minutes for a token there.
            assert!(reason.contains("use `device` cpu") && reason.contains("no registers"), "{reason}");
            failed += 1;
            continue;
        }
        assert_eq!(world.run(), expected, "without kernel {after}");
        let fallbacks = world.engine.executor().backend().fallbacks();
        if faults.left() > 0 {
            assert_eq!(fallbacks, [], "every kernel has failed once");
            break;
        }
        if let Some((_, words)) = world.engine.executor().backend().replaced().next() {
            // Another kernel of the device has the same bits.
            assert!(words.contains("no registers") && fallbacks.is_empty(), "{words}");
            continue;
        }
        let [(kind, reason)] = &fallbacks[..] else { panic!("{fallbacks:?}") };
        assert!(reason.contains("no registers"), "{reason}");
        ops.insert(kind.op);
    }
    assert!(ops.len() >= 9 && failed >= 3, "{ops:?}, {failed}");
}

#[test]
fn with_strict_a_kernel_that_does_not_compile_is_an_error() {
    let faults = Faults::default();
    let mut world = World::new(&faults, MetalOptions { strict: true, ..MetalOptions::default() });
    let (file, function) = ("x.metal".to_owned(), "x".to_owned());
    faults.fail(Request::Compile, 0, GpuError::Compile { file, function, reason: "no registers".to_owned() });
    world.submit_all();
    world.step();
    let Some(FinishReason::Error(reason)) = &world.got[0].1 else { panic!("{:?}", world.got[0]) };
    assert!(reason.contains("`metal_strict`=1") && reason.contains("no registers"), "{reason}");
}

#[test]
fn parts_on_the_host_give_the_same_tokens() {
    let expected = right_tokens();
    let without_attention = MetalOptions { attention: false, strict: true, ..MetalOptions::default() };
    let without_prefill = MetalOptions { prefill: false, strict: true, ..MetalOptions::default() };
    for (options, choice) in [(without_attention, "`metal_attention`=0"), (without_prefill, "`metal_prefill`=0")] {
        let mut world = World::new(&Faults::default(), options);
        world.submit_all();
        assert_eq!(world.run(), expected, "{choice}");
        let choices = world.engine.executor().backend().choices();
        assert!(choices.iter().any(|(_, reason)| reason.contains(choice)), "{choices:?}");
    }
}

#[test]
fn a_prefill_on_the_host_needs_no_device() {
    let faults = Faults::default();
    let mut world = World::new(&faults, MetalOptions { prefill: false, ..MetalOptions::default() });
    faults.fail(Request::Submit, 0, failed());
    world.submit_all();
    world.step();
    assert_eq!((faults.left(), world.engine.stats().num_failed_steps), (1, 0), "prompts are computed on the host");
    while world.engine.has_unfinished_requests() {
        world.step();
    }
    assert_eq!((faults.left(), world.engine.stats().num_failed_steps), (0, 1), "decodes are not");
}
