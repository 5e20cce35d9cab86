//! The seam between what is computed and what computes it: memory, and one method per op.

use crate::*;

/// A device that computes the ops. The generics are static: one decoder is compiled per backend.
///
/// Ops may be recorded and run later; their results are there after [`Backend::synchronize`]. Do not call the op methods
/// directly: each op's `run` checks the arguments once and then calls the method.
pub trait Backend: Sized + Send + 'static {
    /// Plain memory of activations, step inputs and KV cache.
    type Memory: Send;
    /// A weight in the layout of this backend's matmul.
    type Packed: Send;

    /// The device's name and limits.
    fn device(&self) -> DeviceInfo;

    /// Memory of zeros.
    fn allocate(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Self::Memory>>;

    /// Whether this backend can keep and read such a cache.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the reason and what would work.
    fn check_kv_cache(&self, spec: &KvSpec) -> Result<()>;

    /// A layer's cache of zeros, of a spec that passes [`Backend::check_kv_cache`].
    fn allocate_kv_cache(&self, spec: KvSpec) -> Result<KvCache<Self::Memory>>;

    /// Whether weights of a format can be loaded and computed with.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the format and what would work.
    fn check_weight_format(&self, format: WeightFormat) -> Result<()> {
        let _ = format;
        Ok(())
    }

    /// Bytes that `groups` matrices of such a format take as they are laid out, of a format that passes [`Backend::check_weight_format`]: for
    /// the plan of the memory.
    fn weight_bytes(&self, format: WeightFormat, groups: usize, rows: usize, cols: usize) -> u128 {
        groups as u128 * format.bytes(rows, cols)
    }

    /// Lays out a weight, of floats converting it to `format`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device cannot compute with the format;
    /// [`Error::OutOfRange`] if a finite value does not fit the format, [`Error::ScaleOutOfRange`] if a scale does not;
    /// [`Error::InvalidArgument`] if the parts do not fit together.
    fn load_weight(&self, source: WeightSource<'_>, format: WeightFormat) -> Result<Weight<Self::Packed>>;

    /// Whether weights that were loaded so far lie in the memory of their [`HostTensor`]s, which should then not be given back.
    fn keeps_host_tensors(&self) -> bool {
        false
    }

    /// Copies `bytes` to the start of `tensor`.
    ///
    /// # Panics
    /// If they are more than it holds.
    fn write(&self, tensor: &mut Tensor<Self::Memory>, bytes: &[u8]);

    /// The content of `tensor`, current as of the last [`Backend::synchronize`].
    fn read<'a>(&self, tensor: &'a Tensor<Self::Memory>) -> &'a [u8];

    /// The key and the value, each `[num_kv_heads, head_dim]`, at `slot`: for tests and verification.
    fn read_kv(&self, cache: &KvCache<Self::Memory>, slot: usize) -> (Vec<f32>, Vec<f32>);

    /// Whether the backend can compute steps of up to this size.
    ///
    /// # Errors
    /// [`Error::Unsupported`] or [`Error::OutOfMemory`] with the limit and what would work.
    fn check_step(&self, largest: &StepSize) -> Result<()> {
        let _ = largest;
        Ok(())
    }

    /// Grows scratch so that no op of such a step allocates. Called once at load with the largest step, and before every step
    /// with its sizes, none of which is above those of the largest. Ops also work without, and then grow what they need.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn prepare(&mut self, step: &StepSize) -> Result<()> {
        let _ = step;
        Ok(())
    }

    /// Bytes of scratch that [`Backend::prepare`] grows to for `largest`, for the plan of the memory.
    fn scratch_bytes(&self, largest: &StepSize) -> u64 {
        let _ = largest;
        0
    }

    /// Runs all recorded ops and waits.
    ///
    /// # Errors
    /// [`Error::Commands`] if they failed and others may run, [`Error::Device`] if the device is lost. Nothing is recorded
    /// afterwards in any case.
    fn synchronize(&mut self) -> Result<()>;

    /// Whether [`Backend::note`] does anything: else ops after it are computed.
    fn can_note(&self) -> bool {
        false
    }

    /// Whether the first step is faster if others have run.
    fn gains_from_warm_up(&self) -> bool {
        false
    }

    /// From now on ops compute nothing: what they need of the device is noted.
    fn note(&mut self) {}

    /// Prepares what was noted, on all threads, and ends the noting; says how much is done, of how much. What the device refuses is found
    /// when it is used, unless it can be computed nowhere else.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for that, and what else the device says.
    fn prepare_noted(&mut self, on_progress: &mut dyn FnMut(usize, usize)) -> Result<()> {
        let _ = on_progress;
        Ok(())
    }

    /// Computes what was noted and can be computed nowhere else, once at each of its sizes, and holds it against the reference. The contents
    /// of the KV caches that were noted are lost.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device gets it wrong, and what else the device says.
    fn test_noted(&mut self) -> Result<()> {
        Ok(())
    }

    /// Forgets recorded ops: for callers that give up a step after an op's error.
    fn discard(&mut self) {}

    /// Bytes that the device recommends to use at most, where that is less than the host's free memory.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// What the device was measured to do at most, where the size of steps should follow from it.
    fn measured(&self) -> Option<Limits> {
        None
    }

    /// What the backend does because the device and the user's wishes are as they are, by name: limits, ops that it does not compute
    /// itself and why.
    fn choices(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// What the device has moved since the last call, if it counts.
    fn take_traffic(&mut self) -> Option<Traffic> {
        None
    }

    /// See [`Embedding`].
    fn embedding(&mut self, op: Embedding<'_, Self::Memory, Self::Packed>) -> Result<()>;
    /// See [`RmsNorm`].
    fn rms_norm(&mut self, op: RmsNorm<'_, Self::Memory>) -> Result<()>;
    /// See [`AddRmsNorm`].
    fn add_rms_norm(&mut self, op: AddRmsNorm<'_, Self::Memory>) -> Result<()>;
    /// See [`Matmul`].
    fn matmul(&mut self, op: Matmul<'_, Self::Memory, Self::Packed>) -> Result<()>;
    /// See [`QkNorm`].
    fn qk_norm(&mut self, op: QkNorm<'_, Self::Memory>) -> Result<()>;
    /// See [`RopeKvWrite`].
    fn rope_kv_write(&mut self, op: RopeKvWrite<'_, Self::Memory>) -> Result<()>;
    /// See [`Rope`].
    fn rope(&mut self, op: Rope<'_, Self::Memory>) -> Result<()>;
    /// See [`PagedAttention`].
    fn paged_attention(&mut self, op: PagedAttention<'_, Self::Memory>) -> Result<()>;
    /// See [`GatedActivation`].
    fn gated_activation(&mut self, op: GatedActivation<'_, Self::Memory>) -> Result<()>;
    /// See [`GatedMatmul`]. A backend that has nothing better computes the two ops one after the other.
    fn gated_matmul(&mut self, op: GatedMatmul<'_, Self::Memory, Self::Packed>) -> Result<()> {
        op.run_apart(self)
    }
    /// See [`TopkSoftmax`].
    fn topk_softmax(&mut self, op: TopkSoftmax<'_, Self::Memory>) -> Result<()>;
    /// See [`GroupedMatmul`].
    fn grouped_matmul(&mut self, op: GroupedMatmul<'_, Self::Memory, Self::Packed>) -> Result<()>;
    /// See [`MoeCombine`].
    fn moe_combine(&mut self, op: MoeCombine<'_, Self::Memory>) -> Result<()>;
    /// See [`AddSharedExpert`].
    fn add_shared_expert(&mut self, op: AddSharedExpert<'_, Self::Memory>) -> Result<()>;
    /// See [`GatherRows`].
    fn gather_rows(&mut self, op: GatherRows<'_, Self::Memory>) -> Result<()>;
    /// See [`PermuteColumns`].
    fn permute_columns(&mut self, op: PermuteColumns<'_, Self::Memory>) -> Result<()>;
    /// See [`Sample`].
    fn sample(&mut self, op: Sample<'_, Self::Memory>) -> Result<()>;
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `cpu`, `metal`, …
    pub backend: &'static str,
    /// For people: model, instruction set, threads.
    pub description: String,
    /// What else there is to know, by name: memory, GPU families.
    pub facts: Vec<(String, String)>,
}

impl std::fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.backend, self.description)
    }
}
