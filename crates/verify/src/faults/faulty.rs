//! A backend around another that computes one thing wrong, as kernels were seen to.

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use half::bf16;
use vllm_apple_ops::*;

use crate::reference::{floats, integers};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    // Of the token table.
    EmbeddingFactor,
    NextToken,
    // Of norms.
    NormEpsilon,
    ResidualLost,
    NormBeforeAddition,
    KeyNormSkipped,
    // Of products.
    BiasDropped,
    EndOfK,
    TileOfZeros,
    SumsInBf16,
    RowOfAnother,
    Race,
    RowsMatter,
    // Of gates.
    GateAndUpSwapped,
    OtherActivation,
    BoundsIgnored,
    // Of rotations and of the cache.
    PositionOffByOne,
    NeighboursArePairs,
    SineNegated,
    RotationForgotten,
    SlotAtChunkBoundary,
    ValueHeadsSwapped,
    ValuesTruncated,
    // Of attention.
    MaskTooLong,
    MaskTooShort,
    ScaleMissing,
    WindowIgnored,
    WindowTooLong,
    BlocksInOtherOrder,
    HeadsSwapped,
    EarlyPartLost,
    SinksIgnored,
    // Of the output head's rows.
    OtherRow,
    // Of the order of columns.
    ColumnsSwapped,
    // Of experts.
    ExpertsSwapped,
    WeightsNotRenormalised,
    OtherExpert,
    BiasOfExpertsDropped,
    LastExpertLost,
    GateOfSharedExpertIgnored,
}

pub struct Faulty<B> {
    pub inner: B,
    pub fault: Fault,
    pub calls: Cell<u64>,
    /// What a warm-up asks of it, in its order. Ops compute all the same.
    pub noted: Arc<Mutex<Vec<&'static str>>>,
}

impl<B: Backend> Faulty<B> {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// Integers like `tensor`'s first `len`, but changed.
    fn changed(&self, tensor: &Tensor<B::Memory>, len: usize, change: impl FnOnce(&mut [u32])) -> Tensor<B::Memory> {
        let mut values = integers(&self.inner, tensor, len);
        change(&mut values);
        let mut new = self.inner.allocate(DType::U32, len.div_ceil(tensor.cols()), tensor.cols()).unwrap();
        self.inner.write(&mut new, bytemuck::cast_slice(&values));
        new
    }

    /// Changes the first rows of a tensor of floats.
    fn change(&self, tensor: &mut Tensor<B::Memory>, rows: usize, change: impl FnOnce(&mut [f32])) {
        let mut values = floats(&self.inner, tensor, rows);
        change(&mut values);
        let bytes = tensor.dtype().encode(&values);
        self.inner.write(tensor, &bytes);
    }

    fn copy(&self, tensor: &Tensor<B::Memory>, rows: usize) -> Tensor<B::Memory> {
        let mut copy = self.inner.allocate(tensor.dtype(), tensor.rows(), tensor.cols()).unwrap();
        let bytes = self.inner.read(tensor)[..rows * tensor.cols() * tensor.dtype().size()].to_vec();
        self.inner.write(&mut copy, &bytes);
        copy
    }
}

impl<B: Backend> Backend for Faulty<B> {
    type Memory = B::Memory;
    type Packed = B::Packed;

    fn device(&self) -> DeviceInfo {
        self.inner.device()
    }

    fn allocate(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<B::Memory>> {
        self.inner.allocate(dtype, rows, cols)
    }

    fn check_kv_cache(&self, spec: &KvSpec) -> Result<()> {
        self.inner.check_kv_cache(spec)
    }

    fn allocate_kv_cache(&self, spec: KvSpec) -> Result<KvCache<B::Memory>> {
        self.inner.allocate_kv_cache(spec)
    }

    fn load_weight(&self, source: WeightSource<'_>, format: WeightFormat) -> Result<Weight<B::Packed>> {
        self.inner.load_weight(source, format)
    }

    fn write(&self, tensor: &mut Tensor<B::Memory>, bytes: &[u8]) {
        self.inner.write(tensor, bytes);
    }

    fn read<'a>(&self, tensor: &'a Tensor<B::Memory>) -> &'a [u8] {
        self.inner.read(tensor)
    }

    fn read_kv(&self, cache: &KvCache<B::Memory>, slot: usize) -> (Vec<f32>, Vec<f32>) {
        self.inner.read_kv(cache, slot)
    }

    fn synchronize(&mut self) -> Result<()> {
        self.inner.synchronize()
    }

    fn can_note(&self) -> bool {
        true
    }

    fn note(&mut self) {
        self.noted.lock().unwrap().push("note");
    }

    fn prepare_noted(&mut self, _: &mut dyn FnMut(usize, usize)) -> Result<()> {
        self.noted.lock().unwrap().push("prepare");
        Ok(())
    }

    fn test_noted(&mut self) -> Result<()> {
        self.noted.lock().unwrap().push("test");
        Ok(())
    }

    fn embedding(&mut self, mut op: Embedding<'_, B::Memory, B::Packed>) -> Result<()> {
        let ids = self.changed(op.ids, op.rows, |ids| {
            if self.is(Fault::NextToken) {
                ids[0] += 1;
            }
        });
        if self.is(Fault::EmbeddingFactor) {
            op.scale *= 1.01;
        }
        self.inner.embedding(Embedding { ids: &ids, ..op })
    }

    fn rms_norm(&mut self, op: RmsNorm<'_, B::Memory>) -> Result<()> {
        let eps = if self.is(Fault::NormEpsilon) { 100.0 * op.eps } else { op.eps };
        self.inner.rms_norm(RmsNorm { eps, ..op })
    }

    fn add_rms_norm(&mut self, op: AddRmsNorm<'_, B::Memory>) -> Result<()> {
        let AddRmsNorm { rows, residual, delta, weight, eps, out } = op;
        let before = self.copy(residual, rows);
        let op = AddRmsNorm { rows, residual: &mut *residual, delta, weight, eps, out: &mut *out };
        self.inner.add_rms_norm(op)?;
        match self.fault {
            Fault::NormBeforeAddition => self.inner.rms_norm(RmsNorm { rows, x: &before, weight, eps, out }),
            Fault::ResidualLost => {
                let before = floats(&self.inner, &before, rows);
                self.change(residual, rows, |values| values.copy_from_slice(&before));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn matmul(&mut self, op: Matmul<'_, B::Memory, B::Packed>) -> Result<()> {
        let Matmul { rows, x, weight, bias, out, first } = op;
        let mut x = self.copy(x, rows);
        let (k, n) = (x.cols(), out.cols());
        if self.is(Fault::EndOfK) {
            self.change(&mut x, rows, |x| x.chunks_exact_mut(k).for_each(|row| row[k - 1] = 0.0));
        }
        let bias = bias.filter(|_| !self.is(Fault::BiasDropped));
        self.inner.matmul(Matmul { rows, x: &x, weight, bias, out: &mut *out, first })?;
        let call = self.calls.get();
        self.calls.set(call + 1);
        self.change(out, rows, |out| match self.fault {
            Fault::TileOfZeros => out[rows * n - 4..].fill(0.0),
            Fault::SumsInBf16 => out.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32()),
            Fault::RowOfAnother if rows > 1 => out.copy_within(..n, n),
            Fault::Race if call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0 => out[0] = out[0].next_up(),
            Fault::RowsMatter if rows > 8 => out.iter_mut().for_each(|value| *value = value.next_up()),
            _ => {}
        });
        Ok(())
    }

    fn gated_matmul(&mut self, op: GatedMatmul<'_, B::Memory, B::Packed>) -> Result<()> {
        let GatedMatmul { rows, x, weight, bias, mut activation, gate_up, out } = op;
        if self.is(Fault::OtherActivation) {
            activation = if activation == Activation::Silu { Activation::GeluTanh } else { Activation::Silu };
        }
        if !self.is(Fault::GateAndUpSwapped) {
            return self.inner.gated_matmul(GatedMatmul { rows, x, weight, bias, activation, gate_up, out });
        }
        self.inner.matmul(Matmul { rows, x, weight, bias, out: &mut *gate_up, first: 0 })?;
        let width = gate_up.cols();
        self.change(gate_up, rows, |values| values.chunks_exact_mut(width).for_each(|row| row.rotate_left(width / 2)));
        self.inner.gated_activation(GatedActivation { rows, activation, gate_up, out })
    }

    fn qk_norm(&mut self, op: QkNorm<'_, B::Memory>) -> Result<()> {
        let QkNorm { rows, qkv, num_heads, num_kv_heads, q_weight, k_weight, eps } = op;
        let before = floats(&self.inner, qkv, rows);
        self.inner.qk_norm(QkNorm { rows, qkv: &mut *qkv, num_heads, num_kv_heads, q_weight, k_weight, eps })?;
        if self.is(Fault::KeyNormSkipped) {
            let (width, first) = (qkv.cols(), num_heads * q_weight.cols());
            self.change(qkv, rows, |qkv| {
                for (row, before) in qkv.chunks_exact_mut(width).zip(before.chunks_exact(width)) {
                    row[first..].copy_from_slice(&before[first..]);
                }
            });
        }
        Ok(())
    }

    fn rope_kv_write(&mut self, op: RopeKvWrite<'_, B::Memory>) -> Result<()> {
        let RopeKvWrite { rows, qkv, num_heads, positions, slot_mapping, table, cache } = op;
        let KvSpec { num_kv_heads, head_dim: d, .. } = cache.spec;
        let (width, first_value) = (qkv.cols(), (num_heads + num_kv_heads) * d);
        let true_positions = integers(&self.inner, positions, rows);
        let positions = self.changed(positions, rows, |positions| match self.fault {
            Fault::PositionOffByOne => positions.iter_mut().for_each(|position| *position = position.saturating_sub(1)),
            Fault::RotationForgotten => positions.fill(0),
            _ => {}
        });
        let slots = self.changed(slot_mapping, rows, |slots| {
            let begins = |i: usize| true_positions[i] > 0 && (i == 0 || true_positions[i - 1] + 1 != true_positions[i]);
            for i in (0..rows).filter(|&i| self.is(Fault::SlotAtChunkBoundary) && begins(i)) {
                slots[i] ^= 1;
            }
        });
        let mut sin = self.copy(&table.sin, table.sin.rows());
        if self.is(Fault::SineNegated) {
            let rows = sin.rows();
            self.change(&mut sin, rows, |sin| sin.iter_mut().for_each(|value| *value = -*value));
        }
        let table = RopeTable { cos: self.copy(&table.cos, table.cos.rows()), sin };
        let heads = |row: &mut [f32], order: fn(usize, usize) -> usize| {
            for head in row[..first_value].chunks_exact_mut(d) {
                let old = head.to_vec();
                (0..d).for_each(|i| head[order(i, d)] = old[i]);
            }
        };
        self.change(qkv, rows, |qkv| {
            for row in qkv.chunks_exact_mut(width) {
                match self.fault {
                    Fault::NeighboursArePairs => heads(row, |i, d| i / 2 + i % 2 * (d / 2)),
                    Fault::ValueHeadsSwapped => row[first_value..].rotate_left(d),
                    Fault::ValuesTruncated => row[first_value..]
                        .iter_mut()
                        .for_each(|value| *value = f32::from_bits(value.to_bits() & 0xffff_0000)),
                    _ => {}
                }
            }
        });
        let (positions, slot_mapping) = (&positions, &slots);
        let op = RopeKvWrite { rows, qkv: &mut *qkv, num_heads, positions, slot_mapping, table: &table, cache };
        self.inner.rope_kv_write(op)?;
        if self.is(Fault::NeighboursArePairs) {
            self.change(qkv, rows, |qkv| {
                qkv.chunks_exact_mut(width).for_each(|row| heads(row, |i, d| i % (d / 2) * 2 + i / (d / 2)));
            });
        }
        Ok(())
    }

    fn rope(&mut self, op: Rope<'_, B::Memory>) -> Result<()> {
        self.inner.rope(op)
    }

    fn paged_attention(&mut self, op: PagedAttention<'_, B::Memory>) -> Result<()> {
        let PagedAttention { sequences: s, qkv, num_heads, mut scale, mut window, mut sinks, cache, out } = op;
        let starts = integers(&self.inner, &s.query_start_loc, s.num_requests + 1);
        let stride = s.block_table_stride;
        let room = (stride * cache.spec.block_size) as u32;
        let seq_lens = self.changed(&s.seq_lens, s.num_requests, |lens| {
            for (request, len) in lens.iter_mut().enumerate() {
                let new = starts[request + 1] - starts[request];
                match self.fault {
                    Fault::MaskTooLong => *len = (*len + 1).min(room),
                    Fault::MaskTooShort => *len = (*len - 1).max(new),
                    _ => {}
                }
            }
        });
        let block_table = self.changed(&s.block_table, s.num_requests * stride, |table| {
            if self.is(Fault::BlocksInOtherOrder) {
                table.chunks_exact_mut(stride).for_each(|blocks| blocks.swap(0, 1));
            }
        });
        match self.fault {
            Fault::ScaleMissing => scale = 1.0,
            Fault::WindowIgnored => window = None,
            Fault::SinksIgnored => sinks = None,
            Fault::WindowTooLong => window = window.map(|window| window + 1),
            Fault::EarlyPartLost => window = Some(32.min(window.unwrap_or(32))),
            _ => {}
        }
        let lens = integers(&self.inner, &seq_lens, s.num_requests);
        let sequences = Sequences {
            max_seq_len: lens.iter().copied().max().unwrap_or(0) as usize,
            sum_seq_lens: lens.iter().sum::<u32>() as usize,
            query_start_loc: self.changed(&s.query_start_loc, s.num_requests + 1, |_| {}),
            seq_lens,
            block_table,
            ..*s
        };
        let op = PagedAttention { sequences: &sequences, qkv, num_heads, scale, window, sinks, cache, out: &mut *out };
        self.inner.paged_attention(op)?;
        if self.is(Fault::HeadsSwapped) {
            let (width, d) = (out.cols(), cache.spec.head_dim);
            self.change(out, s.num_tokens, |out| {
                out.chunks_exact_mut(width).for_each(|row| row[..2 * d].rotate_left(d));
            });
        }
        Ok(())
    }

    fn gated_activation(&mut self, mut op: GatedActivation<'_, B::Memory>) -> Result<()> {
        if self.is(Fault::BoundsIgnored) {
            op.activation = Activation::Silu;
        }
        self.inner.gated_activation(op)
    }

    fn topk_softmax(&mut self, op: TopkSoftmax<'_, B::Memory>) -> Result<()> {
        let TopkSoftmax { rows, logits, mut renormalize, ids, weights } = op;
        renormalize ^= self.is(Fault::WeightsNotRenormalised);
        self.inner.topk_softmax(TopkSoftmax { rows, logits, renormalize, ids: &mut *ids, weights })?;
        if self.is(Fault::ExpertsSwapped) {
            let top_k = ids.cols();
            let mut values = integers(&self.inner, ids, rows * top_k);
            values.chunks_exact_mut(top_k).for_each(|ids| ids.swap(0, 1));
            self.inner.write(ids, bytemuck::cast_slice(&values));
        }
        Ok(())
    }

    fn grouped_matmul(&mut self, op: GroupedMatmul<'_, B::Memory, B::Packed>) -> Result<()> {
        let GroupedMatmul { tokens, pairs_per_row, x, ids, weight, mut bias, out, first } = op;
        let (top_k, experts) = (ids.cols(), weight.groups() as u32);
        let mut values = integers(&self.inner, ids, tokens * top_k);
        if self.is(Fault::BiasOfExpertsDropped) {
            bias = None;
        }
        if self.is(Fault::OtherExpert) {
            values[0] = (values[0] + 1) % experts;
        }
        let mut ids = self.inner.allocate(DType::U32, tokens, top_k)?;
        self.inner.write(&mut ids, bytemuck::cast_slice(&values));
        self.inner.grouped_matmul(GroupedMatmul { tokens, pairs_per_row, x, ids: &ids, weight, bias, out, first })
    }

    fn moe_combine(&mut self, op: MoeCombine<'_, B::Memory>) -> Result<()> {
        let MoeCombine { rows, x, weights, out } = op;
        let mut weights = self.copy(weights, rows);
        if self.is(Fault::LastExpertLost) {
            let top_k = weights.cols();
            self.change(&mut weights, rows, |all| all.chunks_exact_mut(top_k).for_each(|row| row[top_k - 1] = 0.0));
        }
        self.inner.moe_combine(MoeCombine { rows, x, weights: &weights, out })
    }

    fn add_shared_expert(&mut self, op: AddSharedExpert<'_, B::Memory>) -> Result<()> {
        let AddSharedExpert { rows, x, gate, out } = op;
        let mut gate = self.copy(gate, rows);
        if self.is(Fault::GateOfSharedExpertIgnored) {
            self.change(&mut gate, rows, |gate| gate.fill(100.0));
        }
        self.inner.add_shared_expert(AddSharedExpert { rows, x, gate: &gate, out })
    }

    fn gather_rows(&mut self, op: GatherRows<'_, B::Memory>) -> Result<()> {
        let indices = self.changed(op.indices, op.rows, |indices| {
            if self.is(Fault::OtherRow) {
                let last = indices.len() - 1;
                indices[last] = indices[last].saturating_sub(1);
            }
        });
        self.inner.gather_rows(GatherRows { indices: &indices, ..op })
    }

    fn permute_columns(&mut self, op: PermuteColumns<'_, B::Memory>) -> Result<()> {
        let order = self.changed(op.order, op.order.rows() * op.order.cols(), |order| {
            if self.is(Fault::ColumnsSwapped) {
                order.swap(0, 1);
            }
        });
        self.inner.permute_columns(PermuteColumns { order: &order, ..op })
    }

    fn sample(&mut self, op: Sample<'_, B::Memory>) -> Result<()> {
        self.inner.sample(op)
    }
}
