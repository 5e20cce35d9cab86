//! The CPU as a [`Backend`]: memory, threads and scratch. The ops are in files of their own.

use std::num::NonZeroUsize;

use vllm_apple_ops::*;

use crate::isa::Isa;
use crate::kv_layout::KvLayout;
use crate::matmul::{Columns, Gated, Matmuls, Pairs};
use crate::memory::{Memory, elements, elements_mut};
use crate::pack::PackedMatrix;
use crate::paged_attention::Attention;
use crate::sample::Sampling;
use crate::simd::{Dispatch, with_float};
use crate::weight_memory::WeightMemory;
use vllm_apple_ops::pool::Pool;

/// Computes ops at once, on all its threads.
pub struct CpuBackend {
    pub(crate) pool: Pool,
    pub(crate) dispatch: Dispatch,
    pub(crate) attention: Attention,
    pub(crate) sampling: Sampling,
    matmuls: Matmuls,
    weights: WeightMemory,
    limits: Option<Limits>,
}

impl CpuBackend {
    /// A backend of so many threads, or one per core that this process may use, with the machine's best instructions.
    #[must_use]
    pub fn new(threads: Option<usize>) -> Self {
        Self::with_isa(threads, Isa::best())
    }

    /// As [`CpuBackend::new`], with the instructions of `isa`.
    ///
    /// # Panics
    /// If the machine does not have them.
    #[must_use]
    pub fn with_isa(threads: Option<usize>, isa: Isa) -> Self {
        let pool = match threads.and_then(NonZeroUsize::new) {
            Some(threads) => Pool::new(threads),
            None => Pool::with_available_parallelism(),
        };
        let (attention, sampling) = (Attention::new(pool.threads(), isa), Sampling::new(pool.threads()));
        Self {
            pool,
            dispatch: Dispatch::new(isa),
            attention,
            sampling,
            matmuls: Matmuls::new(isa),
            weights: WeightMemory::default(),
            limits: None,
        }
    }

    /// What was measured of it: steps are divided by it.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = Some(limits);
    }

    /// The threads, for measurements and tests.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.dispatch.isa()
    }
}

/// The machine's memory in GiB, if it can be read.
fn memory_size() -> Option<f64> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    Some(system.total_memory() as f64 / (1u64 << 30) as f64)
}

/// The processor's name, if it can be read.
fn processor() -> Option<String> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
    system.cpus().first().map(|cpu| cpu.brand().trim().to_owned()).filter(|name| !name.is_empty())
}

impl Backend for CpuBackend {
    type Memory = Memory;
    type Packed = PackedMatrix;

    fn measured(&self) -> Option<Limits> {
        self.limits
    }

    fn device(&self) -> DeviceInfo {
        let description = format!("{} threads, {}", self.pool.threads(), self.isa());
        let instructions: Vec<String> = Isa::available().iter().map(ToString::to_string).collect();
        let memory = memory_size().map_or("unknown".to_owned(), |gib| format!("{gib:.1} GiB"));
        let facts = vec![
            ("processor".to_owned(), processor().unwrap_or_else(|| "unknown".to_owned())),
            ("memory".to_owned(), memory),
            ("threads".to_owned(), self.pool.threads().to_string()),
            ("instruction sets".to_owned(), instructions.join(", ")),
        ];
        DeviceInfo { backend: "cpu", description, facts }
    }

    fn allocate(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Memory>> {
        let bytes = rows.saturating_mul(cols).saturating_mul(dtype.size());
        let memory = Memory::zeroed(bytes, &format!("a tensor {dtype} [{rows}, {cols}]"))?;
        Ok(Tensor::new(memory, dtype, rows, cols))
    }

    fn check_kv_cache(&self, spec: &KvSpec) -> Result<()> {
        KvLayout::new(spec).map(drop)
    }

    fn allocate_kv_cache(&self, spec: KvSpec) -> Result<KvCache<Memory>> {
        self.check_kv_cache(&spec)?;
        let half = || Memory::zeroed(spec.bytes() / 2, "the KV cache of a layer; use a smaller `kv_cache_memory`");
        Ok(KvCache { keys: half()?, values: half()?, spec })
    }

    fn check_weight_format(&self, format: WeightFormat) -> Result<()> {
        crate::pack::check_format(format)
    }

    fn weight_bytes(&self, format: WeightFormat, groups: usize, rows: usize, cols: usize) -> u128 {
        crate::pack::bytes(format, groups, rows, cols)
    }

    fn load_weight(&self, source: WeightSource<'_>, format: WeightFormat) -> Result<Weight<PackedMatrix>> {
        let packed = PackedMatrix::pack(&self.pool, &self.weights, source, format)?;
        let (rows, cols) = (packed.n(), packed.k());
        Ok(Weight::new(packed, format, source.groups, rows, cols))
    }

    fn write(&self, tensor: &mut Tensor<Memory>, bytes: &[u8]) {
        tensor.memory_mut().bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    }

    fn read<'a>(&self, tensor: &'a Tensor<Memory>) -> &'a [u8] {
        tensor.memory().bytes()
    }

    fn read_kv(&self, cache: &KvCache<Memory>, slot: usize) -> (Vec<f32>, Vec<f32>) {
        let KvSpec { head_dim, num_kv_heads, dtype, .. } = cache.spec;
        let layout = KvLayout::new(&cache.spec).expect("checked when it was allocated");
        let get = |memory: &Memory, at: usize| {
            let bytes = &memory.bytes()[at * dtype.size()..][..dtype.size()];
            dtype.decode(bytes)[0]
        };
        let elements = || (0..num_kv_heads).flat_map(|h| (0..head_dim).map(move |d| (h, d)));
        let keys = elements().map(|(h, d)| get(&cache.keys, layout.key(slot, h, d))).collect();
        let values = elements().map(|(h, d)| get(&cache.values, layout.value(slot, h, d))).collect();
        (keys, values)
    }

    fn prepare(&mut self, step: &StepSize) -> Result<()> {
        self.matmuls.reserve(step, self.pool.threads())?;
        self.attention.reserve(step);
        self.sampling.reserve(step.model.vocab_size);
        Ok(())
    }

    fn scratch_bytes(&self, largest: &StepSize) -> u64 {
        let sampling = self.sampling.bytes(largest.model.vocab_size);
        (self.matmuls.bytes(largest, self.pool.threads()) + self.attention.bytes(largest) + sampling) as u64
    }

    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }

    fn embedding(&mut self, op: Embedding<'_, Self::Memory, Self::Packed>) -> Result<()> {
        crate::embedding::run(self, op)
    }

    fn rms_norm(&mut self, op: RmsNorm<'_, Self::Memory>) -> Result<()> {
        with_float!(op.out.dtype(), T => crate::rms_norm::run::<T>(self, op));
        Ok(())
    }

    fn add_rms_norm(&mut self, op: AddRmsNorm<'_, Self::Memory>) -> Result<()> {
        with_float!(op.out.dtype(), T => crate::add_rms_norm::run::<T>(self, op));
        Ok(())
    }

    fn matmul(&mut self, op: Matmul<'_, Self::Memory, Self::Packed>) -> Result<()> {
        let bias = op.bias.map(|bias| elements(bias, 1));
        let (cols, first) = (op.out.cols(), op.first);
        let out = Columns { out: elements_mut(op.out, op.rows), cols, first };
        self.matmuls.columns(&self.pool, op.weight.packed(), op.x.memory().bytes(), bias, out);
        Ok(())
    }

    fn qk_norm(&mut self, op: QkNorm<'_, Self::Memory>) -> Result<()> {
        crate::qk_norm::run(self, op);
        Ok(())
    }

    fn rope_kv_write(&mut self, op: RopeKvWrite<'_, Self::Memory>) -> Result<()> {
        with_float!(op.cache.spec.dtype, T => crate::rope_kv_write::run::<T>(self, op))
    }

    fn rope(&mut self, op: Rope<'_, Self::Memory>) -> Result<()> {
        crate::rope::run(self, op)
    }

    fn paged_attention(&mut self, op: PagedAttention<'_, Self::Memory>) -> Result<()> {
        with_float!(op.cache.spec.dtype, T => crate::paged_attention::run::<T>(self, op))
    }

    fn gated_activation(&mut self, op: GatedActivation<'_, Self::Memory>) -> Result<()> {
        with_float!(op.out.dtype(), T => crate::gated_activation::run::<T>(self, op));
        Ok(())
    }

    fn gated_matmul(&mut self, op: GatedMatmul<'_, Self::Memory, Self::Packed>) -> Result<()> {
        let weight = op.weight.packed();
        if !self.matmuls.gains_from_gated(weight, op.rows) {
            return op.run_apart(self);
        }
        let bias = op.bias.map(|bias| elements(bias, 1));
        let (dtype, cols) = (op.out.dtype(), op.out.cols());
        let out = &mut op.out.memory_mut().bytes_mut()[..op.rows * cols * dtype.size()];
        let gated = Gated::new(op.activation, dtype, out);
        self.matmuls.gated(&self.pool, weight, op.x.memory().bytes(), bias, elements_mut(op.gate_up, op.rows), gated);
        Ok(())
    }

    fn topk_softmax(&mut self, op: TopkSoftmax<'_, Self::Memory>) -> Result<()> {
        crate::topk_softmax::run(self, op);
        Ok(())
    }

    fn grouped_matmul(&mut self, op: GroupedMatmul<'_, Self::Memory, Self::Packed>) -> Result<()> {
        let ids = elements(op.ids, op.tokens);
        let bias = op.bias.map(|bias| elements(bias, op.weight.groups()));
        let (cols, first) = (op.out.cols(), op.first);
        let out = Columns { out: elements_mut(op.out, ids.len()), cols, first };
        let pairs = Pairs { ids, per_row: op.pairs_per_row };
        self.matmuls.grouped(&self.pool, op.weight.packed(), op.x.memory().bytes(), pairs, bias, out);
        Ok(())
    }

    fn moe_combine(&mut self, op: MoeCombine<'_, Self::Memory>) -> Result<()> {
        crate::moe_combine::run(self, op);
        Ok(())
    }

    fn add_shared_expert(&mut self, op: AddSharedExpert<'_, Self::Memory>) -> Result<()> {
        crate::add_shared_expert::run(self, op);
        Ok(())
    }

    fn gather_rows(&mut self, op: GatherRows<'_, Self::Memory>) -> Result<()> {
        crate::gather_rows::run(self, op);
        Ok(())
    }

    fn permute_columns(&mut self, op: PermuteColumns<'_, Self::Memory>) -> Result<()> {
        match op.x.dtype().size() {
            4 => crate::permute_columns::run::<u32>(self, op),
            _ => crate::permute_columns::run::<u16>(self, op),
        }
        Ok(())
    }

    fn sample(&mut self, op: Sample<'_, Self::Memory>) -> Result<()> {
        crate::sample::run(self, op)
    }
}
