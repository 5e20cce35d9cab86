//! What it costs the host to encode a decode step of a 40-layer model of Devstral's shape: time, commands and allocations. The ops
//! are called as the decoder calls them, on a device that records commands and does not run them.
//!
//! `cargo run --release -p vllm-apple-metal --features fake --example encode_cost`

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vllm_apple_metal::gpu::fake::FakeGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::*;

const LAYERS: usize = 40;
const HIDDEN: usize = 5120;
const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const QKV: usize = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
const INTERMEDIATE: usize = 32768;
const VOCAB: usize = 131072;
const DTYPE: DType = DType::BF16;
const BLOCK: usize = 16;
const EPS: f32 = 1e-5;

/// Most time to encode a step.
const BUDGET: Duration = Duration::from_micros(300);
/// Most commands of a layer.
const COMMANDS_PER_LAYER: usize = 11;

/// The system's allocator, counting what is asked of it.
struct Counting;

thread_local! {
    /// Of this thread, the one that encodes: the backend's own threads are still starting.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is the system allocator's, with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
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

type Metal = MetalBackend<FakeGpu>;
type Memory = <Metal as Backend>::Memory;
type Linear = Weight<<Metal as Backend>::Packed>;

/// Zeros that nobody reads: the system gives them no memory.
struct Checkpoint(Vec<u128>);

impl MappedFile for Checkpoint {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

struct Layer {
    qkv: Linear,
    o: Linear,
    gate_up: Linear,
    down: Linear,
    norms: [Tensor<Memory>; 2],
    cache: KvCache<Memory>,
}

/// What the decoder keeps for a step.
struct Step {
    ids: Tensor<Memory>,
    positions: Tensor<Memory>,
    slots: Tensor<Memory>,
    logit_rows: Tensor<Memory>,
    sequences: Sequences<Memory>,
    table: RopeTable<Memory>,
    residual: Tensor<Memory>,
    hidden: Tensor<Memory>,
    qkv: Tensor<Memory>,
    attention: Tensor<Memory>,
    delta: Tensor<Memory>,
    gate_up: Tensor<Memory>,
    activation: Tensor<Memory>,
    logit_hidden: Tensor<Memory>,
    logits: Tensor<Memory>,
}

impl Step {
    fn new(backend: &Metal, rows: usize, context: usize) -> Result<Self> {
        let new = |dtype, rows, cols| backend.allocate(dtype, rows, cols);
        let stride = context.div_ceil(BLOCK);
        Ok(Self {
            ids: new(DType::U32, 1, rows)?,
            positions: new(DType::U32, 1, rows)?,
            slots: new(DType::U32, 1, rows)?,
            logit_rows: new(DType::U32, 1, rows)?,
            sequences: Sequences {
                num_requests: rows,
                num_tokens: rows,
                max_seq_len: context,
                max_query_len: 1,
                query_start_loc: new(DType::U32, 1, rows + 1)?,
                seq_lens: new(DType::U32, 1, rows)?,
                block_table: new(DType::U32, 1, rows * stride)?,
                block_table_stride: stride,
            },
            table: RopeTable {
                cos: new(DType::F32, context, HEAD_DIM / 2)?,
                sin: new(DType::F32, context, HEAD_DIM / 2)?,
            },
            residual: new(DType::F32, rows, HIDDEN)?,
            hidden: new(DTYPE, rows, HIDDEN)?,
            qkv: new(DType::F32, rows, QKV)?,
            attention: new(DTYPE, rows, HEADS * HEAD_DIM)?,
            delta: new(DType::F32, rows, HIDDEN)?,
            gate_up: new(DType::F32, rows, 2 * INTERMEDIATE)?,
            activation: new(DTYPE, rows, INTERMEDIATE)?,
            logit_hidden: new(DTYPE, rows, HIDDEN)?,
            logits: new(DType::F32, rows, VOCAB)?,
        })
    }

    fn size(&self) -> StepSize {
        StepSize {
            num_tokens: self.sequences.num_tokens,
            num_requests: self.sequences.num_requests,
            max_query_len: 1,
            max_seq_len: self.sequences.max_seq_len,
            num_logit_rows: self.sequences.num_requests,
            model: ModelSize {
                weights: WeightFormat::Float(DTYPE),
                vocab_size: VOCAB,
                hidden_size: HIDDEN,
                num_heads: HEADS,
                num_kv_heads: KV_HEADS,
                head_dim: HEAD_DIM,
                intermediate_size: INTERMEDIATE,
                num_experts: 0,
                top_k: 0,
                expert_intermediate_size: 0,
            },
        }
    }
}

struct Model {
    embedding: Linear,
    layers: Vec<Layer>,
    norm: Tensor<Memory>,
    lm_head: Linear,
}

impl Model {
    fn new(backend: &Metal, num_blocks: usize) -> Result<Self> {
        let largest = (2 * INTERMEDIATE).max(VOCAB) * HIDDEN * DTYPE.size();
        let file: Arc<dyn MappedFile> = Arc::new(Checkpoint(vec![0; largest / 16]));
        let linear = |parts: &[usize], cols: usize| {
            let part = |&rows: &usize| HostTensor {
                dtype: DTYPE,
                rows,
                cols,
                bytes: &file.bytes()[..rows * cols * DTYPE.size()],
                file: Some(&file),
            };
            let parts: Vec<_> = parts.iter().map(part).collect();
            backend.load_weight(WeightSource::matrix("zeros", &parts), WeightFormat::Float(DTYPE))
        };
        let norm = || backend.allocate(DType::F32, 1, HIDDEN);
        let spec = KvSpec { dtype: DTYPE, num_blocks, block_size: BLOCK, num_kv_heads: KV_HEADS, head_dim: HEAD_DIM };
        let layer = |_| {
            Ok(Layer {
                qkv: linear(&[HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], HIDDEN)?,
                o: linear(&[HIDDEN], HEADS * HEAD_DIM)?,
                gate_up: linear(&[INTERMEDIATE, INTERMEDIATE], HIDDEN)?,
                down: linear(&[HIDDEN], INTERMEDIATE)?,
                norms: [norm()?, norm()?],
                cache: backend.allocate_kv_cache(spec)?,
            })
        };
        let layers = (0..LAYERS).map(layer).collect::<Result<_>>()?;
        Ok(Self { embedding: linear(&[VOCAB], HIDDEN)?, layers, norm: norm()?, lm_head: linear(&[VOCAB], HIDDEN)? })
    }

    /// The decoder's sequence of ops, without its end.
    fn encode(&mut self, backend: &mut Metal, s: &mut Step) -> Result<()> {
        let rows = s.sequences.num_tokens;
        backend.prepare(&s.size())?;
        Embedding { rows, ids: &s.ids, table: &self.embedding, scale: 1.0, out: &mut s.residual }.run(backend)?;
        RmsNorm { rows, x: &s.residual, weight: &self.layers[0].norms[0], eps: EPS, out: &mut s.hidden }
            .run(backend)?;
        for i in 0..LAYERS {
            let next = i + 1;
            let layer = &mut self.layers[i];
            Matmul { rows, x: &s.hidden, weight: &layer.qkv, bias: None, out: &mut s.qkv }.run(backend)?;
            RopeKvWrite {
                rows,
                qkv: &mut s.qkv,
                num_heads: HEADS,
                positions: &s.positions,
                slot_mapping: &s.slots,
                table: &s.table,
                cache: &mut layer.cache,
            }
            .run(backend)?;
            let (sequences, scale, window) = (&s.sequences, 1.0 / (HEAD_DIM as f32).sqrt(), None);
            let (qkv, cache, out) = (&s.qkv, &layer.cache, &mut s.attention);
            PagedAttention { sequences, qkv, num_heads: HEADS, scale, window, cache, out }.run(backend)?;
            Matmul { rows, x: &s.attention, weight: &layer.o, bias: None, out: &mut s.delta }.run(backend)?;
            add_norm(backend, rows, &layer.norms[1], s)?;
            Matmul { rows, x: &s.hidden, weight: &layer.gate_up, bias: None, out: &mut s.gate_up }.run(backend)?;
            let activation = Activation::Silu;
            GatedActivation { rows, activation, gate_up: &s.gate_up, out: &mut s.activation }.run(backend)?;
            Matmul { rows, x: &s.activation, weight: &layer.down, bias: None, out: &mut s.delta }.run(backend)?;
            add_norm(backend, rows, self.layers.get(next).map_or(&self.norm, |layer| &layer.norms[0]), s)?;
        }
        GatherRows { rows, x: &s.hidden, indices: &s.logit_rows, out: &mut s.logit_hidden }.run(backend)?;
        Matmul { rows, x: &s.logit_hidden, weight: &self.lm_head, bias: None, out: &mut s.logits }.run(backend)
    }
}

fn add_norm(backend: &mut Metal, rows: usize, weight: &Tensor<Memory>, s: &mut Step) -> Result<()> {
    AddRmsNorm { rows, residual: &mut s.residual, delta: &s.delta, weight, eps: EPS, out: &mut s.hidden }.run(backend)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    const STEPS: usize = 300;
    let mut good = true;
    for (rows, context) in [(1usize, 4096usize), (8, 4096), (64, 1024)] {
        let mut backend = MetalBackend::new(FakeGpu::recording(), MetalOptions::default())?;
        let mut model = Model::new(&backend, rows * context.div_ceil(BLOCK))?;
        let mut step = Step::new(&backend, rows, context)?;
        // Twice: kernels are compiled, and lists are as long as they get.
        for _ in 0..2 {
            model.encode(&mut backend, &mut step)?;
            backend.synchronize()?;
        }
        let (commands, barriers) = (backend.gpu().num_commands() / 2, backend.gpu().num_barriers() / 2);
        let before = ASKED.get();
        let mut times = [Duration::ZERO; STEPS];
        for time in &mut times {
            let start = Instant::now();
            model.encode(&mut backend, &mut step)?;
            *time = start.elapsed();
            backend.synchronize()?;
        }
        let allocations = ASKED.get() - before;
        times.sort();
        let (median, fastest) = (times[STEPS / 2], times[0]);
        // What comes before and behind the layers: embedding, norm, gather and head.
        let per_layer = (commands - 4).div_ceil(LAYERS);
        println!(
            "{rows} requests of {context} tokens: {commands} commands ({per_layer} a layer), {barriers} barriers, \
             {median:.1?} a step (fastest {fastest:.1?}), {allocations} allocations in {STEPS} steps"
        );
        assert_eq!(backend.fallbacks(), [], "all ops are encoded");
        good &= median < BUDGET && per_layer <= COMMANDS_PER_LAYER && allocations == 0;
    }
    println!(
        "at most {BUDGET:.0?} a step, {COMMANDS_PER_LAYER} commands a layer, no allocation: {}",
        if good { "met" } else { "NOT MET" }
    );
    std::process::exit(i32::from(!good));
}
