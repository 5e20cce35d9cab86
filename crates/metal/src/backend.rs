//! A GPU as a [`Backend`]: memory, pipelines and the step's commands. The ops are in files of their own.

use vllm_apple_ops::*;

use crate::arena::Arena;
use crate::checkpoint_memory::CheckpointMemory;
use crate::gpu::Gpu;
use crate::hazards::Hazards;
use crate::memory::Region;
use crate::options::MetalOptions;
use crate::pipelines::Pipelines;
use crate::weight::PackedWeight;

/// Records ops as commands, and runs them all in [`Backend::finish`].
pub struct MetalBackend<G: Gpu> {
    pub(crate) gpu: G,
    pub(crate) pipelines: Pipelines<G>,
    pub(crate) hazards: Hazards,
    pub(crate) arena: Arena<G>,
    options: MetalOptions,
    pub(crate) checkpoints: CheckpointMemory<G>,
    /// Commands are recorded that have not run.
    pub(crate) pending: bool,
}

impl<G: Gpu> MetalBackend<G> {
    /// A backend on this device.
    ///
    /// # Errors
    /// What the device says.
    pub fn new(gpu: G, options: MetalOptions) -> Result<Self> {
        let arena = Arena::new(options.scratch_pool);
        Ok(Self {
            gpu,
            pipelines: Pipelines::new(),
            hazards: Hazards::default(),
            arena,
            checkpoints: CheckpointMemory::new(),
            options,
            pending: false,
        })
    }

    /// The device.
    pub fn gpu(&self) -> &G {
        &self.gpu
    }

    /// `len` zero bytes in a buffer of their own.
    pub(crate) fn region(&self, len: usize, purpose: &str) -> Result<Region<G>> {
        // Devices have no empty buffers.
        let buffer = self.gpu.allocate(len.max(1), purpose).map_err(|e| self.error(e))?;
        Ok(Region::whole(buffer, len))
    }

    /// Runs what is recorded and waits. Whether that works or not, nothing is recorded afterwards.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.hazards.clear();
        if !std::mem::take(&mut self.pending) {
            return Ok(());
        }
        self.gpu.submit().map_err(|e| self.error(e))
    }

    /// The content of a region.
    pub(crate) fn bytes<'a>(&self, region: &'a Region<G>) -> &'a [u8] {
        &self.gpu.bytes(&region.buffer)[region.offset..][..region.len]
    }

    pub(crate) fn missing(&self, op: &'static str) -> Error {
        let reason = "it has no kernel".to_owned();
        Error::Unsupported { device: self.gpu.facts().backend.into(), op, reason }
    }
}

impl<G: Gpu> Backend for MetalBackend<G> {
    type Memory = Region<G>;
    type Packed = PackedWeight<G>;

    fn device(&self) -> DeviceInfo {
        let facts = self.gpu.facts();
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
        let rows = [
            ("recommended working set", gib(facts.max_working_set)),
            ("longest buffer", gib(facts.max_buffer)),
            ("families", facts.families.join(", ")),
            ("native bfloat16", if facts.native_bf16 { "yes" } else { "no" }.to_owned()),
        ];
        let facts_for_people = rows.map(|(name, value)| (name.to_owned(), value)).to_vec();
        DeviceInfo { backend: facts.backend, description: facts.name.clone(), facts: facts_for_people }
    }

    fn allocate(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Region<G>>> {
        let bytes = rows.saturating_mul(cols).saturating_mul(dtype.size());
        let region = self.region(bytes, &format!("a tensor {dtype} [{rows}, {cols}]"))?;
        Ok(Tensor::new(region, dtype, rows, cols))
    }

    fn check_kv_cache(&self, spec: &KvSpec) -> Result<()> {
        crate::kv_layout::KvLayout::new(spec, self.gpu.facts().backend).map(drop)
    }

    fn allocate_kv_cache(&self, spec: KvSpec) -> Result<KvCache<Region<G>>> {
        self.check_kv_cache(&spec)?;
        let half = || self.region(spec.bytes() / 2, "the KV cache of a layer; use a smaller --kv-cache-memory");
        Ok(KvCache { keys: half()?, values: half()?, spec })
    }

    fn load_weight(
        &self,
        name: &str,
        dtype: DType,
        groups: usize,
        parts: &[HostTensor<'_>],
    ) -> Result<Weight<PackedWeight<G>>> {
        crate::weight::load(self, name, dtype, groups, parts)
    }

    fn keeps_host_tensors(&self) -> bool {
        self.checkpoints.in_use()
    }

    fn write(&self, tensor: &mut Tensor<Region<G>>, bytes: &[u8]) {
        debug_assert!(!self.pending, "recorded commands would see the new content");
        let region = tensor.memory();
        assert!(bytes.len() <= region.len);
        // SAFETY: the tensor is borrowed exclusively, its region overlaps no other, and no command is waiting.
        let all = unsafe { self.gpu.bytes_mut(&region.buffer) };
        all[region.offset..][..bytes.len()].copy_from_slice(bytes);
    }

    fn read<'a>(&self, tensor: &'a Tensor<Region<G>>) -> &'a [u8] {
        self.bytes(tensor.memory())
    }

    fn read_kv(&self, cache: &KvCache<Region<G>>, slot: usize) -> (Vec<f32>, Vec<f32>) {
        crate::kv_layout::read(self, cache, slot)
    }

    fn check_step(&self, largest: &StepSize) -> Result<()> {
        let (tokens, limit) = (largest.num_tokens, self.options.max_batch_size);
        let device = self.gpu.facts().backend;
        if tokens > limit {
            let reason = format!(
                "{tokens} tokens, VLLM_METAL_MAX_BATCH_SIZE allows {limit}: set --max-num-batched-tokens to at most that, or \
                 raise it"
            );
            return Err(Error::Unsupported { device: device.into(), op: "a step", reason });
        }
        self.arena.check(largest, device).map(drop)
    }

    fn prepare(&mut self, step: &StepSize) -> Result<()> {
        debug_assert!(!self.pending, "scratch grows between steps");
        if let Some(report) = self.checkpoints.report() {
            tracing::info!("weights: {report}");
        }
        self.check_step(step)?;
        self.prepare_arena(step)
    }

    fn scratch_bytes(&self, largest: &StepSize) -> u64 {
        // What is above the limit is refused by `check_step`.
        self.arena.check(largest, self.gpu.facts().backend).unwrap_or(0) as u64
    }

    fn finish(&mut self) -> Result<()> {
        self.flush()
    }

    fn discard(&mut self) {
        self.gpu.discard();
        self.hazards.clear();
        self.pending = false;
    }

    fn memory_limit(&self) -> Option<u64> {
        Some(self.gpu.facts().max_working_set)
    }

    fn host_parallel(&self, n: usize, f: &(dyn Fn(usize) + Sync)) {
        (0..n).for_each(f);
    }

    fn embedding(&mut self, op: Embedding<'_, Self>) -> Result<()> {
        crate::embedding::run(self, &op)
    }

    fn rms_norm(&mut self, op: RmsNorm<'_, Self>) -> Result<()> {
        crate::rms_norm::run(self, &op)
    }

    fn add_rms_norm(&mut self, op: AddRmsNorm<'_, Self>) -> Result<()> {
        crate::add_rms_norm::run(self, &op)
    }

    fn matmul(&mut self, op: Matmul<'_, Self>) -> Result<()> {
        crate::matmul::run(self, &op)
    }

    fn qk_norm(&mut self, op: QkNorm<'_, Self>) -> Result<()> {
        crate::qk_norm::run(self, &op)
    }

    fn rope_kv_write(&mut self, op: RopeKvWrite<'_, Self>) -> Result<()> {
        crate::rope_kv_write::run(self, &op)
    }

    fn rope(&mut self, op: Rope<'_, Self>) -> Result<()> {
        crate::rope::run(self, &op)
    }

    fn paged_attention(&mut self, op: PagedAttention<'_, Self>) -> Result<()> {
        crate::paged_attention::run(self, &op)
    }

    fn silu_mul(&mut self, op: SiluMul<'_, Self>) -> Result<()> {
        crate::silu_mul::run(self, &op)
    }

    fn topk_softmax(&mut self, op: TopkSoftmax<'_, Self>) -> Result<()> {
        crate::topk_softmax::run(self, &op)
    }

    fn grouped_matmul(&mut self, op: GroupedMatmul<'_, Self>) -> Result<()> {
        crate::grouped_matmul::run(self, &op)
    }

    fn moe_combine(&mut self, op: MoeCombine<'_, Self>) -> Result<()> {
        crate::moe_combine::run(self, &op)
    }

    fn add_shared_expert(&mut self, op: AddSharedExpert<'_, Self>) -> Result<()> {
        crate::add_shared_expert::run(self, &op)
    }

    fn gather_rows(&mut self, op: GatherRows<'_, Self>) -> Result<()> {
        crate::gather_rows::run(self, &op)
    }

    fn copy_blocks(&mut self, op: CopyBlocks<'_, Self>) -> Result<()> {
        crate::copy_blocks::run(self, &op)
    }
}
