//! The decoder of every family: the sequence of ops from token ids to logits. It knows no names of weights and no requests.

use crate::load::config::ModelConfig;
use crate::load::weights::{DenseWeights, LayerWeights, Linear, MlpWeights, MoeWeights, Weights};
use crate::run::scratch::{MlpScratch, MoeScratch, Scratch};
use vllm_apple_executor::Batch;
use vllm_apple_ops::{
    Activation, AddRmsNorm, AddSharedExpert, Backend, Embedding, GatedActivation, GatedMatmul, GatherRows,
    GroupedMatmul, KvCache, Matmul, ModelSize, MoeCombine, PagedAttention, PermuteColumns, QkNorm, Result, RmsNorm,
    Rope, RopeKvWrite, RopeTable, Tensor, TopkSoftmax,
};

/// A model in a backend's memory.
pub(crate) struct Decoder<B: Backend> {
    pub(crate) config: ModelConfig,
    /// What the backend's scratch is sized by.
    pub(crate) size: ModelSize,
    pub(crate) weights: Weights<B>,
    /// Those of [`ModelConfig::ropes`].
    pub(crate) ropes: Vec<RopeTable<B::Memory>>,
    /// One per layer; `None` in layers that share another's.
    pub(crate) caches: Vec<Option<KvCache<B::Memory>>>,
    pub(crate) scratch: Scratch<B::Memory>,
}

impl<B: Backend> Decoder<B> {
    /// Records the batch, which must be within the limits: it fills the caches and the first `logit_rows` rows of
    /// `scratch.logits`, or of `scratch.logit_hidden` in models without an output head. They are there when the backend has finished.
    pub(crate) fn forward(&mut self, backend: &mut B, batch: &Batch) -> Result<()> {
        let Self { config: c, size, weights, ropes, caches, scratch: s } = self;
        let rows = batch.num_tokens();
        let eps = c.rms_norm_eps;
        s.write_inputs(backend, batch);
        backend.prepare(&s.step_size(*size, batch))?;
        // Rounded as in training: Gemma's root of 3072 is 55.5 in bfloat16.
        let scale = s.hidden.dtype().round(c.embedding_scale);
        Embedding { rows, ids: &s.token_ids, table: &weights.embedding, scale, out: &mut s.residual }.run(backend)?;
        let first_norm = weights.layers.first().map_or(&weights.final_norm, |layer| &layer.attention_norm);
        RmsNorm { rows, x: &s.residual, weight: first_norm, eps, out: &mut s.hidden }.run(backend)?;
        for (i, layer) in weights.layers.iter().enumerate() {
            attention(backend, c, i, layer, &ropes[c.layers[i].rope], caches, s)?;
            add_norm(backend, rows, eps, layer.attention_out_norm.as_ref(), &layer.mlp_norm, s)?;
            match &layer.mlp {
                MlpWeights::Dense(dense) => {
                    let buffers = s.mlp.as_mut().expect("scratch has buffers for every kind of layer");
                    let hidden = Input { x: &s.hidden, ordered: s.ordered_hidden.as_mut().unwrap_or(&mut s.attention) };
                    mlp(backend, rows, c.activation, dense, hidden, buffers, &mut s.delta)?;
                }
                MlpWeights::Moe(weights) => {
                    let buffers = s.moe.as_mut().expect("scratch has buffers for every kind of layer");
                    let hidden = Input { x: &s.hidden, ordered: s.ordered_hidden.as_mut().unwrap_or(&mut s.attention) };
                    moe(backend, rows, c.activation, weights, hidden, buffers, &mut s.delta)?;
                }
            }
            let next_norm = weights.layers.get(i + 1).map_or(&weights.final_norm, |next| &next.attention_norm);
            add_norm(backend, rows, eps, layer.mlp_out_norm.as_ref(), next_norm, s)?;
        }
        let rows = batch.logit_rows.len();
        if rows > 0 {
            GatherRows { rows, x: &s.hidden, indices: &s.logit_rows, out: &mut s.logit_hidden }.run(backend)?;
            if let Some(logits) = &mut s.logits {
                let weight = weights.lm_head();
                Matmul { rows, x: &s.logit_hidden, weight, bias: None, out: logits, first: 0 }.run(backend)?;
            }
        }
        Ok(())
    }
}

/// `delta` from `hidden`: attention of layer `i`. Its keys and values go to its cache, unless it shares another layer's.
fn attention<B: Backend>(
    backend: &mut B,
    c: &ModelConfig,
    i: usize,
    layer: &LayerWeights<B>,
    rope: &RopeTable<B::Memory>,
    caches: &mut [Option<KvCache<B::Memory>>],
    s: &mut Scratch<B::Memory>,
) -> Result<()> {
    let (rows, num_heads) = (s.sequences.num_tokens, c.num_attention_heads);
    let target = c.layers[i].kv_sharing_target;
    let (qkv, num_kv_heads) = match target {
        None => (&mut s.qkv, c.num_key_value_heads),
        Some(_) => (s.q.as_mut().expect("scratch has buffers for every kind of layer"), 0),
    };
    let hidden = Input { x: &s.hidden, ordered: s.ordered_hidden.as_mut().unwrap_or(&mut s.attention) };
    project(backend, rows, &layer.qkv, hidden, qkv)?;
    if let Some(norms) = &layer.qk_norm {
        // Without keys, no norm of them is read.
        let (q_weight, k_weight) = (&norms.q, norms.k.as_ref().unwrap_or(&norms.q));
        QkNorm { rows, qkv, num_heads, num_kv_heads, q_weight, k_weight, eps: c.rms_norm_eps }.run(backend)?;
    }
    let cache = caches[target.unwrap_or(i)].as_mut().expect("layers share the cache of a layer that has one");
    let (positions, slot_mapping) = (&s.positions, &s.slot_mapping);
    match target {
        None => RopeKvWrite { rows, qkv, num_heads, positions, slot_mapping, table: rope, cache }.run(backend)?,
        Some(_) => Rope { rows, q: qkv, num_heads, positions, table: rope }.run(backend)?,
    }
    PagedAttention {
        sequences: &s.sequences,
        qkv,
        num_heads,
        scale: c.attention_scale,
        window: c.layers[i].window,
        sinks: layer.sinks.as_ref(),
        cache,
        out: &mut s.attention,
    }
    .run(backend)?;
    let attention = Input { x: &s.attention, ordered: s.ordered_attention.as_mut().unwrap_or(&mut s.hidden) };
    project(backend, rows, &layer.o, attention, &mut s.delta)
}

/// `delta` from `hidden`: a gated MLP.
fn mlp<B: Backend>(
    backend: &mut B,
    rows: usize,
    activation: Activation,
    weights: &DenseWeights<B>,
    mut hidden: Input<'_, B::Memory>,
    buffers: &mut MlpScratch<B::Memory>,
    delta: &mut Tensor<B::Memory>,
) -> Result<()> {
    let (gate_up, out) = (&mut buffers.gate_up, &mut buffers.activation);
    if let [only] = &weights.gate_up[..] {
        let x = hidden.in_order_of(backend, rows, only)?;
        let Linear { weight, bias, .. } = only;
        GatedMatmul { rows, x, weight, bias: bias.as_ref(), activation, gate_up, out }.run(backend)?;
    } else {
        project(backend, rows, &weights.gate_up, hidden, gate_up)?;
        GatedActivation { rows, activation, gate_up, out }.run(backend)?;
    }
    linear(backend, rows, &weights.down, &buffers.activation, delta, 0)
}

/// `delta` from `hidden`: a mixture of experts.
fn moe<B: Backend>(
    backend: &mut B,
    tokens: usize,
    activation: Activation,
    weights: &MoeWeights<B>,
    hidden: Input<'_, B::Memory>,
    s: &mut MoeScratch<B::Memory>,
    delta: &mut Tensor<B::Memory>,
) -> Result<()> {
    linear(backend, tokens, &weights.router, hidden.x, &mut s.router, 0)?;
    let renormalize = weights.renormalize;
    TopkSoftmax { rows: tokens, logits: &s.router, renormalize, ids: &mut s.ids, weights: &mut s.weights }
        .run(backend)?;
    let top_k = s.ids.cols();
    let (ids, mut first) = (&s.ids, 0);
    for Linear { weight, bias, order } in &weights.gate_up {
        let (x, pairs_per_row) = match order {
            None => (hidden.x, top_k),
            Some(order) => {
                let out = s.ordered.as_mut().expect("scratch has buffers for every kind of layer");
                PermuteColumns { rows: tokens, x: hidden.x, order, ids: Some(ids), out: &mut *out }.run(backend)?;
                (&*out, 1)
            }
        };
        let (bias, out) = (bias.as_ref(), &mut s.pairs.gate_up);
        GroupedMatmul { tokens, pairs_per_row, x, ids, weight, bias, out, first }.run(backend)?;
        first += weight.rows();
    }
    let (gate_up, out) = (&s.pairs.gate_up, &mut s.pairs.activation);
    GatedActivation { rows: tokens * top_k, activation, gate_up, out }.run(backend)?;
    let Linear { weight, bias, .. } = &weights.down;
    let (x, bias, out) = (&s.pairs.activation, bias.as_ref(), &mut s.pair_out);
    GroupedMatmul { tokens, pairs_per_row: 1, x, ids, weight, bias, out, first: 0 }.run(backend)?;
    MoeCombine { rows: tokens, x: &s.pair_out, weights: &s.weights, out: delta }.run(backend)?;
    if let (Some(expert), Some(s)) = (&weights.shared, &mut s.shared) {
        linear(backend, tokens, &expert.gate, hidden.x, &mut s.gate, 0)?;
        mlp(backend, tokens, activation, &expert.mlp, hidden, &mut s.mlp, &mut s.out)?;
        AddSharedExpert { rows: tokens, x: &s.out, gate: &s.gate, out: delta }.run(backend)?;
    }
    Ok(())
}

/// Adds `delta`, normalised if there is a weight for that, to the residual and normalises the sum to `hidden`.
fn add_norm<B: Backend>(
    backend: &mut B,
    rows: usize,
    eps: f32,
    out_norm: Option<&Tensor<B::Memory>>,
    weight: &Tensor<B::Memory>,
    s: &mut Scratch<B::Memory>,
) -> Result<()> {
    let delta = match out_norm {
        None => &s.delta,
        Some(weight) => {
            let normed = s.normed_delta.as_mut().expect("scratch has buffers for every kind of layer");
            RmsNorm { rows, x: &s.delta, weight, eps, out: normed }.run(backend)?;
            &*normed
        }
    };
    AddRmsNorm { rows, residual: &mut s.residual, delta, weight, eps, out: &mut s.hidden }.run(backend)
}

/// What projections read, and room for it with its columns in another order.
struct Input<'a, M> {
    x: &'a Tensor<M>,
    ordered: &'a mut Tensor<M>,
}

impl<M> Input<'_, M> {
    /// With its columns as `linear` takes them.
    fn in_order_of<B: Backend<Memory = M>>(
        &mut self,
        backend: &mut B,
        rows: usize,
        linear: &Linear<B>,
    ) -> Result<&Tensor<M>> {
        let Some(order) = &linear.order else { return Ok(self.x) };
        PermuteColumns { rows, x: self.x, order, ids: None, out: &mut *self.ordered }.run(backend)?;
        Ok(self.ordered)
    }
}

/// Of `x` in the order that it takes, to columns of `out` from `first` on.
fn linear<B: Backend>(
    backend: &mut B,
    rows: usize,
    linear: &Linear<B>,
    x: &Tensor<B::Memory>,
    out: &mut Tensor<B::Memory>,
    first: usize,
) -> Result<()> {
    Matmul { rows, x, weight: &linear.weight, bias: linear.bias.as_ref(), out, first }.run(backend)
}

/// One after the other, to `out`.
fn project<B: Backend>(
    backend: &mut B,
    rows: usize,
    projections: &[Linear<B>],
    mut input: Input<'_, B::Memory>,
    out: &mut Tensor<B::Memory>,
) -> Result<()> {
    let mut first = 0;
    for projection in projections {
        let x = input.in_order_of(backend, rows, projection)?;
        linear(backend, rows, projection, x, out, first)?;
        first += projection.weight.rows();
    }
    Ok(())
}
