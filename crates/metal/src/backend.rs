//! A GPU as a [`Backend`]: memory, pipelines and the step's commands. The ops are in files of their own.

use vllm_apple_cpu::pool::Pool;
use vllm_apple_ops::*;

use crate::arena::Arena;
use crate::checkpoint_memory::CheckpointMemory;
use crate::gpu::{Gpu, GpuError};
use crate::hazards::Hazards;
use crate::host;
use crate::memory::Region;
use crate::options::MetalOptions;
use crate::pipelines::Pipelines;
use crate::routing::{self, Routes};
use crate::weight::PackedWeight;

/// Records ops as commands, and runs them all in [`Backend::finish`].
pub struct MetalBackend<G: Gpu> {
    pub(crate) gpu: G,
    pub(crate) pipelines: Pipelines<G>,
    pub(crate) hazards: Hazards,
    pub(crate) arena: Arena<G>,
    pub(crate) routes: Routes,
    options: MetalOptions,
    pub(crate) checkpoints: CheckpointMemory<G>,
    /// Threads of host work.
    pool: Pool,
    /// The device is lost, in its own words.
    lost: Option<String>,
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
        let routes = Routes::new(&options);
        let pool = Pool::with_available_parallelism();
        let (pipelines, hazards) = (Pipelines::new(), Hazards::default());
        let checkpoints = CheckpointMemory::new();
        Ok(Self { gpu, pipelines, hazards, arena, routes, options, checkpoints, pool, lost: None, pending: false })
    }

    /// Goes on under other options, as if no op had failed. What is compiled stays.
    pub fn set_options(&mut self, options: MetalOptions) {
        self.arena = Arena::new(options.scratch_pool);
        self.routes = Routes::new(&options);
        self.options = options;
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
            return self.alive();
        }
        self.gpu.submit().map_err(|e| self.failed(e))
    }

    /// Takes in that the device failed.
    pub(crate) fn failed(&mut self, error: GpuError) -> Error {
        if let GpuError::Lost(reason) = &error {
            self.lost.get_or_insert_with(|| reason.clone());
        }
        self.error(error)
    }

    /// # Errors
    /// [`Error::Device`] once the device is lost.
    pub(crate) fn alive(&self) -> Result<()> {
        match &self.lost {
            None => Ok(()),
            Some(reason) => Err(self.error(GpuError::Lost(reason.clone()))),
        }
    }

    /// The content of a region, to change while nothing is recorded.
    pub(crate) fn bytes_mut<'a>(&self, region: &'a mut Region<G>) -> &'a mut [u8] {
        assert!(!self.pending, "recorded commands would see the new content");
        // SAFETY: the region is borrowed exclusively, its buffer's other regions are not read at the same time, and no command is
        // waiting.
        let all = unsafe { self.gpu.bytes_mut(&region.buffer) };
        &mut all[region.offset..][..region.len]
    }

    /// The content of a region.
    pub(crate) fn bytes<'a>(&self, region: &'a Region<G>) -> &'a [u8] {
        &self.gpu.bytes(&region.buffer)[region.offset..][..region.len]
    }
}

/// A size for people.
fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

impl<G: Gpu> Backend for MetalBackend<G> {
    type Memory = Region<G>;
    type Packed = PackedWeight<G>;

    fn device(&self) -> DeviceInfo {
        let facts = self.gpu.facts();
        let rows = [
            ("memory", gib(facts.memory)),
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
        match crate::paged_attention::check(spec) {
            Err(reason) => self.routes.check_fallback("paged_attention", self.gpu.facts().backend, reason),
            Ok(()) => Ok(()),
        }
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
        self.bytes_mut(tensor.memory_mut())[..bytes.len()].copy_from_slice(bytes);
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
        self.routes.begin_step(!self.options.prefill && step.max_query_len > 1);
        self.prepare_arena(step)
    }

    fn scratch_bytes(&self, largest: &StepSize) -> u64 {
        // What is above the limit is refused by `check_step`.
        self.arena.check(largest, self.gpu.facts().backend).unwrap_or(0) as u64
    }

    fn finish(&mut self) -> Result<()> {
        self.routes.begin_step(false);
        self.flush()
    }

    fn records(&self) -> bool {
        // What is on the host is computed at once, and slow.
        self.options.prefill && self.fallbacks().is_empty()
    }

    fn discard(&mut self) {
        self.gpu.discard();
        self.hazards.clear();
        self.routes.begin_step(false);
        self.pending = false;
    }

    fn memory_limit(&self) -> Option<u64> {
        Some(self.gpu.facts().max_working_set)
    }

    fn host_parallel(&self, n: usize, f: &(dyn Fn(usize) + Sync)) {
        self.pool.run(n, &|i, _| f(i));
    }

    fn choices(&self) -> Vec<(String, String)> {
        let fallbacks = self.fallbacks();
        let place = |reason: Option<&str>| reason.map_or("on the device".to_owned(), |r| format!("on the host: {r}"));
        let attention = fallbacks.iter().find(|(op, _)| *op == "paged_attention").map(|(_, reason)| &reason[..]);
        let prefill = (!self.options.prefill).then_some("VLLM_APPLE_ENGINE_PREFILL=0");
        let scratch = self.options.scratch_pool.map_or("as much as steps need".to_owned(), |bytes| gib(bytes as u64));
        let matmul = match self.gpu.facts().native_bf16 {
            true => "native in matmul",
            false => "emulated in matmul (--dtype float16 may be faster)",
        };
        let mut rows = vec![
            ("bfloat16", format!("{matmul}, widened to float32 elsewhere")),
            ("most tokens in a step", format!("{} (VLLM_METAL_MAX_BATCH_SIZE)", self.options.max_batch_size)),
            ("most scratch of the ops", format!("{scratch} (VLLM_METAL_SCRATCH_POOL_MB)")),
            ("attention", place(attention)),
            ("prefill", place(prefill)),
        ];
        if fallbacks.is_empty() {
            rows.push(("ops on the host", "none".to_owned()));
        }
        rows.extend(fallbacks.iter().map(|(op, reason)| (*op, place(Some(reason)))));
        rows.into_iter().map(|(what, choice)| (what.to_owned(), choice)).collect()
    }

    fn take_traffic(&mut self) -> Option<Traffic> {
        self.gpu.take_traffic()
    }

    fn embedding(&mut self, op: Embedding<'_, Self::Memory, Self::Packed>) -> Result<()> {
        routing::run(self, "embedding", op, crate::embedding::run, host::embedding)
    }

    fn rms_norm(&mut self, op: RmsNorm<'_, Self::Memory>) -> Result<()> {
        routing::run(self, "rms_norm", op, crate::rms_norm::run, host::rms_norm)
    }

    fn add_rms_norm(&mut self, op: AddRmsNorm<'_, Self::Memory>) -> Result<()> {
        routing::run(self, "add_rms_norm", op, crate::add_rms_norm::run, host::add_rms_norm)
    }

    fn matmul(&mut self, op: Matmul<'_, Self::Memory, Self::Packed>) -> Result<()> {
        routing::run(self, "matmul", op, crate::matmul::run, host::matmul)
    }

    fn qk_norm(&mut self, op: QkNorm<'_, Self::Memory>) -> Result<()> {
        routing::run(self, "qk_norm", op, crate::qk_norm::run, host::qk_norm)
    }

    fn rope_kv_write(&mut self, op: RopeKvWrite<'_, Self::Memory>) -> Result<()> {
        routing::run(self, "rope_kv_write", op, crate::rope_kv_write::run, host::rope_kv_write)
    }

    fn rope(&mut self, op: Rope<'_, Self::Memory>) -> Result<()> {
        routing::run(self, "rope", op, crate::rope::run, host::rope)
    }

    fn paged_attention(&mut self, op: PagedAttention<'_, Self::Memory>) -> Result<()> {
        routing::run(self, "paged_attention", op, crate::paged_attention::run, host::paged_attention)
    }

    fn silu_mul(&mut self, op: SiluMul<'_, Self::Memory>) -> Result<()> {
        routing::run(self, "silu_mul", op, crate::silu_mul::run, host::silu_mul)
    }

    fn topk_softmax(&mut self, op: TopkSoftmax<'_, Self::Memory>) -> Result<()> {
        routing::run(self, "topk_softmax", op, crate::topk_softmax::run, host::topk_softmax)
    }

    fn grouped_matmul(&mut self, op: GroupedMatmul<'_, Self::Memory, Self::Packed>) -> Result<()> {
        routing::run(self, "grouped_matmul", op, crate::grouped_matmul::run, host::grouped_matmul)
    }

    fn moe_combine(&mut self, op: MoeCombine<'_, Self::Memory>) -> Result<()> {
        routing::run(self, "moe_combine", op, crate::moe_combine::run, host::moe_combine)
    }

    fn add_shared_expert(&mut self, op: AddSharedExpert<'_, Self::Memory>) -> Result<()> {
        routing::run(self, "add_shared_expert", op, crate::add_shared_expert::run, host::add_shared_expert)
    }

    fn gather_rows(&mut self, op: GatherRows<'_, Self::Memory>) -> Result<()> {
        routing::run(self, "gather_rows", op, crate::gather_rows::run, host::gather_rows)
    }

    fn samples(&self) -> bool {
        self.routes.on_device("sample")
    }

    fn sample(&mut self, op: Sample<'_, Self::Memory>) -> Result<()> {
        routing::run(self, "sample", op, crate::sample::run, host::sample)
    }
}
