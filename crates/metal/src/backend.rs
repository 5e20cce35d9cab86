//! A GPU as a [`Backend`]: the one place that names every op, and says whether device or host computes it.

mod own_sizes;
mod self_test;

use vllm_apple_ops::pool::Pool;
use vllm_apple_ops::*;

use crate::fallback::{self, Fallback, Host, Why, is_heavy};
use crate::gpu::Gpu;
use crate::options::MetalOptions;
use crate::recorder::Recorder;
use crate::recorder::arena::Lens;
use crate::recorder::pace::Pace;
use crate::recorder::region::Region;
use crate::weight::PackedWeight;
use crate::weight::checkpoint_memory::CheckpointMemory;
use crate::{ops, weight};
use own_sizes::OwnSizes;

/// Records ops as commands, and runs them all in [`Backend::synchronize`].
pub struct MetalBackend<G: Gpu> {
    pub(crate) recorder: Recorder<G>,
    fallback: Fallback,
    options: MetalOptions,
    pub(crate) checkpoints: CheckpointMemory<G>,
    /// What the model needs at its own sizes, from noting until its test.
    own_sizes: Option<OwnSizes<G>>,
    /// Whatever it computes is taken as right.
    is_right: bool,
    /// Threads of host work.
    pool: Pool,
}

impl<G: Gpu> MetalBackend<G> {
    /// A backend on this device.
    ///
    /// # Errors
    /// What the device says.
    pub fn new(gpu: G, options: MetalOptions) -> Result<Self> {
        Ok(Self {
            recorder: Recorder::new(gpu, options.scratch_pool),
            fallback: Fallback::new(&options),
            options,
            checkpoints: CheckpointMemory::new(),
            own_sizes: None,
            is_right: false,
            pool: Pool::with_available_parallelism(),
        })
    }

    /// Goes on under other options, as if no op had failed. What is compiled stays.
    pub fn set_options(&mut self, options: MetalOptions) {
        self.recorder.set_scratch_limit(options.scratch_pool);
        self.fallback = Fallback::new(&options);
        self.options = options;
    }

    /// Steps are divided for a device with these limits from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.recorder.pace.set_limits(limits);
    }

    /// The host computes whatever the device refuses, however long it takes: for tests.
    #[cfg(any(test, feature = "fake"))]
    pub fn allow_all_on_host(&mut self) {
        self.fallback.be_patient();
    }

    /// What the device computes is not held against anything: for tests with one that computes nothing.
    #[cfg(any(test, feature = "fake"))]
    pub fn take_as_right(&mut self) {
        self.is_right = true;
    }

    /// The device, to change what it is between steps: for tests.
    #[cfg(any(test, feature = "fake"))]
    pub fn gpu_mut(&mut self) -> &mut G {
        &mut self.recorder.gpu
    }

    /// The device.
    pub fn gpu(&self) -> &G {
        &self.recorder.gpu
    }

    /// Pipelines that are compiled, and functions that they are of.
    pub fn num_pipelines(&self) -> (usize, usize) {
        self.recorder.pipelines.count()
    }

    /// Functions that the device has refused and that others with the same bits are in the place of, each with the device's words.
    pub fn replaced(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.recorder.replaced()
    }

    /// The threads of what the host computes, for tests.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What the host computes, or has computed, though the user did not ask for it, each with the reason.
    pub fn fallbacks(&self) -> Vec<(Kind, String)> {
        self.fallback.list()
    }

    /// Where ops of this kind are noted for their test, if they are and the device is to compute them.
    fn own_sizes_of(&mut self, kind: &Kind) -> Option<&mut OwnSizes<G>> {
        let may_ask = self.fallback.may_ask(kind);
        self.own_sizes.as_mut().filter(|_| may_ask)
    }

    /// Computes an op: on the device, or, where it cannot or must not, on the host after everything that is recorded. On the device
    /// an op that refuses must have changed nothing that it reads. What is noted is not computed anywhere.
    fn compute<O>(
        &mut self,
        kind: Kind,
        op: O,
        on_device: impl FnOnce(&mut Recorder<G>, &O) -> Result<()>,
        on_host: impl FnOnce(&Host<'_, G>, O) -> Result<()>,
    ) -> Result<()> {
        if self.fallback.may_ask(&kind) {
            match on_device(&mut self.recorder, &op) {
                Err(Error::Unsupported { reason, .. }) => {
                    self.fallback.fall_back(kind, Why::Refused, self.recorder.gpu.facts().backend, reason)?;
                }
                result => return result,
            }
        }
        if self.recorder.is_noting() {
            return Ok(());
        }
        self.recorder.flush()?;
        on_host(&Host { recorder: &self.recorder, pool: &self.pool }, op)
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
        let facts = self.recorder.gpu.facts();
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
        self.recorder.tensor(dtype, rows, cols)
    }

    fn check_kv_cache(&self, spec: &KvSpec) -> Result<()> {
        match ops::paged_attention::check(spec) {
            Err(reason) => {
                self.fallback.check_fallback(paged_attention::NAME, self.recorder.gpu.facts().backend, reason)
            }
            Ok(()) => Ok(()),
        }
    }

    fn allocate_kv_cache(&self, spec: KvSpec) -> Result<KvCache<Region<G>>> {
        self.check_kv_cache(&spec)?;
        let half =
            || self.recorder.region(spec.bytes() / 2, "the KV cache of a layer; use a smaller `kv_cache_memory`");
        Ok(KvCache { keys: half()?, values: half()?, spec })
    }

    fn check_weight_format(&self, format: WeightFormat) -> Result<()> {
        if format == format.with(Activations::Exact) {
            return Ok(());
        }
        Err(Error::Unsupported {
            device: self.recorder.gpu.facts().backend.into(),
            op: matmul::NAME,
            reason: format!(
                "weights of {format}: it multiplies by exact activations only; use `activation_dtype` auto or `device` cpu"
            ),
        })
    }

    fn weight_bytes(&self, format: WeightFormat, groups: usize, rows: usize, cols: usize) -> u128 {
        weight::bytes(format, groups, rows, cols)
    }

    fn load_weight(&self, source: WeightSource<'_>, format: WeightFormat) -> Result<Weight<PackedWeight<G>>> {
        weight::load(&self.recorder, &self.pool, &self.checkpoints, source, format)
    }

    fn keeps_host_tensors(&self) -> bool {
        self.checkpoints.in_use()
    }

    fn write(&self, tensor: &mut Tensor<Region<G>>, bytes: &[u8]) {
        self.recorder.write(tensor, bytes);
    }

    fn read<'a>(&self, tensor: &'a Tensor<Region<G>>) -> &'a [u8] {
        self.recorder.read(tensor)
    }

    fn read_kv(&self, cache: &KvCache<Region<G>>, slot: usize) -> (Vec<f32>, Vec<f32>) {
        crate::kv_layout::read(&self.recorder, cache, slot)
    }

    fn check_step(&self, largest: &StepSize) -> Result<()> {
        let (tokens, limit) = (largest.num_tokens, self.options.max_batch_size);
        let device = self.recorder.gpu.facts().backend;
        if tokens > limit {
            let reason = format!(
                "{tokens} tokens, `metal_max_batch_size` allows {limit}: set `max_num_batched_tokens` to at most that, or \
                 raise it"
            );
            return Err(self.recorder.unsupported("a step", reason));
        }
        self.recorder.arena.check(scratch_needs(&self.recorder.pace, largest), device).map(drop)
    }

    fn prepare(&mut self, step: &StepSize) -> Result<()> {
        debug_assert!(!self.recorder.is_pending(), "scratch grows between steps");
        if let Some(report) = self.checkpoints.report() {
            tracing::info!("weights: {report}");
        }
        self.check_step(step)?;
        self.fallback.begin_step(!self.options.prefill && step.max_query_len > 1);
        self.recorder.prepare_arena(scratch_needs(&self.recorder.pace, step))
    }

    fn scratch_bytes(&self, largest: &StepSize) -> u64 {
        // What is above the limit is refused by `check_step`.
        self.recorder
            .arena
            .check(scratch_needs(&self.recorder.pace, largest), self.recorder.gpu.facts().backend)
            .unwrap_or(0) as u64
    }

    fn synchronize(&mut self) -> Result<()> {
        self.fallback.begin_step(false);
        self.recorder.flush()
    }

    fn can_note(&self) -> bool {
        true
    }

    fn gains_from_warm_up(&self) -> bool {
        // What is on the host is computed at once, and slow.
        self.options.prefill && self.options.attention
    }

    fn note(&mut self) {
        self.own_sizes = (!self.is_right).then(OwnSizes::new);
        self.recorder.note();
    }

    fn prepare_noted(&mut self, on_progress: &mut dyn FnMut(usize, usize)) -> Result<()> {
        self.fallback.begin_step(false);
        let refused = self.recorder.compile_noted(&self.pool, on_progress);
        let device = self.recorder.gpu.facts().backend;
        for error in refused {
            match error {
                // Others go to the host when they are used.
                Error::Unsupported { op, reason, .. } if is_heavy(op) => {
                    self.fallback.check_fallback(op, device, reason)?;
                }
                Error::Unsupported { .. } => {}
                error => return Err(error),
            }
        }
        Ok(())
    }

    fn test_noted(&mut self) -> Result<()> {
        let own_sizes = self.own_sizes.take();
        own_sizes.map_or(Ok(()), |own_sizes| self.test_own_sizes(&own_sizes))
    }

    fn discard(&mut self) {
        self.recorder.discard();
        self.fallback.begin_step(false);
    }

    fn memory_limit(&self) -> Option<u64> {
        Some(self.recorder.gpu.facts().max_working_set)
    }

    fn measured(&self) -> Option<Limits> {
        self.recorder.pace.limits()
    }

    fn choices(&self) -> Vec<(String, String)> {
        let fallbacks = self.fallbacks();
        let place = |reason: Option<&str>| reason.map_or("on the device".to_owned(), |r| format!("on the host: {r}"));
        let instead = |kind: &Kind, reason: &str| format!("{}: {reason}", fallback::elsewhere(kind.op));
        let attention = (!self.options.attention).then_some("`metal_attention`=0");
        let prefill = (!self.options.prefill).then_some("`metal_prefill`=0");
        let scratch = self.options.scratch_pool.map_or("as much as steps need".to_owned(), |bytes| gib(bytes as u64));
        let mut rows = vec![
            ("bfloat16", "widened to float32 where it is loaded".to_owned()),
            ("most tokens in a step", format!("{} (`metal_max_batch_size`)", self.options.max_batch_size)),
            ("most scratch of the ops", format!("{scratch} (`metal_scratch_pool`)")),
            ("attention", place(attention)),
            ("prefill", place(prefill)),
        ];
        if fallbacks.is_empty() {
            rows.push(("ops on the host", "none".to_owned()));
        }
        let mut rows: Vec<_> = rows.into_iter().map(|(what, choice)| (what.to_owned(), choice)).collect();
        rows.extend(fallbacks.iter().map(|(kind, reason)| (kind.to_string(), instead(kind, reason))));
        let by_others = |(function, reason): (&str, &str)| {
            (function.to_owned(), format!("by a slower kernel of the device with the same bits: {reason}"))
        };
        rows.extend(self.replaced().map(by_others));
        rows
    }

    fn take_traffic(&mut self) -> Option<Traffic> {
        self.recorder.gpu.take_traffic()
    }

    fn embedding(&mut self, op: Embedding<'_, Self::Memory, Self::Packed>) -> Result<()> {
        self.compute(Kind::of_weight(embedding::NAME, op.table.format()), op, ops::embedding::run, fallback::embedding)
    }

    fn rms_norm(&mut self, op: RmsNorm<'_, Self::Memory>) -> Result<()> {
        self.compute(Kind::new(rms_norm::NAME, op.out.dtype()), op, ops::rms_norm::run, fallback::rms_norm)
    }

    fn add_rms_norm(&mut self, op: AddRmsNorm<'_, Self::Memory>) -> Result<()> {
        self.compute(Kind::new(add_rms_norm::NAME, op.out.dtype()), op, ops::add_rms_norm::run, fallback::add_rms_norm)
    }

    fn matmul(&mut self, op: Matmul<'_, Self::Memory, Self::Packed>) -> Result<()> {
        let kind = Kind::of_weight(matmul::NAME, op.weight.format());
        if let Some(own_sizes) = self.own_sizes_of(&kind) {
            own_sizes.note_matmul(&op);
        }
        self.compute(kind, op, ops::matmul::run, fallback::matmul)
    }

    fn qk_norm(&mut self, op: QkNorm<'_, Self::Memory>) -> Result<()> {
        self.compute(Kind::new(qk_norm::NAME, DType::F32), op, ops::qk_norm::run, fallback::qk_norm)
    }

    fn rope_kv_write(&mut self, op: RopeKvWrite<'_, Self::Memory>) -> Result<()> {
        self.compute(
            Kind::new(rope_kv_write::NAME, op.cache.spec.dtype),
            op,
            ops::rope_kv_write::run,
            fallback::rope_kv_write,
        )
    }

    fn rope(&mut self, op: Rope<'_, Self::Memory>) -> Result<()> {
        self.compute(Kind::new(rope::NAME, DType::F32), op, ops::rope::run, fallback::rope)
    }

    fn paged_attention(&mut self, op: PagedAttention<'_, Self::Memory>) -> Result<()> {
        let kind = |dtype| Kind::of_heads(paged_attention::NAME, dtype, op.cache.spec.head_dim);
        // What joins the parts of a long sequence is of the output's type.
        let (of_cache, of_out) = (kind(op.cache.spec.dtype), kind(op.out.dtype()));
        let kind = if self.fallback.may_ask(&of_out) { of_cache } else { of_out };
        if let Some(own_sizes) = self.own_sizes_of(&kind) {
            own_sizes.note_attention(&op);
        }
        self.compute(kind, op, ops::paged_attention::run, fallback::paged_attention)
    }

    fn gated_activation(&mut self, op: GatedActivation<'_, Self::Memory>) -> Result<()> {
        self.compute(
            Kind::new(gated_activation::NAME, op.out.dtype()),
            op,
            ops::gated_activation::run,
            fallback::gated_activation,
        )
    }

    fn gated_matmul(&mut self, op: GatedMatmul<'_, Self::Memory, Self::Packed>) -> Result<()> {
        let format = op.weight.format();
        let kinds = [
            Kind::of_weight(gated_matmul::NAME, format),
            Kind::of_weight(matmul::NAME, format),
            Kind::new(gated_activation::NAME, op.out.dtype()),
        ];
        if !kinds.iter().all(|kind| self.fallback.may_ask(kind)) {
            return op.run_apart(self);
        }
        match ops::gated_matmul::run(&mut self.recorder, &op) {
            Ok(false) => op.run_apart(self),
            Err(Error::Unsupported { reason, .. }) => {
                let [kind, ..] = kinds;
                self.fallback.fall_back(kind, Why::Refused, self.recorder.gpu.facts().backend, reason)?;
                op.run_apart(self)
            }
            Ok(true) => {
                if let Some(own_sizes) = &mut self.own_sizes {
                    own_sizes.note_gated_matmul(&op);
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn topk_softmax(&mut self, op: TopkSoftmax<'_, Self::Memory>) -> Result<()> {
        self.compute(Kind::new(topk_softmax::NAME, DType::F32), op, ops::topk_softmax::run, fallback::topk_softmax)
    }

    fn grouped_matmul(&mut self, op: GroupedMatmul<'_, Self::Memory, Self::Packed>) -> Result<()> {
        let kind = Kind::of_weight(grouped_matmul::NAME, op.weight.format());
        if let Some(own_sizes) = self.own_sizes_of(&kind) {
            own_sizes.note_grouped_matmul(&op);
        }
        self.compute(kind, op, ops::grouped_matmul::run, fallback::grouped_matmul)
    }

    fn moe_combine(&mut self, op: MoeCombine<'_, Self::Memory>) -> Result<()> {
        self.compute(Kind::new(moe_combine::NAME, DType::F32), op, ops::moe_combine::run, fallback::moe_combine)
    }

    fn add_shared_expert(&mut self, op: AddSharedExpert<'_, Self::Memory>) -> Result<()> {
        self.compute(
            Kind::new(add_shared_expert::NAME, DType::F32),
            op,
            ops::add_shared_expert::run,
            fallback::add_shared_expert,
        )
    }

    fn gather_rows(&mut self, op: GatherRows<'_, Self::Memory>) -> Result<()> {
        self.compute(Kind::new(gather_rows::NAME, op.x.dtype()), op, ops::gather_rows::run, fallback::gather_rows)
    }

    fn permute_columns(&mut self, op: PermuteColumns<'_, Self::Memory>) -> Result<()> {
        self.compute(
            Kind::new(permute_columns::NAME, op.x.dtype()),
            op,
            ops::permute_columns::run,
            fallback::permute_columns,
        )
    }

    fn sample(&mut self, op: Sample<'_, Self::Memory>) -> Result<()> {
        self.compute(Kind::new(sample::NAME, DType::F32), op, ops::sample::run, fallback::sample)
    }
}

/// Bytes of each slot of the arena that a step of this size needs at most. They grow with each of the sizes.
fn scratch_needs(pace: &Pace, step: &StepSize) -> Lens {
    let mut bytes = Lens::default();
    bytes[ops::scratch::ATTENTION_PARTIALS.0] =
        ops::paged_attention::scratch_bytes(step, ops::paged_attention::longest_walk(pace));
    bytes[ops::scratch::EXPERT_GROUPS.0] = ops::grouped_matmul::scratch_bytes(step);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::fake::FakeGpu;

    #[test]
    fn steps_beyond_the_limits_are_refused() {
        let model = ModelSize {
            weights: WeightFormat::Float(DType::BF16),
            vocab_size: 1000,
            hidden_size: 64,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 64,
            intermediate_size: 0,
            num_experts: 16,
            top_k: 4,
            expert_intermediate_size: 96,
        };
        let step = |num_tokens| StepSize {
            num_tokens,
            num_requests: 1,
            max_query_len: 1,
            max_seq_len: 4096,
            num_logit_rows: 1,
            model,
        };
        let backend = |options| MetalBackend::new(FakeGpu::recording(), options).unwrap();
        let few_tokens = backend(MetalOptions { max_batch_size: 64, ..MetalOptions::default() });
        few_tokens.check_step(&step(64)).unwrap();
        let error = few_tokens.check_step(&step(65)).unwrap_err().to_string();
        assert!(error.contains("`metal_max_batch_size`") && error.contains("65 tokens"), "{error}");
        let mut little_scratch = backend(MetalOptions { scratch_pool: Some(4096), ..MetalOptions::default() });
        let bytes = backend(MetalOptions::default()).scratch_bytes(&step(64)).to_string();
        let error = little_scratch.prepare(&step(64)).unwrap_err().to_string();
        assert!(error.contains("`metal_scratch_pool`") && error.contains(&bytes), "{error}");
    }
}
