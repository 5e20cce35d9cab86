//! The traffic of what a decode step does beside dense matmuls and attention: one case per op and type, at sizes of Qwen2-0.5B
//! ([`SHAPES`]) and, for experts, of a mixture as wide. It knows no backend.

use crate::sample::{Adjustment, MAX_TOP, Picked, SampleRow};
use crate::traffic::{BLOCK, Rig, SHAPES, Shape, count};
use crate::*;

/// Requests that decode together.
const ROWS: usize = 8;
const SHAPE: &Shape = &SHAPES[0];
const HIDDEN: usize = SHAPE.hidden;
const HEADS: usize = SHAPE.heads[0];
const KV_HEADS: usize = SHAPE.heads[1];
const HEAD_DIM: usize = SHAPE.head_dim;
/// Tokens of Qwen2.
const VOCAB: usize = 151_936;
/// A mixture: experts, those of a token, width of an expert.
const EXPERTS: usize = 8;
const TOP_K: usize = 2;
const EXPERT: usize = 1216;
const PAIRS: usize = ROWS * TOP_K;
const EPS: f32 = 1e-6;

/// All ops. What depends on the type of weights and cache is counted in each, the rest in f32.
pub(super) fn run<B: Backend>(rig: &mut Rig<'_, B>) {
    for dtype in DType::FLOATS {
        embedding(rig, dtype);
        norms(rig, dtype);
        rope_kv_write(rig, dtype);
        gated_activation(rig, dtype);
        gated_matmul(rig, dtype);
        grouped_matmul(rig, dtype);
        gather_rows(rig, dtype);
        permute_columns(rig, dtype);
    }
    qk_norm(rig);
    rope(rig);
    topk_softmax(rig);
    moe_combine(rig);
    add_shared_expert(rig);
    sample(rig);
}

/// Integers as a row.
fn integers<B: Backend>(backend: &B, values: &[u32]) -> Result<Tensor<B::Memory>> {
    conformance::upload_u32(backend, values.len(), values)
}

/// `ROWS` integers, the multiples of `step`.
fn multiples<B: Backend>(backend: &B, step: usize) -> Result<Tensor<B::Memory>> {
    integers(backend, &(0..ROWS).map(|row| (row * step) as u32).collect::<Vec<_>>())
}

fn embedding<B: Backend>(rig: &mut Rig<'_, B>, dtype: DType) {
    const TOKENS: usize = 1024;
    let minimum = ROWS * HIDDEN * (dtype.size() + 4) + ROWS * 4;
    rig.probe(embedding::NAME, dtype, format!("{ROWS} of {TOKENS} x {HIDDEN}"), minimum, |backend| {
        let bytes = vec![0; TOKENS * HIDDEN * dtype.size()];
        let part = HostTensor { dtype, rows: TOKENS, cols: HIDDEN, bytes: &bytes, file: None };
        let table = backend.load_weight(WeightSource::matrix("embedding", &[part]), WeightFormat::Float(dtype))?;
        let ids = multiples(backend, TOKENS / ROWS)?;
        let mut out = backend.allocate(DType::F32, ROWS, HIDDEN)?;
        count(backend, |backend| {
            Embedding { rows: ROWS, ids: &ids, table: &table, scale: 1.0, out: &mut out }.run(backend)
        })
    });
}

fn norms<B: Backend>(rig: &mut Rig<'_, B>, dtype: DType) {
    let (case, weights) = (format!("{ROWS} x {HIDDEN}"), HIDDEN * 4);
    let minimum = ROWS * HIDDEN * (4 + dtype.size()) + weights;
    rig.probe(rms_norm::NAME, dtype, case.clone(), minimum, |backend| {
        let (x, weight) = (backend.allocate(DType::F32, ROWS, HIDDEN)?, backend.allocate(DType::F32, 1, HIDDEN)?);
        let mut out = backend.allocate(dtype, ROWS, HIDDEN)?;
        count(backend, |backend| RmsNorm { rows: ROWS, x: &x, weight: &weight, eps: EPS, out: &mut out }.run(backend))
    });
    let minimum = ROWS * HIDDEN * (12 + dtype.size()) + weights;
    rig.probe(add_rms_norm::NAME, dtype, case, minimum, |backend| {
        let (delta, weight) = (backend.allocate(DType::F32, ROWS, HIDDEN)?, backend.allocate(DType::F32, 1, HIDDEN)?);
        let mut residual = backend.allocate(DType::F32, ROWS, HIDDEN)?;
        let mut out = backend.allocate(dtype, ROWS, HIDDEN)?;
        count(backend, |backend| {
            let residual = &mut residual;
            AddRmsNorm { rows: ROWS, residual, delta: &delta, weight: &weight, eps: EPS, out: &mut out }.run(backend)
        })
    });
}

/// Each head's query and key are normalised, its value is left alone.
fn qk_norm<B: Backend>(rig: &mut Rig<'_, B>) {
    let minimum = ROWS * (HEADS + KV_HEADS) * HEAD_DIM * 8 + 2 * HEAD_DIM * 4;
    let case = format!("{ROWS} x {HEADS}/{KV_HEADS} heads of {HEAD_DIM}");
    rig.probe(qk_norm::NAME, DType::F32, case, minimum, |backend| {
        let mut qkv = backend.allocate(DType::F32, ROWS, (HEADS + 2 * KV_HEADS) * HEAD_DIM)?;
        let q_weight = backend.allocate(DType::F32, 1, HEAD_DIM)?;
        let k_weight = backend.allocate(DType::F32, 1, HEAD_DIM)?;
        count(backend, |backend| {
            let (num_heads, num_kv_heads) = (HEADS, KV_HEADS);
            QkNorm {
                rows: ROWS,
                qkv: &mut qkv,
                num_heads,
                num_kv_heads,
                q_weight: &q_weight,
                k_weight: &k_weight,
                eps: EPS,
            }
            .run(backend)
        })
    });
}

/// Positions `0, DISTANCE, …`: requests are differently long.
const DISTANCE: usize = 100;

fn rope_table<B: Backend>(backend: &B) -> Result<RopeTable<B::Memory>> {
    let table = || backend.allocate(DType::F32, ROWS * DISTANCE, HEAD_DIM / 2);
    Ok(RopeTable { cos: table()?, sin: table()? })
}

/// A token of each request goes to a block of its own.
fn rope_kv_write<B: Backend>(rig: &mut Rig<'_, B>, dtype: DType) {
    let minimum = ROWS * (HEAD_DIM * (HEADS * 8 + KV_HEADS * (8 + 2 * dtype.size()) + 4) + 8);
    let case = format!("{ROWS} x {HEADS}/{KV_HEADS} heads of {HEAD_DIM}");
    rig.probe(rope_kv_write::NAME, dtype, case, minimum, |backend| {
        let mut cache = backend.allocate_kv_cache(kv_spec(dtype, ROWS))?;
        let mut qkv = backend.allocate(DType::F32, ROWS, (HEADS + 2 * KV_HEADS) * HEAD_DIM)?;
        let (positions, slots) = (multiples(backend, DISTANCE)?, multiples(backend, BLOCK)?);
        let table = rope_table(backend)?;
        count(backend, |backend| {
            RopeKvWrite {
                rows: ROWS,
                qkv: &mut qkv,
                num_heads: HEADS,
                positions: &positions,
                slot_mapping: &slots,
                table: &table,
                cache: &mut cache,
            }
            .run(backend)
        })
    });
}

fn rope<B: Backend>(rig: &mut Rig<'_, B>) {
    let minimum = ROWS * (HEADS * HEAD_DIM * 8 + HEAD_DIM / 2 * 8 + 4);
    rig.probe(rope::NAME, DType::F32, format!("{ROWS} x {HEADS} heads of {HEAD_DIM}"), minimum, |backend| {
        let mut q = backend.allocate(DType::F32, ROWS, HEADS * HEAD_DIM)?;
        let (positions, table) = (multiples(backend, DISTANCE)?, rope_table(backend)?);
        count(backend, |backend| {
            Rope { rows: ROWS, q: &mut q, num_heads: HEADS, positions: &positions, table: &table }.run(backend)
        })
    });
}

fn gated_activation<B: Backend>(rig: &mut Rig<'_, B>, dtype: DType) {
    let width = SHAPE.intermediate;
    let minimum = ROWS * width * (8 + dtype.size());
    rig.probe(gated_activation::NAME, dtype, format!("{ROWS} x {width}"), minimum, |backend| {
        let gate_up = backend.allocate(DType::F32, ROWS, 2 * width)?;
        let mut out = backend.allocate(dtype, ROWS, width)?;
        count(backend, |backend| {
            let activation = Activation::Silu;
            GatedActivation { rows: ROWS, activation, gate_up: &gate_up, out: &mut out }.run(backend)
        })
    });
}

/// Of an eighth of the width, which keeps it short.
fn gated_matmul<B: Backend>(rig: &mut Rig<'_, B>, dtype: DType) {
    let (width, k) = (SHAPE.intermediate / 8, HIDDEN);
    let minimum = (2 * width * k + ROWS * (k + width)) * dtype.size();
    rig.probe(gated_matmul::NAME, dtype, format!("{ROWS} x 2 * {width} x {k}"), minimum, |backend| {
        let bytes = vec![0; 2 * width * k * dtype.size()];
        let part = HostTensor { dtype, rows: 2 * width, cols: k, bytes: &bytes, file: None };
        let source = WeightSource::matrix("traffic", std::slice::from_ref(&part));
        let weight = backend.load_weight(source, WeightFormat::Float(dtype))?;
        let x = backend.allocate(dtype, ROWS, k)?;
        let mut gate_up = backend.allocate(DType::F32, ROWS, 2 * width)?;
        let mut out = backend.allocate(dtype, ROWS, width)?;
        count(backend, |backend| {
            let (activation, gate_up, out) = (Activation::Silu, &mut gate_up, &mut out);
            GatedMatmul { rows: ROWS, x: &x, weight: &weight, bias: None, activation, gate_up, out }.run(backend)
        })
    });
}

fn topk_softmax<B: Backend>(rig: &mut Rig<'_, B>) {
    // As many experts as Qwen's mixtures have: with few, rows are shorter than what memory moves at once.
    const EXPERTS: usize = 64;
    let minimum = ROWS * (EXPERTS + 2 * TOP_K) * 4;
    rig.probe(topk_softmax::NAME, DType::F32, format!("{ROWS} x {TOP_K} of {EXPERTS}"), minimum, |backend| {
        let logits = backend.allocate(DType::F32, ROWS, EXPERTS)?;
        let mut ids = backend.allocate(DType::U32, ROWS, TOP_K)?;
        let mut weights = backend.allocate(DType::F32, ROWS, TOP_K)?;
        count(backend, |backend| {
            let (ids, weights) = (&mut ids, &mut weights);
            TopkSoftmax { rows: ROWS, logits: &logits, renormalize: true, ids, weights }.run(backend)
        })
    });
}

/// Gate and up of every expert, and as many pairs for each.
fn grouped_matmul<B: Backend>(rig: &mut Rig<'_, B>, dtype: DType) {
    let (n, k) = (2 * EXPERT, HIDDEN);
    let minimum = (EXPERTS * n + ROWS) * k * dtype.size() + PAIRS * (n + 1) * 4;
    rig.probe(grouped_matmul::NAME, dtype, format!("{ROWS} x {TOP_K} of {EXPERTS} x {n} x {k}"), minimum, |backend| {
        let bytes = vec![0; EXPERTS * n * k * dtype.size()];
        let parts: Vec<_> = bytes
            .chunks_exact(n * k * dtype.size())
            .map(|bytes| HostTensor { dtype, rows: n, cols: k, bytes, file: None })
            .collect();
        let weight =
            backend.load_weight(WeightSource::matrices("experts", EXPERTS, &parts), WeightFormat::Float(dtype))?;
        let chosen: Vec<u32> = (0..PAIRS as u32).map(|pair| pair % EXPERTS as u32).collect();
        let ids = conformance::upload_u32(backend, TOP_K, &chosen)?;
        let x = backend.allocate(dtype, ROWS, k)?;
        let mut out = backend.allocate(DType::F32, PAIRS, n)?;
        count(backend, |backend| {
            let (x, ids, weight, out) = (&x, &ids, &weight, &mut out);
            GroupedMatmul { tokens: ROWS, pairs_per_row: TOP_K, x, ids, weight, bias: None, out, first: 0 }.run(backend)
        })
    });
}

fn moe_combine<B: Backend>(rig: &mut Rig<'_, B>) {
    let minimum = ROWS * (TOP_K + 1) * HIDDEN * 4 + PAIRS * 4;
    rig.probe(moe_combine::NAME, DType::F32, format!("{ROWS} x {TOP_K} x {HIDDEN}"), minimum, |backend| {
        let (x, weights) = (backend.allocate(DType::F32, PAIRS, HIDDEN)?, backend.allocate(DType::F32, ROWS, TOP_K)?);
        let mut out = backend.allocate(DType::F32, ROWS, HIDDEN)?;
        count(backend, |backend| MoeCombine { rows: ROWS, x: &x, weights: &weights, out: &mut out }.run(backend))
    });
}

fn add_shared_expert<B: Backend>(rig: &mut Rig<'_, B>) {
    let minimum = ROWS * HIDDEN * 12 + ROWS * 4;
    rig.probe(add_shared_expert::NAME, DType::F32, format!("{ROWS} x {HIDDEN}"), minimum, |backend| {
        let (x, gate) = (backend.allocate(DType::F32, ROWS, HIDDEN)?, backend.allocate(DType::F32, ROWS, 1)?);
        let mut out = backend.allocate(DType::F32, ROWS, HIDDEN)?;
        count(backend, |backend| AddSharedExpert { rows: ROWS, x: &x, gate: &gate, out: &mut out }.run(backend))
    });
}

fn gather_rows<B: Backend>(rig: &mut Rig<'_, B>, dtype: DType) {
    let minimum = 2 * ROWS * HIDDEN * dtype.size() + ROWS * 4;
    rig.probe(gather_rows::NAME, dtype, format!("{ROWS} x {HIDDEN}"), minimum, |backend| {
        let x = backend.allocate(dtype, 2 * ROWS, HIDDEN)?;
        let indices = multiples(backend, 2)?;
        let mut out = backend.allocate(dtype, ROWS, HIDDEN)?;
        count(backend, |backend| GatherRows { rows: ROWS, x: &x, indices: &indices, out: &mut out }.run(backend))
    });
}

/// As far apart as columns can be: a stride that has no divisor in common with their number.
fn permute_columns<B: Backend>(rig: &mut Rig<'_, B>, dtype: DType) {
    const STRIDE: usize = 337;
    let minimum = 2 * ROWS * HIDDEN * dtype.size() + HIDDEN * 4;
    rig.probe(permute_columns::NAME, dtype, format!("{ROWS} x {HIDDEN}"), minimum, |backend| {
        let x = backend.allocate(dtype, ROWS, HIDDEN)?;
        let order = integers(backend, &(0..HIDDEN).map(|i| (i * STRIDE % HIDDEN) as u32).collect::<Vec<_>>())?;
        let mut out = backend.allocate(dtype, ROWS, HIDDEN)?;
        count(backend, |backend| {
            PermuteColumns { rows: ROWS, x: &x, order: &order, ids: None, out: &mut out }.run(backend)
        })
    });
}

fn kv_spec(dtype: DType, num_blocks: usize) -> KvSpec {
    KvSpec { dtype, num_blocks, block_size: BLOCK, num_kv_heads: KV_HEADS, head_dim: HEAD_DIM }
}

/// One row is greedy, one is drawn from all tokens, the others from the likely ones.
fn sample<B: Backend>(rig: &mut Rig<'_, B>) {
    let row = |i: usize| SampleRow {
        scale: if i == 0 { 0.0 } else { 1.0 },
        top_p: if i == 1 { 1.0 } else { 0.9 },
        top_k: if i > 4 { 40 } else { 0 },
        seed: i as u64,
        position: 7,
        ..SampleRow::greedy(i as u32)
    };
    let params: Vec<u32> = (0..ROWS).flat_map(|i| row(i).words()).collect();
    let minimum = ROWS * (VOCAB + SampleRow::WORDS + Picked::WORDS) * 4;
    rig.probe(sample::NAME, DType::F32, format!("{ROWS} x {VOCAB}"), minimum, |backend| {
        let mut logits = backend.allocate(DType::F32, ROWS, VOCAB)?;
        let values: Vec<f32> = (0..ROWS * VOCAB).map(|i| philox::uniform(1, i as u64) as f32 * 20.0).collect();
        backend.write(&mut logits, &DType::F32.encode(&values));
        let params = conformance::upload_u32(backend, SampleRow::WORDS, &params)?;
        let mut adjustments = backend.allocate(DType::U32, 1, Adjustment::WORDS)?;
        let masks = backend.allocate(DType::U32, 1, sample::mask_words(VOCAB))?;
        let mut picked = backend.allocate(DType::U32, ROWS, Picked::WORDS)?;
        let mut top = backend.allocate(DType::U32, ROWS, 2 * MAX_TOP)?;
        count(backend, |backend| {
            Sample {
                rows: ROWS,
                logits: &mut logits,
                params: &params,
                adjustments: &mut adjustments,
                masks: &masks,
                picked: &mut picked,
                top: &mut top,
            }
            .run(backend)
        })
    });
}
