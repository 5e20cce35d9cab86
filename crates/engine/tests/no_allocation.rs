//! A step allocates nothing: real models under an allocator that counts. A program without the test harness, because the count
//! is of the whole process: the backend's threads belong to it, the harness's own would disturb it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use vllm_apple_cpu::CpuBackend;
use vllm_apple_engine::{Engine, EngineConfig, EngineRequest, RequestOutput, Speculation};
use vllm_apple_executor::{Batch, Executor, ExecutorInfo, Pooling, RowTask, SamplingParams, SamplingRow};
use vllm_apple_metal::gpu::fake::FakeGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_model::{Checkpoint, LoadOptions, LoadedModel, ModelExecutor, Quantization};
use vllm_apple_ops::pool::Pool;
use vllm_apple_ops::{Activations, Backend, DType};

/// The system's allocator, counting what is asked of it.
struct Counting;

static ASKED: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is the system allocator's, with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often memory is asked for while `f` runs.
fn allocations(f: impl FnOnce()) -> u64 {
    let before = ASKED.load(Ordering::Relaxed);
    f();
    ASKED.load(Ordering::Relaxed) - before
}

/// The backends whose host code is tested.
trait TestBackend: Backend {
    /// A backend of so many threads, all of which have begun.
    fn open(threads: usize) -> Self;
}

/// A thread that starts late allocates while others already compute: waits until all are inside one loop.
fn wait_for_threads(pool: &Pool) {
    let all = Barrier::new(pool.threads());
    pool.run(pool.threads(), &|_, _| {
        all.wait();
    });
}

impl TestBackend for CpuBackend {
    fn open(threads: usize) -> Self {
        let backend = CpuBackend::new(Some(threads));
        wait_for_threads(backend.pool());
        backend
    }
}

/// Encodes every op, and runs none.
impl TestBackend for MetalBackend<FakeGpu> {
    fn open(_threads: usize) -> Self {
        let options = MetalOptions { strict: true, ..MetalOptions::default() };
        let mut backend = MetalBackend::new(FakeGpu::recording(), options).expect("it needs nothing");
        backend.take_as_right();
        wait_for_threads(backend.pool());
        backend
    }
}

fn load<B: TestBackend>(name: &str, dtype: DType, threads: usize, options: &LoadOptions) -> ModelExecutor<B> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models").join(name);
    let options = LoadOptions { dtype: Some(dtype), ..options.clone() };
    let checkpoint = Checkpoint::open(&path).expect("the golden checkpoints are complete");
    let checkpoint = if name == EMBEDDER { checkpoint.without_head() } else { checkpoint };
    let backend = B::open(threads);
    let loaded = LoadedModel::load(backend, &checkpoint, &options).expect("the golden checkpoints are small");
    let num_blocks = loaded.num_blocks().expect("there is memory for a small cache");
    let mut model = loaded.allocate(num_blocks).expect("there is memory for a small cache");
    model.warm_up(&mut |_| {}).expect("all ops can be recorded");
    model
}

/// Dense, with a window, with a shared expert, with norms behind each part, and one whose sequences are long enough for attention to be
/// split.
const MODELS: [&str; 6] = ["llama", "mistral", "qwen2-moe", "gemma3", "gpt-oss", "llama-linear"];

/// One that makes the mean of all tokens.
const EMBEDDER: &str = "../embedders/models/llama-mean";

fn main() {
    for dtype in DType::FLOATS {
        chunks_of_a_mean::<CpuBackend>(dtype, 2);
        chunks_of_a_mean::<MetalBackend<FakeGpu>>(dtype, 1);
    }
    println!("{EMBEDDER}: no step has allocated");
    for name in MODELS {
        for (dtype, threads) in [(DType::BF16, 2), (DType::F32, 1), (DType::F16, 3)] {
            steps_of_any_size::<CpuBackend>(name, dtype, threads, None, Activations::Exact);
            for activations in [Activations::Exact, Activations::Int8] {
                steps_of_any_size::<CpuBackend>(name, dtype, threads, Some(Quantization::Int4), activations);
            }
            decodes_and_chunks::<CpuBackend>(name, dtype, threads);
            preemption::<CpuBackend>(name, dtype, threads);
            drafts::<CpuBackend>(name, dtype, threads);
        }
        for dtype in DType::FLOATS {
            steps_of_any_size::<MetalBackend<FakeGpu>>(name, dtype, 1, None, Activations::Exact);
            decodes_and_chunks::<MetalBackend<FakeGpu>>(name, dtype, 1);
            preemption::<MetalBackend<FakeGpu>>(name, dtype, 1);
            drafts::<MetalBackend<FakeGpu>>(name, dtype, 1);
        }
        println!("{name}: no step has allocated");
    }
    // Weights of several formats, whose groups and biases differ.
    // Floats of 8 bits are multiplied by exact activations only.
    let of_both = ["gguf-llama3/model.gguf", "gguf-grids/model.gguf", "mlx-affine", "gptq-v2", "mxfp4"];
    let of_both = of_both.map(|name| (name, &[Activations::Exact, Activations::Int8][..]));
    for (name, activations) in of_both.into_iter().chain([("modelopt-mixed", &[Activations::Exact][..])]) {
        let name = format!("../quantised/models/{name}");
        for &activations in activations {
            for (dtype, threads) in [(DType::BF16, 2), (DType::F32, 1)] {
                steps_of_any_size::<CpuBackend>(&name, dtype, threads, None, activations);
            }
        }
        println!("{name}: no step has allocated");
    }
}

/// Each step is the first of its size after loading, and none makes scratch grow.
fn steps_of_any_size<B: TestBackend>(
    name: &str,
    dtype: DType,
    threads: usize,
    quantization: Option<Quantization>,
    activation_dtype: Activations,
) {
    let max_model_len = if name == "llama-linear" { 1000 } else { 256 };
    let options = LoadOptions {
        max_model_len: Some(max_model_len),
        max_num_seqs: 8,
        max_num_batched_tokens: Some(96),
        quantization: quantization.map(Into::into),
        activation_dtype,
        ..LoadOptions::default()
    };
    let mut model = load::<B>(name, dtype, threads, &options);
    let info = model.info().clone();
    let params = params();
    // Requests of so many computed and new tokens, and rows of logits of each.
    let steps: [(&[(usize, usize)], usize); 7] = [
        (&[(0, 1)], 1),
        (&[(5, 1), (100, 1), (17, 1)], 1),
        (&[(max_model_len - 1, 1)], 1),
        (&[(max_model_len - 1, 1); 8], 1),
        (&[(0, 12), (7, 12), (40, 12), (80, 12), (100, 12), (9, 12), (16, 12), (244, 12)], 1),
        (&[(max_model_len - 96, 96)], 0),
        (&[(0, 96)], info.max_logit_rows.min(96)),
    ];
    let (mut batch, mut picked) = (Batch::with_room_for(&info), Vec::with_capacity(info.max_logit_rows));
    for (requests, num_logits) in steps {
        fill(&mut batch, &info, requests, num_logits);
        let rows: Vec<SamplingRow<'_>> =
            (0..batch.logit_rows.len()).map(|i| row(i, &params[i % params.len()])).collect();
        let count = allocations(|| {
            model.forward(&batch).expect("the batch is within the limits");
            model.sample(&rows, &mut picked).expect("the rows are there");
        });
        assert_eq!(
            count, 0,
            "{name} {dtype}, {quantization:?}, activations {activation_dtype}, {threads} threads: a step of {requests:?} has allocated"
        );
        assert_eq!(picked.len(), rows.len());
    }
}

/// Lays out requests of so many computed and new tokens, each in blocks of its own.
fn fill(batch: &mut Batch, info: &ExecutorInfo, requests: &[(usize, usize)], num_logits: usize) {
    let longest = requests.iter().map(|(computed, new)| computed + new).max().unwrap_or(0);
    let mut free = 0..info.num_blocks as u32;
    batch.clear(longest.div_ceil(info.block_size));
    for &(computed, new) in requests {
        let tokens: Vec<u32> = (0..new as u32).map(|t| t * 31 % info.vocab_size as u32).collect();
        let blocks: Vec<u32> = free.by_ref().take((computed + new).div_ceil(info.block_size)).collect();
        batch.push_request(&tokens, computed, &blocks, info.block_size, num_logits);
    }
}

fn row(logit_row: usize, params: &SamplingParams) -> SamplingRow<'_> {
    let task = RowTask::Sample {
        params,
        seed: 7,
        prompt_token_ids: &[1, 2, 3],
        output_token_ids: &[4, 5],
        eos_token_ids: &[6],
        // More rows of a large step than a turn of the sampler takes.
        allowed_tokens: logit_row.is_multiple_of(3).then_some(&[u32::MAX; 64]),
    };
    SamplingRow { logit_row, task, num_logprobs: None }
}

/// Every way of picking a token.
fn params() -> Vec<SamplingParams> {
    let greedy = SamplingParams { temperature: 0.0, max_tokens: Some(90), ..SamplingParams::default() };
    let random = SamplingParams { temperature: 0.9, ..greedy.clone() };
    vec![
        greedy.clone(),
        random.clone(),
        SamplingParams { top_p: 0.9, ..random.clone() },
        SamplingParams { top_p: 0.999, temperature: 50.0, ..random.clone() },
        SamplingParams { top_k: 40, top_p: 0.8, ..random.clone() },
        SamplingParams { min_p: 0.05, ..random },
        SamplingParams { repetition_penalty: 1.2, frequency_penalty: 0.5, presence_penalty: 0.5, ..greedy.clone() },
        SamplingParams { min_tokens: 30, stop_token_ids: [3].into(), logit_bias: [(9, 4.0)].into(), ..greedy },
    ]
}

struct Steps<B: Backend> {
    engine: Engine<ModelExecutor<B>>,
    outputs: Vec<RequestOutput>,
    what: String,
}

impl<B: Backend> Steps<B> {
    fn new(model: ModelExecutor<B>, what: String) -> Self {
        Self::with(model, EngineConfig::default(), what)
    }

    fn with(model: ModelExecutor<B>, config: EngineConfig, what: String) -> Self {
        let engine = Engine::new(model, config).expect("the limits are consistent");
        Self { outputs: Vec::with_capacity(engine.max_outputs()), engine, what }
    }

    fn submit(&mut self, prompt_len: u32, first: u32, params: SamplingParams) {
        let prompt = (first..first + prompt_len).map(|t| t % 400).collect::<Vec<u32>>();
        self.engine.submit(EngineRequest::new(prompt, params)).expect("the request fits");
    }

    fn step(&mut self) {
        self.engine.step(&mut self.outputs).expect("the executor does not fail");
    }

    /// A step that must not allocate.
    fn counted_step(&mut self) {
        let count = allocations(|| self.engine.step(&mut self.outputs).expect("the executor does not fail"));
        let stats = self.engine.stats();
        assert_eq!(count, 0, "{}: step {} has allocated", self.what, stats.num_steps);
        assert!(self.outputs.iter().all(|output| output.finish.is_none()), "a request has ended");
    }
}

/// Requests that decode, alone and beside the chunks of a long prompt. Blocks fill on the way, and are hashed.
fn decodes_and_chunks<B: TestBackend>(name: &str, dtype: DType, threads: usize) {
    let options = LoadOptions {
        max_model_len: Some(256),
        max_num_seqs: 8,
        max_num_batched_tokens: Some(24),
        ..LoadOptions::default()
    };
    let what = format!("{name} {dtype}, {threads} threads");
    let mut steps = Steps::new(load::<B>(name, dtype, threads, &options), what);
    for (i, params) in params().into_iter().enumerate().skip(1) {
        steps.submit(3 + 7 * i as u32, 50 * i as u32, params);
    }
    while steps.outputs.len() < 7 {
        steps.step();
    }
    for _ in 0..20 {
        steps.counted_step();
        assert_eq!(steps.outputs.len(), 7);
    }
    steps.submit(150, 7, params().remove(0));
    steps.step();
    assert_eq!(steps.engine.newly_scheduled().len(), 1);
    while steps.outputs.len() < 8 {
        steps.counted_step();
    }
    for _ in 0..20 {
        steps.counted_step();
    }
}

/// Requests with drafts, most of them wrong.
fn drafts<B: TestBackend>(name: &str, dtype: DType, threads: usize) {
    let options = LoadOptions { max_model_len: Some(256), max_num_seqs: 8, ..LoadOptions::default() };
    let speculation = Speculation { num_speculative_tokens: 4, prompt_lookup_min: 1, prompt_lookup_max: 3 };
    let config = EngineConfig { speculation: Some(speculation), ..EngineConfig::default() };
    let what = format!("{name} {dtype}, {threads} threads, drafts");
    let mut steps = Steps::with(load::<B>(name, dtype, threads, &options), config, what);
    for params in params().into_iter().skip(4) {
        let prompt: Vec<u32> = (0..120).collect();
        steps.engine.submit(EngineRequest::new([&prompt[..], &prompt[..60]].concat(), params)).expect("it fits");
    }
    while steps.outputs.len() < 4 {
        steps.step();
    }
    for _ in 0..12 {
        steps.counted_step();
    }
    assert!(steps.engine.stats().num_draft_tokens > 4, "{}: there are none", steps.what);
}

/// A prompt whose hidden states are all taken in, chunk by chunk.
fn chunks_of_a_mean<B: TestBackend>(dtype: DType, threads: usize) {
    let options = LoadOptions {
        max_model_len: Some(256),
        max_num_seqs: 8,
        max_num_batched_tokens: Some(24),
        ..LoadOptions::default()
    };
    let mut steps = Steps::new(load::<B>(EMBEDDER, dtype, threads, &options), format!("a mean, {dtype}"));
    let prompt: Vec<u32> = (0..24 * 8).collect();
    steps.engine.submit(EngineRequest::pooled(prompt, Pooling::Mean)).expect("the request fits");
    steps.step();
    for _ in 0..6 {
        steps.counted_step();
    }
    steps.step();
    assert_eq!(steps.outputs[0].pooled.as_ref().map(Vec::len), Some(64));
}

/// Requests that lose their blocks to each other and take them again.
fn preemption<B: TestBackend>(name: &str, dtype: DType, threads: usize) {
    let options = LoadOptions {
        max_model_len: Some(128),
        max_num_seqs: 8,
        max_num_batched_tokens: Some(24),
        block_size: 16,
        ..LoadOptions::default()
    };
    let what = format!("{name} {dtype}, {threads} threads, few blocks");
    let bytes_per_block = {
        let plan = load::<B>(name, dtype, threads, &options).memory_plan().clone();
        plan.kv_cache / plan.info.num_blocks as u64
    };
    let options = LoadOptions { kv_cache_memory: Some(12 * bytes_per_block), ..options };
    let mut steps = Steps::new(load::<B>(name, dtype, threads, &options), what);
    for i in 0..4 {
        steps.submit(20, 20 * i, params().remove(0));
    }
    while steps.outputs.len() < 4 {
        steps.step();
    }
    for _ in 0..50 {
        steps.counted_step();
    }
    assert!(steps.engine.stats().num_preemptions > 0);
}
