//! The decoder's sequence of ops for dense models of well-known shapes, on a device that records commands and does not run them.
#![allow(dead_code, reason = "each user needs a part")]

use std::sync::Arc;

use vllm_apple_metal::MetalBackend;
use vllm_apple_metal::gpu::fake::FakeGpu;
use vllm_apple_ops::*;

/// Sizes of a model.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub name: &'static str,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub intermediate: usize,
    pub vocab: usize,
}

/// `meta-llama/Llama-3.1-8B`, its configuration.
pub const LLAMA_8B: Shape = Shape {
    name: "Llama-8B",
    layers: 32,
    hidden: 4096,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    intermediate: 14336,
    vocab: 128_256,
};
/// `mistralai/Devstral-Small-2507`, its configuration.
pub const DEVSTRAL_24B: Shape = Shape {
    name: "Devstral-24B",
    layers: 40,
    hidden: 5120,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    intermediate: 32768,
    vocab: 131_072,
};

impl Shape {
    pub fn qkv(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Elements of a layer's matrices.
    pub fn layer_elements(&self) -> usize {
        self.hidden * (self.qkv() + self.heads * self.head_dim + 3 * self.intermediate)
    }
}

const DTYPE: DType = DType::BF16;
pub const BLOCK: usize = 16;
const EPS: f32 = 1e-5;

pub type Metal = MetalBackend<FakeGpu>;
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
pub struct Step {
    shape: Shape,
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
    /// Of so many requests with so many new tokens each, which end sequences of `context` tokens.
    pub fn new(backend: &Metal, shape: Shape, requests: usize, tokens: usize, context: usize) -> Result<Self> {
        let rows = requests * tokens;
        let new = |dtype, rows, cols| backend.allocate(dtype, rows, cols);
        let stride = context.div_ceil(BLOCK);
        Ok(Self {
            shape,
            ids: new(DType::U32, 1, rows)?,
            positions: new(DType::U32, 1, rows)?,
            slots: new(DType::U32, 1, rows)?,
            logit_rows: new(DType::U32, 1, requests)?,
            sequences: Sequences {
                num_requests: requests,
                num_tokens: rows,
                max_seq_len: context,
                sum_seq_lens: requests * context,
                max_query_len: tokens,
                query_start_loc: new(DType::U32, 1, requests + 1)?,
                seq_lens: new(DType::U32, 1, requests)?,
                block_table: new(DType::U32, 1, requests * stride)?,
                block_table_stride: stride,
            },
            table: RopeTable {
                cos: new(DType::F32, context, shape.head_dim / 2)?,
                sin: new(DType::F32, context, shape.head_dim / 2)?,
            },
            residual: new(DType::F32, rows, shape.hidden)?,
            hidden: new(DTYPE, rows, shape.hidden)?,
            qkv: new(DType::F32, rows, shape.qkv())?,
            attention: new(DTYPE, rows, shape.heads * shape.head_dim)?,
            delta: new(DType::F32, rows, shape.hidden)?,
            gate_up: new(DType::F32, rows, 2 * shape.intermediate)?,
            activation: new(DTYPE, rows, shape.intermediate)?,
            logit_hidden: new(DTYPE, requests, shape.hidden)?,
            logits: new(DType::F32, requests, shape.vocab)?,
        })
    }

    fn size(&self) -> StepSize {
        StepSize {
            num_tokens: self.sequences.num_tokens,
            num_requests: self.sequences.num_requests,
            max_query_len: self.sequences.max_query_len,
            max_seq_len: self.sequences.max_seq_len,
            num_logit_rows: self.sequences.num_requests,
            model: ModelSize {
                weights: WeightFormat::Float(DTYPE),
                vocab_size: self.shape.vocab,
                hidden_size: self.shape.hidden,
                num_heads: self.shape.heads,
                num_kv_heads: self.shape.kv_heads,
                head_dim: self.shape.head_dim,
                intermediate_size: self.shape.intermediate,
                num_experts: 0,
                top_k: 0,
                expert_intermediate_size: 0,
            },
        }
    }
}

/// The weights.
pub struct Model {
    shape: Shape,
    embedding: Linear,
    layers: Vec<Layer>,
    norm: Tensor<Memory>,
    lm_head: Linear,
}

impl Model {
    pub fn new(backend: &Metal, shape: Shape, num_blocks: usize) -> Result<Self> {
        let largest = (2 * shape.intermediate).max(shape.vocab) * shape.hidden * DTYPE.size();
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
        let norm = || backend.allocate(DType::F32, 1, shape.hidden);
        let spec = KvSpec {
            dtype: DTYPE,
            num_blocks,
            block_size: BLOCK,
            num_kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
        };
        let layer = |_| {
            Ok(Layer {
                qkv: linear(
                    &[shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.head_dim],
                    shape.hidden,
                )?,
                o: linear(&[shape.hidden], shape.heads * shape.head_dim)?,
                gate_up: linear(&[shape.intermediate, shape.intermediate], shape.hidden)?,
                down: linear(&[shape.hidden], shape.intermediate)?,
                norms: [norm()?, norm()?],
                cache: backend.allocate_kv_cache(spec)?,
            })
        };
        let layers = (0..shape.layers).map(layer).collect::<Result<_>>()?;
        Ok(Self {
            shape,
            embedding: linear(&[shape.vocab], shape.hidden)?,
            layers,
            norm: norm()?,
            lm_head: linear(&[shape.vocab], shape.hidden)?,
        })
    }

    /// The decoder's sequence of ops, without its end.
    pub fn encode(&mut self, backend: &mut Metal, s: &mut Step) -> Result<()> {
        let shape = self.shape;
        let (rows, requests) = (s.sequences.num_tokens, s.sequences.num_requests);
        backend.prepare(&s.size())?;
        Embedding { rows, ids: &s.ids, table: &self.embedding, scale: 1.0, out: &mut s.residual }.run(backend)?;
        RmsNorm { rows, x: &s.residual, weight: &self.layers[0].norms[0], eps: EPS, out: &mut s.hidden }
            .run(backend)?;
        for i in 0..shape.layers {
            let next = i + 1;
            let layer = &mut self.layers[i];
            Matmul { rows, x: &s.hidden, weight: &layer.qkv, bias: None, out: &mut s.qkv, first: 0 }.run(backend)?;
            RopeKvWrite {
                rows,
                qkv: &mut s.qkv,
                num_heads: shape.heads,
                positions: &s.positions,
                slot_mapping: &s.slots,
                table: &s.table,
                cache: &mut layer.cache,
            }
            .run(backend)?;
            let (sequences, scale, window) = (&s.sequences, 1.0 / (shape.head_dim as f32).sqrt(), None);
            let (qkv, cache, out) = (&s.qkv, &layer.cache, &mut s.attention);
            PagedAttention { sequences, qkv, num_heads: shape.heads, scale, window, sinks: None, cache, out }
                .run(backend)?;
            Matmul { rows, x: &s.attention, weight: &layer.o, bias: None, out: &mut s.delta, first: 0 }.run(backend)?;
            add_norm(backend, rows, &layer.norms[1], s)?;
            let (weight, gate_up, out) = (&layer.gate_up, &mut s.gate_up, &mut s.activation);
            GatedMatmul { rows, x: &s.hidden, weight, bias: None, activation: Activation::Silu, gate_up, out }
                .run(backend)?;
            Matmul { rows, x: &s.activation, weight: &layer.down, bias: None, out: &mut s.delta, first: 0 }
                .run(backend)?;
            add_norm(backend, rows, self.layers.get(next).map_or(&self.norm, |layer| &layer.norms[0]), s)?;
        }
        GatherRows { rows: requests, x: &s.hidden, indices: &s.logit_rows, out: &mut s.logit_hidden }.run(backend)?;
        Matmul { rows: requests, x: &s.logit_hidden, weight: &self.lm_head, bias: None, out: &mut s.logits, first: 0 }
            .run(backend)
    }
}

fn add_norm(backend: &mut Metal, rows: usize, weight: &Tensor<Memory>, s: &mut Step) -> Result<()> {
    AddRmsNorm { rows, residual: &mut s.residual, delta: &s.delta, weight, eps: EPS, out: &mut s.hidden }.run(backend)
}
