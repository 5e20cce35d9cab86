//! No command buffer and no dispatch runs so long that the system ends it: by a clock that knows what each dispatch does, for chips from
//! the smallest to the largest.

use crate::decoder::{BLOCK, DEVSTRAL_24B, LLAMA_8B, Model, Shape, Step};
use vllm_apple_metal::gpu::Work;
use vllm_apple_metal::gpu::fake::FakeGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::{AddRmsNorm, Backend, DType, GatherRows, Limits, QkNorm, RmsNorm, Rope, RopeTable};

/// TFLOPS and GB/s of M1, M2, M1 Pro, M3 Max and M3 Ultra, as Apple and metal-benchmarks give them.
const CHIPS: [(f64, f64); 5] = [(2.6, 68.0), (3.6, 100.0), (5.3, 200.0), (14.0, 400.0), (30.0, 800.0)];
/// Seconds that a command buffer and a dispatch may take. Work is divided by rows and tiles, not to the microsecond.
const LONGEST_BUFFER: f64 = 0.2;
const LONGEST_DISPATCH: f64 = 0.055;

/// Seconds of work on a device whose kernels reach these shares of its limits.
fn seconds(work: &Work, limits: &Limits, [of_flops, of_bandwidth]: [f64; 2]) -> f64 {
    (work.flops / (of_flops * limits.peak_flops)).max(work.bytes / (of_bandwidth * limits.read_bandwidth))
}

/// The command buffers of a step of one request's `tokens`, at the end of `context`.
fn buffers(shape: Shape, limits: Option<Limits>, requests: usize, tokens: usize, context: usize) -> Vec<Vec<Work>> {
    let mut backend = MetalBackend::new(FakeGpu::recording(), MetalOptions::default()).unwrap();
    if let Some(limits) = limits {
        backend.set_limits(limits);
    }
    let mut model = Model::new(&backend, shape, requests * context.div_ceil(BLOCK)).unwrap();
    let mut step = Step::new(&backend, shape, requests, tokens, context).unwrap();
    backend.gpu_mut().keep_work();
    model.encode(&mut backend, &mut step).unwrap();
    backend.synchronize().unwrap();
    assert_eq!(backend.fallbacks(), []);
    backend.gpu_mut().take_work()
}

/// What a step must do: the products with every weight, and attention to every position.
fn expected(shape: Shape, requests: usize, tokens: usize, context: usize) -> Work {
    let (tokens, elements) = (requests * tokens, shape.layers * shape.layer_elements());
    let attention = 4 * tokens * context * shape.heads * shape.head_dim * shape.layers;
    let head = shape.vocab * shape.hidden;
    Work {
        flops: (2 * (tokens * elements + requests * head) + attention) as f64,
        bytes: (2 * (elements + head)) as f64,
    }
}

#[test]
fn no_command_buffer_and_no_dispatch_is_too_long_on_any_chip() {
    for shape in [LLAMA_8B, DEVSTRAL_24B] {
        for (requests, tokens, context) in
            [(1, 2048, 2048), (1, 16384, 16384), (1, 2048, 131_072), (64, 1, 32768), (8, 1, 512)]
        {
            for (tflops, gbps) in CHIPS {
                let limits = Limits { read_bandwidth: gbps * 1e9, peak_flops: tflops * 1e12 };
                let buffers = buffers(shape, Some(limits), requests, tokens, context);
                let case = format!("{}, {requests} x {tokens} tokens of {context}, {tflops} TFLOPS", shape.name);
                // What is claimed is no less than what there is to do, and not much more.
                let all = buffers.iter().flatten().fold(Work::default(), |sum, work| Work {
                    flops: sum.flops + work.flops,
                    bytes: sum.bytes + work.bytes,
                });
                let least = expected(shape, requests, tokens, context);
                // Tiles of attention are 8 columns high, of which a request that decodes may use fewer.
                let most = if tokens > 1 { 1.1 } else { 2.5 } * least.flops;
                assert!((least.flops..most).contains(&all.flops), "{case}: {} FLOP of {}", all.flops, least.flops);
                assert!(all.bytes >= least.bytes, "{case}: {} bytes of {}", all.bytes, least.bytes);
                // The slowest kernels, and a device on which all are as good as the best.
                for shares in [[0.35, 0.45], [0.7, 0.9]] {
                    let time = |work: &Work| seconds(work, &limits, shares);
                    let dispatch = buffers.iter().flatten().map(time).fold(0.0, f64::max);
                    let buffer = buffers.iter().map(|all| all.iter().map(time).sum()).fold(0.0, f64::max);
                    assert!(dispatch <= LONGEST_DISPATCH, "{case}: a dispatch of {dispatch} s");
                    assert!(buffer <= LONGEST_BUFFER, "{case}: a command buffer of {buffer} s");
                    // No confetti: a step has no more buffers than its length asks for.
                    let step: f64 = buffers.iter().flatten().map(time).sum();
                    let enough = 2.0 + step / 0.35 * shares[0] / 0.08;
                    assert!((buffers.len() as f64) < enough, "{case}: {} command buffers for {step} s", buffers.len());
                }
                // The device begins early: with a few milliseconds of work, or the first dispatch.
                let first: f64 = buffers[0].iter().map(|work| seconds(work, &limits, [0.35, 0.45])).sum();
                assert!(buffers.len() > 1 && (first < 0.003 || buffers[0].len() == 1), "{case}: {first} s");
            }
        }
    }
}

/// Of a large vocabulary, whose matrix alone takes 60 ms to read on the slowest chip, and of MLPs that take as long.
#[test]
fn a_weight_of_gigabytes_is_read_in_several_dispatches() {
    let shape = Shape { name: "large", layers: 1, hidden: 8192, intermediate: 65536, vocab: 131_072, ..DEVSTRAL_24B };
    let limits = Limits { read_bandwidth: CHIPS[0].1 * 1e9, peak_flops: CHIPS[0].0 * 1e12 };
    for requests in [1, 8, 9, 48] {
        let buffers = buffers(shape, Some(limits), requests, 1, 64);
        let time = |work: &Work| seconds(work, &limits, [0.35, 0.45]);
        let longest = buffers.iter().flatten().map(time).fold(0.0, f64::max);
        assert!((0.03..=LONGEST_DISPATCH).contains(&longest), "{requests} requests: a dispatch of {longest} s");
        let all: f64 = buffers.iter().flatten().map(|work| work.bytes).sum();
        let least = expected(shape, requests, 1, 64).bytes;
        assert!((least..1.1 * least).contains(&all), "{requests} requests: {all} bytes of {least}");
    }
}

/// A product of one row multiplies matrices of eight: of weights of 2 bits that takes longer than to read them.
#[test]
fn products_of_a_row_say_that_they_multiply_as_much_as_those_of_eight() {
    let shape = Shape { layers: 1, ..LLAMA_8B };
    let flops = |requests| buffers(shape, None, requests, 1, 64).iter().flatten().map(|work| work.flops).sum::<f64>();
    assert!(flops(1) >= 16.0 * (shape.layer_elements() + shape.vocab * shape.hidden) as f64);
    assert!(flops(8) < 1.01 * flops(1) && flops(9) > 1.9 * flops(1));
}

#[test]
fn ops_that_only_move_memory_are_divided_too() {
    // The largest step of a model with rows of 16384, on the slowest chip: two gigabytes for each, 70 ms of it.
    let (rows, hidden, heads, head_dim) = (16384, 16384, 128, 128);
    let (tflops, gbps) = CHIPS[0];
    let limits = Limits { read_bandwidth: gbps * 1e9, peak_flops: tflops * 1e12 };
    let mut backend = MetalBackend::new(FakeGpu::recording(), MetalOptions::default()).unwrap();
    backend.set_limits(limits);
    let new = |backend: &MetalBackend<FakeGpu>, dtype, rows, cols| backend.allocate(dtype, rows, cols).unwrap();
    let floats = |backend: &MetalBackend<FakeGpu>, rows, cols| new(backend, DType::F32, rows, cols);
    let (x, delta) = (floats(&backend, rows, hidden), floats(&backend, rows, hidden));
    let (mut residual, mut out) = (floats(&backend, rows, hidden), floats(&backend, rows, hidden));
    let (weight, head) = (floats(&backend, 1, hidden), floats(&backend, 1, head_dim));
    let indices = new(&backend, DType::U32, 1, rows);
    let table = RopeTable { cos: floats(&backend, rows, head_dim / 2), sin: floats(&backend, rows, head_dim / 2) };
    let eps = 1e-5;
    backend.gpu_mut().keep_work();
    RmsNorm { rows, x: &x, weight: &weight, eps, out: &mut out }.run(&mut backend).unwrap();
    AddRmsNorm { rows, residual: &mut residual, delta: &delta, weight: &weight, eps, out: &mut out }
        .run(&mut backend)
        .unwrap();
    GatherRows { rows, x: &x, indices: &indices, out: &mut out }.run(&mut backend).unwrap();
    let (num_heads, num_kv_heads) = (heads - 2, 1);
    QkNorm { rows, qkv: &mut out, num_heads, num_kv_heads, q_weight: &head, k_weight: &head, eps }
        .run(&mut backend)
        .unwrap();
    Rope { rows, q: &mut out, num_heads: heads, positions: &indices, table: &table }.run(&mut backend).unwrap();
    backend.synchronize().unwrap();
    assert_eq!(backend.fallbacks(), []);
    let buffers = backend.gpu_mut().take_work();
    let time = |work: &Work| seconds(work, &limits, [0.35, 0.45]);
    let longest = buffers.iter().flatten().map(time).fold(0.0, f64::max);
    assert!(longest <= LONGEST_DISPATCH, "a dispatch of {longest} s");
    let all = buffers.iter().flatten().map(|work| work.bytes).sum::<f64>();
    let least = (rows * hidden) as f64 * 4.0 * (2.0 + 4.0 + 2.0 + 2.0 + 2.0);
    assert!((0.99 * least..1.05 * least).contains(&all), "{all} bytes of {least}");
    assert_eq!(buffers.iter().flatten().count(), 11, "two of each, and three of the one that moves twice as much");
}

#[test]
fn a_device_that_is_not_measured_gets_a_step_at_once() {
    let buffers = buffers(LLAMA_8B, None, 1, 2048, 2048);
    assert_eq!(buffers.len(), 1);
}
