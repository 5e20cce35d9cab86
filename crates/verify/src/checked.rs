//! A backend around another, which holds every op of a step against its reference, given the very arguments that the other had. So what
//! is wrong is found where it happens first, and nothing that follows from it hides it.

mod judge;
mod log;

use vllm_apple_ops::pool::Pool;
use vllm_apple_ops::*;

use crate::host_weight::HostWeight;
use crate::reference::{floats, integers};
use judge::Judge;
use log::Log;
pub use log::{Finding, OpRecord, Place};

/// The wrapper.
pub struct Checked<B> {
    inner: B,
    pool: Pool,
    /// The type of floats that lie in no file.
    copied: Option<DType>,
    log: Log,
    judging: bool,
    /// The other computes nothing: there is nothing to look at.
    noting: bool,
}

/// A weight of the other backend, and what it should be.
pub struct CheckedWeight<P> {
    inner: Weight<P>,
    host: HostWeight,
}

impl<B: Backend> Checked<B> {
    /// Around `inner`. `copied` is the type of the model's floats if they lie in no file: for the plan of the memory.
    pub fn new(inner: B, copied: Option<DType>) -> Self {
        let (pool, log) = (Pool::with_available_parallelism(), Log::default());
        Self { inner, pool, copied, log, judging: true, noting: false }
    }

    /// What the ops since the last call did, in their order.
    pub fn take_log(&mut self) -> Vec<OpRecord> {
        std::mem::take(&mut self.log).into_records()
    }

    /// Whether ops are held against their references from now on; their bits are noted in any case.
    pub fn set_judging(&mut self, judging: bool) {
        self.judging = judging;
    }

    /// Waits for what an op computed, unless it was noted alone.
    fn is_noted(&mut self) -> Result<bool> {
        if !self.noting {
            self.inner.synchronize()?;
        }
        Ok(self.noting)
    }

    fn judge(&self) -> Judge<'_, B> {
        Judge { backend: &self.inner, pool: &self.pool, judging: self.judging }
    }
}

impl<B: Backend> Backend for Checked<B> {
    type Memory = B::Memory;
    type Packed = CheckedWeight<B::Packed>;

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

    fn check_weight_format(&self, format: WeightFormat) -> Result<()> {
        self.inner.check_weight_format(format)
    }

    fn weight_bytes(&self, format: WeightFormat, groups: usize, rows: usize, cols: usize) -> u128 {
        let of_host = HostWeight::bytes(format, self.copied, groups, rows, cols);
        self.inner.weight_bytes(format, groups, rows, cols) + of_host
    }

    fn load_weight(&self, source: WeightSource<'_>, format: WeightFormat) -> Result<Weight<Self::Packed>> {
        let inner = self.inner.load_weight(source, format)?;
        let (groups, rows, cols) = (inner.groups(), inner.rows(), inner.cols());
        let host = HostWeight::new(&source, format)?;
        Ok(Weight::new(CheckedWeight { inner, host }, format, groups, rows, cols))
    }

    fn keeps_host_tensors(&self) -> bool {
        true
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

    fn check_step(&self, largest: &StepSize) -> Result<()> {
        self.inner.check_step(largest)
    }

    fn prepare(&mut self, step: &StepSize) -> Result<()> {
        self.inner.prepare(step)
    }

    fn scratch_bytes(&self, largest: &StepSize) -> u64 {
        self.inner.scratch_bytes(largest)
    }

    fn synchronize(&mut self) -> Result<()> {
        self.inner.synchronize()
    }

    fn can_note(&self) -> bool {
        self.inner.can_note()
    }

    fn note(&mut self) {
        self.noting = self.inner.can_note();
        self.inner.note();
    }

    fn prepare_noted(&mut self, on_progress: &mut dyn FnMut(usize, usize)) -> Result<()> {
        self.noting = false;
        self.inner.prepare_noted(on_progress)
    }

    fn test_noted(&mut self) -> Result<()> {
        self.inner.test_noted()
    }

    fn discard(&mut self) {
        self.inner.discard();
    }

    fn memory_limit(&self) -> Option<u64> {
        self.inner.memory_limit()
    }

    fn measured(&self) -> Option<Limits> {
        self.inner.measured()
    }

    fn choices(&self) -> Vec<(String, String)> {
        self.inner.choices()
    }

    fn take_traffic(&mut self) -> Option<Traffic> {
        self.inner.take_traffic()
    }

    fn embedding(&mut self, op: Embedding<'_, B::Memory, Self::Packed>) -> Result<()> {
        let Embedding { rows, ids, table, scale, out } = op;
        self.inner.embedding(Embedding { rows, ids, table: &table.packed().inner, scale, out })?;
        if self.is_noted()? {
            return Ok(());
        }
        let ids = integers(&self.inner, ids, rows);
        let finding = self.judge().embedding(&ids, &table.packed().host, scale, out);
        self.log.embedding(&self.inner, rows, out, finding);
        Ok(())
    }

    fn rms_norm(&mut self, op: RmsNorm<'_, B::Memory>) -> Result<()> {
        let RmsNorm { rows, x, weight, eps, out } = op;
        self.inner.rms_norm(RmsNorm { rows, x, weight, eps, out: &mut *out })?;
        if self.is_noted()? {
            return Ok(());
        }
        let x = floats(&self.inner, x, rows);
        let finding = self.judge().norm(&x, weight, eps, out);
        self.log.norm(&self.inner, rows, out, finding);
        Ok(())
    }

    fn add_rms_norm(&mut self, op: AddRmsNorm<'_, B::Memory>) -> Result<()> {
        let AddRmsNorm { rows, residual, delta, weight, eps, out } = op;
        let before = floats(&self.inner, residual, rows);
        let op = AddRmsNorm { rows, residual: &mut *residual, delta, weight, eps, out: &mut *out };
        self.inner.add_rms_norm(op)?;
        if self.is_noted()? {
            return Ok(());
        }
        let finding = self.judge().add_norm(&before, delta, weight, eps, residual, out);
        self.log.add_norm(&self.inner, rows, residual, out, finding);
        Ok(())
    }

    fn matmul(&mut self, op: Matmul<'_, B::Memory, Self::Packed>) -> Result<()> {
        let Matmul { rows, x, weight, bias, out, first } = op;
        let CheckedWeight { inner, host } = weight.packed();
        self.inner.matmul(Matmul { rows, x, weight: inner, bias, out: &mut *out, first })?;
        if self.is_noted()? {
            return Ok(());
        }
        let columns = first..first + weight.rows();
        let finding = self.judge().matmul(rows, x, host, bias, (&*out, columns.clone()));
        self.log.matmul(&self.inner, rows, (&*out, columns), finding);
        Ok(())
    }

    fn qk_norm(&mut self, op: QkNorm<'_, B::Memory>) -> Result<()> {
        let QkNorm { rows, qkv, num_heads, num_kv_heads, q_weight, k_weight, eps } = op;
        let before = floats(&self.inner, qkv, rows);
        self.inner.qk_norm(QkNorm { rows, qkv: &mut *qkv, num_heads, num_kv_heads, q_weight, k_weight, eps })?;
        if self.is_noted()? {
            return Ok(());
        }
        let op = QkNorm { rows, qkv: &mut *qkv, num_heads, num_kv_heads, q_weight, k_weight, eps };
        let finding = self.judge().qk_norm(&before, &op);
        self.log.in_layer(&self.inner, qk_norm::NAME, "norms of queries and keys", rows, qkv, finding);
        Ok(())
    }

    fn rope_kv_write(&mut self, op: RopeKvWrite<'_, B::Memory>) -> Result<()> {
        let RopeKvWrite { rows, qkv, num_heads, positions, slot_mapping, table, cache } = op;
        let before = floats(&self.inner, qkv, rows);
        let op = RopeKvWrite { rows, qkv: &mut *qkv, num_heads, positions, slot_mapping, table, cache: &mut *cache };
        self.inner.rope_kv_write(op)?;
        if self.is_noted()? {
            return Ok(());
        }
        let op = RopeKvWrite { rows, qkv, num_heads, positions, slot_mapping, table, cache };
        let (finding, bits) = self.judge().rope_kv_write(&before, &op);
        self.log.push(rope_kv_write::NAME, "rotation of queries and keys, write of keys and values", finding, bits);
        Ok(())
    }

    fn rope(&mut self, op: Rope<'_, B::Memory>) -> Result<()> {
        let Rope { rows, q, num_heads, positions, table } = op;
        let before = floats(&self.inner, q, rows);
        self.inner.rope(Rope { rows, q: &mut *q, num_heads, positions, table })?;
        if self.is_noted()? {
            return Ok(());
        }
        let op = Rope { rows, q: &mut *q, num_heads, positions, table };
        let finding = self.judge().rope(&before, &op);
        self.log.in_layer(&self.inner, rope::NAME, "rotation of queries", rows, q, finding);
        Ok(())
    }

    fn paged_attention(&mut self, op: PagedAttention<'_, B::Memory>) -> Result<()> {
        let PagedAttention { sequences, qkv, num_heads, scale, window, sinks, cache, out } = op;
        let op = PagedAttention { sequences, qkv, num_heads, scale, window, sinks, cache, out: &mut *out };
        self.inner.paged_attention(op)?;
        if self.is_noted()? {
            return Ok(());
        }
        let op = PagedAttention { sequences, qkv, num_heads, scale, window, sinks, cache, out: &mut *out };
        let finding = self.judge().paged_attention(&op);
        self.log.attention(&self.inner, sequences.num_tokens, out, finding);
        Ok(())
    }

    fn gated_activation(&mut self, op: GatedActivation<'_, B::Memory>) -> Result<()> {
        let GatedActivation { rows, activation, gate_up, out } = op;
        self.inner.gated_activation(GatedActivation { rows, activation, gate_up, out: &mut *out })?;
        if self.is_noted()? {
            return Ok(());
        }
        let gate_up = floats(&self.inner, gate_up, rows);
        let finding = self.judge().gated_activation(activation, &gate_up, out);
        self.log.gated_activation(&self.inner, rows, out, finding);
        Ok(())
    }

    fn gated_matmul(&mut self, op: GatedMatmul<'_, B::Memory, Self::Packed>) -> Result<()> {
        let GatedMatmul { rows, x, weight, bias, activation, gate_up, out } = op;
        let CheckedWeight { inner, host } = weight.packed();
        let op = GatedMatmul { rows, x, weight: inner, bias, activation, gate_up, out: &mut *out };
        self.inner.gated_matmul(op)?;
        if self.is_noted()? {
            return Ok(());
        }
        let finding = self.judge().gated_matmul(rows, x, host, bias, activation, out);
        self.log.gated_matmul(&self.inner, rows, out, finding);
        Ok(())
    }

    fn topk_softmax(&mut self, op: TopkSoftmax<'_, B::Memory>) -> Result<()> {
        let TopkSoftmax { rows, logits, renormalize, ids, weights } = op;
        let op = TopkSoftmax { rows, logits, renormalize, ids: &mut *ids, weights: &mut *weights };
        self.inner.topk_softmax(op)?;
        if self.is_noted()? {
            return Ok(());
        }
        let op = TopkSoftmax { rows, logits, renormalize, ids: &mut *ids, weights: &mut *weights };
        let finding = self.judge().topk_softmax(&op);
        self.log.in_layer(&self.inner, topk_softmax::NAME, "choice of experts", rows, weights, finding);
        Ok(())
    }

    fn grouped_matmul(&mut self, op: GroupedMatmul<'_, B::Memory, Self::Packed>) -> Result<()> {
        let GroupedMatmul { tokens, pairs_per_row, x, ids, weight, bias, out, first } = op;
        let CheckedWeight { inner, host } = weight.packed();
        let op = GroupedMatmul { tokens, pairs_per_row, x, ids, weight: inner, bias, out: &mut *out, first };
        self.inner.grouped_matmul(op)?;
        if self.is_noted()? {
            return Ok(());
        }
        let op = GroupedMatmul { tokens, pairs_per_row, x, ids, weight: inner, bias, out: &mut *out, first };
        let finding = self.judge().grouped_matmul(&op, host);
        let columns = first..first + weight.rows();
        self.log.grouped_matmul(&self.inner, tokens * ids.cols(), (&*out, columns), finding);
        Ok(())
    }

    fn moe_combine(&mut self, op: MoeCombine<'_, B::Memory>) -> Result<()> {
        let MoeCombine { rows, x, weights, out } = op;
        self.inner.moe_combine(MoeCombine { rows, x, weights, out: &mut *out })?;
        if self.is_noted()? {
            return Ok(());
        }
        let op = MoeCombine { rows, x, weights, out: &mut *out };
        let finding = self.judge().moe_combine(&op);
        self.log.in_layer(&self.inner, moe_combine::NAME, "sum over experts", rows, out, finding);
        Ok(())
    }

    fn add_shared_expert(&mut self, op: AddSharedExpert<'_, B::Memory>) -> Result<()> {
        let AddSharedExpert { rows, x, gate, out } = op;
        let before = floats(&self.inner, out, rows);
        self.inner.add_shared_expert(AddSharedExpert { rows, x, gate, out: &mut *out })?;
        if self.is_noted()? {
            return Ok(());
        }
        let op = AddSharedExpert { rows, x, gate, out: &mut *out };
        let finding = self.judge().add_shared_expert(&before, &op);
        self.log.in_layer(&self.inner, add_shared_expert::NAME, "addition of the shared expert", rows, out, finding);
        Ok(())
    }

    fn gather_rows(&mut self, op: GatherRows<'_, B::Memory>) -> Result<()> {
        let GatherRows { rows, x, indices, out } = op;
        self.inner.gather_rows(GatherRows { rows, x, indices, out: &mut *out })?;
        if self.is_noted()? {
            return Ok(());
        }
        let op = GatherRows { rows, x, indices, out: &mut *out };
        let finding = self.judge().gather_rows(&op);
        self.log.gather_rows(&self.inner, rows, out, finding);
        Ok(())
    }

    fn permute_columns(&mut self, op: PermuteColumns<'_, B::Memory>) -> Result<()> {
        let PermuteColumns { rows, x, order, ids, out } = op;
        self.inner.permute_columns(PermuteColumns { rows, x, order, ids, out: &mut *out })?;
        if self.is_noted()? {
            return Ok(());
        }
        let op = PermuteColumns { rows, x, order, ids, out: &mut *out };
        let (finding, rows) = (self.judge().permute_columns(&op), rows * op.top_k());
        self.log.in_layer(&self.inner, permute_columns::NAME, "order of a projection's inputs", rows, out, finding);
        Ok(())
    }

    /// Judged by its own checks, not here: a token is right or wrong whatever the model.
    fn sample(&mut self, op: Sample<'_, B::Memory>) -> Result<()> {
        self.inner.sample(op)
    }
}
