//! The devices that compute, opened from options: the only place that names the backends. Every front end runs the same code on any of
//! them. It knows no model.

mod limits;
mod options;

use vllm_apple_cpu::{CpuBackend, roofline};
use vllm_apple_metal::MetalBackend;
use vllm_apple_metal::gpu::GpuError;
#[cfg(target_os = "macos")]
use vllm_apple_metal::gpu::apple::{AppleGpu, PATIENCE};
use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_ops::{Backend, DType, DeviceInfo, Kind, WeightFormat};

pub use limits::Measurable;
pub use options::{DeviceKind, DeviceOptions};
pub use vllm_apple_cpu::Isa;
pub use vllm_apple_metal::MetalOptions;
pub use vllm_apple_ops::Limits;

/// A device that cannot be opened, or fails its test.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// An op or an allocation.
    #[error(transparent)]
    Op(#[from] vllm_apple_ops::Error),
    /// The GPU.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// An instruction set that was asked for.
    #[error("this machine does not have the instruction set {asked}: it has {}", .available.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "))]
    NoIsa {
        /// Which.
        asked: Isa,
        /// Those that it has.
        available: Vec<Isa>,
    },
    /// An instruction set of the CPU was asked for beside a GPU.
    #[error("the instruction set {0} is one of the CPU's, and a GPU is asked for: leave out one of the two")]
    IsaOfGpu(Isa),
}

/// A chosen device. Every variant is another type: see [`with_backend`].
#[allow(clippy::large_enum_variant)] // There is one per process.
pub enum Device {
    /// The processor.
    Cpu(CpuBackend),
    /// The Metal kernels, run on the CPU.
    SoftwareMetal(MetalBackend<SoftwareGpu>),
    /// Apple's GPU.
    #[cfg(target_os = "macos")]
    Metal(MetalBackend<AppleGpu>),
}

/// `with_backend!(device, backend => expression)`: the expression, compiled for each kind of backend.
#[macro_export]
macro_rules! with_backend {
    ($device:expr, $backend:ident => $body:expr) => {
        match $device {
            $crate::Device::Cpu($backend) => $body,
            $crate::Device::SoftwareMetal($backend) => $body,
            #[cfg(target_os = "macos")]
            $crate::Device::Metal($backend) => $body,
        }
    };
}

impl Device {
    /// The device that the options ask for, with these kinds of ops tested. If the choice is free, one that fails is not taken.
    ///
    /// # Errors
    /// There is no such device, or it fails its own test.
    pub fn open(options: &DeviceOptions, kinds: &[Kind]) -> Result<Self, DeviceError> {
        Self::open_on(options, SoftwareGpu::fast)?.tested(options, kinds)
    }

    /// The device after its test, or the processor if it fails and the choice is free: neither named nor made strict.
    fn tested(mut self, options: &DeviceOptions, kinds: &[Kind]) -> Result<Self, DeviceError> {
        let result = self.self_test(Some(kinds)).and_then(|()| self.measure());
        let device = self.or_instead(options, result)?;
        tracing::info!("device: {}", device.info());
        Ok(device)
    }

    /// The device with this result of its test, or the processor. Where memory is wanting, the processor would want the same.
    fn or_instead(self, options: &DeviceOptions, result: vllm_apple_ops::Result<()>) -> Result<Self, DeviceError> {
        match result {
            Err(error) if options.is_free() && error.is_of_device() => Self::instead(options, &error),
            result => Ok(result.map(|()| self)?),
        }
    }

    /// What `start` makes of this device; or, if the choice was free and the device turns out to refuse what it is started for, what it makes
    /// of the CPU.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn start<T, E>(
        self,
        options: &DeviceOptions,
        is_refusal: impl Fn(&E) -> bool,
        start: impl Fn(Self) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<DeviceError> + std::fmt::Display,
    {
        let is_cpu = matches!(self, Self::Cpu(_));
        match start(self) {
            Err(error) if options.is_free() && !is_cpu && is_refusal(&error) => start(Self::instead(options, &error)?),
            result => result,
        }
    }

    /// The CPU, in place of a device with this error.
    fn instead(options: &DeviceOptions, error: &impl std::fmt::Display) -> Result<Self, DeviceError> {
        tracing::warn!("computing on the CPU: {error}");
        Self::cpu(options)
    }

    /// The same for an examination: nothing is tested yet, and the software device checks every access.
    ///
    /// # Errors
    /// There is no such device.
    pub fn open_checked(options: &DeviceOptions) -> Result<Self, DeviceError> {
        Self::open_on(options, SoftwareGpu::checked)
    }

    fn open_on(options: &DeviceOptions, software: fn() -> Result<SoftwareGpu, GpuError>) -> Result<Self, DeviceError> {
        if let (Some(isa), DeviceKind::Metal | DeviceKind::SoftwareMetal) = (options.isa, options.kind) {
            return Err(DeviceError::IsaOfGpu(isa));
        }
        let metal = options.metal.clone();
        Ok(match options.kind {
            DeviceKind::Cpu => Self::cpu(options)?,
            // Instructions are the CPU's.
            DeviceKind::Auto if options.isa.is_some() => Self::cpu(options)?,
            DeviceKind::Auto => Self::best(options)?,
            DeviceKind::Metal => Self::metal(metal)?,
            DeviceKind::SoftwareMetal => Self::SoftwareMetal(MetalBackend::new(software()?, metal)?),
        })
    }

    /// What the engine does before it loads a model that needs these kinds of ops, or all: what a GPU gets wrong is computed on the host
    /// from then on.
    ///
    /// # Errors
    /// An op is wrong that the host is too slow for, or that the options forbid it to compute.
    pub fn self_test(&mut self, kinds: Option<&[Kind]>) -> vllm_apple_ops::Result<()> {
        match self {
            Self::Cpu(_) => Ok(()),
            Self::SoftwareMetal(backend) => backend.self_test(kinds),
            #[cfg(target_os = "macos")]
            Self::Metal(backend) => backend.self_test(kinds),
        }
    }

    /// What the device was or is measured to do at most: a GPU what its steps are divided by. `None`: the software device is in nobody's way.
    ///
    /// # Errors
    /// There is no memory for the measurement, or the device failed.
    pub fn limits(&mut self) -> std::io::Result<Option<Limits>> {
        self.measure().map_err(std::io::Error::other)?;
        match self {
            // The type of which a CPU's best unit computes the most.
            Self::Cpu(backend) => backend.limits(WeightFormat::Float(DType::BF16)).map(Some),
            Self::SoftwareMetal(_) => Ok(None),
            #[cfg(target_os = "macos")]
            Self::Metal(backend) => Ok(backend.measured()),
        }
    }

    /// Measures what a GPU can do: steps are divided by it. The software device is not in anybody's way.
    fn measure(&mut self) -> vllm_apple_ops::Result<()> {
        match self {
            Self::Cpu(_) | Self::SoftwareMetal(_) => {}
            #[cfg(target_os = "macos")]
            Self::Metal(backend) => return backend.measure(),
        }
        Ok(())
    }

    /// Computes every op itself from now on or fails, whatever its options say.
    pub fn make_strict(&mut self) {
        match self {
            Self::Cpu(_) => {}
            Self::SoftwareMetal(backend) => backend.set_options(strict()),
            #[cfg(target_os = "macos")]
            Self::Metal(backend) => backend.set_options(strict()),
        }
    }

    /// The same device, strict, for counting bytes. The software one is opened anew: with the checks, weights of real sizes would take
    /// gigabytes, and a finding would end the count.
    ///
    /// # Errors
    /// There is no such device.
    pub fn counting(self) -> Result<Self, DeviceError> {
        match self {
            Self::SoftwareMetal(_) => Ok(Self::SoftwareMetal(MetalBackend::new(SoftwareGpu::counting()?, strict())?)),
            device => Ok(device),
        }
    }

    fn cpu(options: &DeviceOptions) -> Result<Self, DeviceError> {
        let isa = options.isa.unwrap_or_else(Isa::best);
        if !isa.is_available() {
            return Err(DeviceError::NoIsa { asked: isa, available: Isa::available() });
        }
        let processors = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        if let Some(threads) = options.threads.filter(|threads| *threads > processors) {
            tracing::warn!(
                "{threads} threads on {processors} processors wait for each other: leave out `threads`, or give at most {processors}"
            );
        }
        let mut backend = CpuBackend::with_isa(options.threads, isa);
        let peak_flops = roofline::peak_flops_of(backend.pool(), isa, DType::BF16);
        backend.set_limits(Limits { read_bandwidth: f64::INFINITY, peak_flops });
        Ok(Self::Cpu(backend))
    }

    /// What the device is.
    pub fn info(&self) -> DeviceInfo {
        with_backend!(self, backend => backend.device())
    }

    /// The GPU where there is one that can run the kernels.
    fn best(options: &DeviceOptions) -> Result<Self, DeviceError> {
        match Self::metal(options.metal.clone()) {
            // Other systems are not expected to have one.
            Err(DeviceError::Gpu(GpuError::Unavailable(_))) if !cfg!(target_os = "macos") => Self::cpu(options),
            Err(DeviceError::Gpu(GpuError::Unavailable(reason))) => {
                tracing::warn!("computing on the CPU: {reason}");
                Self::cpu(options)
            }
            device => device,
        }
    }

    #[cfg(target_os = "macos")]
    fn metal(options: MetalOptions) -> Result<Self, DeviceError> {
        let gpu = AppleGpu::open(PATIENCE, &options)?;
        Ok(Self::Metal(MetalBackend::new(gpu, options)?))
    }

    #[cfg(not(target_os = "macos"))]
    fn metal(_: MetalOptions) -> Result<Self, DeviceError> {
        let reason = "this system has no Metal: use `device` cpu, or `device` software-metal to run the Metal kernels on the CPU";
        Err(GpuError::Unavailable(reason.to_owned()).into())
    }
}

fn strict() -> MetalOptions {
    MetalOptions { strict: true, ..MetalOptions::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use vllm_apple_metal::gpu::software::{Edit, Refusal};
    use vllm_apple_metal::gpu::{Constant, Value};
    use vllm_apple_model::{Checkpoint, LoadError, LoadOptions, LoadedModel};
    use vllm_apple_ops::{DType, Error, matmul};

    /// A device that forgets the rest of K in products of many rows.
    fn broken() -> Device {
        let edit = Edit::new("if (k % SLICE == 0) {", "if (k == 0) {");
        let gpu = SoftwareGpu::fast().unwrap().with_edit(edit);
        Device::SoftwareMetal(MetalBackend::new(gpu, MetalOptions::default()).unwrap())
    }

    #[test]
    fn a_device_that_multiplies_wrongly_is_not_chosen_and_fails_who_asks_for_it() {
        let options = |kind| DeviceOptions { kind, threads: Some(1), ..DeviceOptions::default() };
        let kinds = [Kind::new(matmul::NAME, DType::F32)];
        let chosen = broken().tested(&options(DeviceKind::Auto), &kinds).unwrap();
        assert!(matches!(chosen, Device::Cpu(_)), "{}", chosen.info());
        let mut strict = options(DeviceKind::Auto);
        strict.metal.strict = true;
        for options in [options(DeviceKind::SoftwareMetal), strict] {
            let error = broken().tested(&options, &kinds).err().unwrap().to_string();
            assert!(error.contains("the self-test failed") && error.contains("matmul"), "{error}");
        }
    }

    #[test]
    fn instructions_of_the_cpu_are_not_asked_of_a_gpu() {
        let asked =
            DeviceOptions { kind: DeviceKind::SoftwareMetal, isa: Some(Isa::Portable), ..DeviceOptions::default() };
        assert!(matches!(Device::open(&asked, &[]), Err(DeviceError::IsaOfGpu(Isa::Portable))));
        for kind in [DeviceKind::Cpu, DeviceKind::Auto] {
            let on_cpu = DeviceOptions { kind, ..asked.clone() };
            assert!(matches!(Device::open(&on_cpu, &[]), Ok(Device::Cpu(_))));
        }
    }

    type Failure = Box<dyn std::error::Error>;

    /// The backend that a model of the golden checkpoints is ready on, which was started on this device.
    fn started(gpu: SoftwareGpu, kind: DeviceKind, name: &str) -> Result<&'static str, Failure> {
        started_with(gpu, MetalOptions::default(), kind, name).map(|(backend, _)| backend)
    }

    /// The same, and what the backend computes where.
    type Started = (&'static str, Vec<(String, String)>);

    fn started_with(gpu: SoftwareGpu, metal: MetalOptions, kind: DeviceKind, name: &str) -> Result<Started, Failure> {
        let options = DeviceOptions { kind, threads: Some(1), ..DeviceOptions::default() };
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models");
        let checkpoint = Checkpoint::open(&golden.join(name))?;
        let load = LoadOptions { max_model_len: Some(128), max_num_seqs: 4, ..LoadOptions::default() };
        let is_refusal = |error: &Failure| error.downcast_ref::<LoadError>().is_some_and(LoadError::is_refusal);
        let device = Device::SoftwareMetal(MetalBackend::new(gpu, metal)?);
        let device = device.tested(&options, &checkpoint.kinds(&load).unwrap())?;
        assert!(matches!(device, Device::SoftwareMetal(_)), "the device's own test sees nothing at other sizes");
        device.start(&options, is_refusal, |device| {
            with_backend!(device, backend => {
                let mut model = LoadedModel::load(backend, &checkpoint, &load)?.allocate(16)?;
                model.warm_up(&mut |_| {})?;
                Ok((model.backend().device().backend, model.backend().choices()))
            })
        })
    }

    /// The CPU computes under `auto`; who asks for the device gets an error with these words.
    fn is_not_used(gpu: impl Fn(SoftwareGpu) -> SoftwareGpu, name: &str, words: &[&str]) {
        let gpu = || gpu(SoftwareGpu::fast().unwrap());
        assert_eq!(started(gpu(), DeviceKind::Auto, name).unwrap(), "cpu");
        let error = started(gpu(), DeviceKind::SoftwareMetal, name).unwrap_err().to_string();
        assert!(words.iter().chain(&["use `device` cpu"]).all(|word| error.contains(word)), "{error}");
    }

    /// The constants of the kernels: K of products, the size of heads of attention.
    fn first_is(constants: &[Constant], value: u32) -> bool {
        constants[0].value == Value::U32(value)
    }

    #[test]
    fn a_device_without_faults_is_used() {
        for name in ["llama", "qwen3-moe", "gemma3"] {
            let gpu = SoftwareGpu::fast().unwrap();
            assert_eq!(started(gpu, DeviceKind::Auto, name).unwrap(), "software-metal", "{name}");
        }
    }

    #[test]
    fn a_device_that_refuses_products_or_attention_at_the_models_sizes_is_not_used() {
        let of_96 =
            |gpu: SoftwareGpu| gpu.with_refusal(|function, c| function.starts_with("matmul") && first_is(c, 96));
        is_not_used(of_96, "llama", &["matmul", "a test wants it refused"]);
        let of_16 = |gpu: SoftwareGpu| gpu.with_refusal(|f, c| f.starts_with("paged_attention") && first_is(c, 16));
        is_not_used(of_16, "llama", &["paged_attention"]);
        let of_24 = |gpu: SoftwareGpu| gpu.with_refusal(|f, c| f.starts_with("grouped_matmul") && first_is(c, 24));
        is_not_used(of_24, "qwen3-moe", &["grouped_matmul"]);
    }

    #[test]
    fn a_device_that_refuses_some_of_the_kernels_with_the_same_bits_is_used() {
        // Behind the shortest prompts.
        let of_many_rows = |f: &str, _: &[Constant]| f.starts_with("matmul_64") || f.starts_with("matmul_32");
        let of_many_pairs = |f: &str, _: &[Constant]| f.starts_with("grouped_matmul_32");
        let refusals: [(Refusal, _, _); 2] =
            [(of_many_rows, "llama", "matmul_32"), (of_many_pairs, "qwen3-moe", "grouped_matmul_32")];
        for (refusal, name, refused) in refusals {
            for strict in [false, true] {
                let gpu = SoftwareGpu::fast().unwrap().with_refusal(refusal);
                let metal = MetalOptions { strict, ..MetalOptions::default() };
                let (backend, choices) = started_with(gpu, metal, DeviceKind::Auto, name).unwrap();
                assert_eq!(backend, "software-metal");
                let is_said = |(what, how): &(String, String)| {
                    what.starts_with(refused) && how.contains("with the same bits: ") && how.contains("a test wants it")
                };
                assert!(choices.iter().any(is_said), "{choices:?}");
            }
        }
    }

    #[test]
    fn a_device_without_memory_is_an_error_and_not_another_device() {
        let software = || Device::open_on(&options_of(DeviceKind::SoftwareMetal), SoftwareGpu::fast).unwrap();
        let (device, reason) = ("metal".to_owned(), "Insufficient Memory".to_owned());
        let no_memory = Error::NoMemory { device: device.clone(), reason: reason.clone() };
        let failed = Error::Commands { device, reason };
        for kind in [DeviceKind::Auto, DeviceKind::SoftwareMetal] {
            let error = software().or_instead(&options_of(kind), Err(no_memory.clone())).err().unwrap();
            assert!(error.to_string().contains("Insufficient Memory"), "{error}");
        }
        let instead = software().or_instead(&options_of(DeviceKind::Auto), Err(failed));
        assert!(matches!(instead, Ok(Device::Cpu(_))));
    }

    fn options_of(kind: DeviceKind) -> DeviceOptions {
        DeviceOptions { kind, threads: Some(1), ..DeviceOptions::default() }
    }

    #[test]
    fn a_device_that_is_wrong_at_the_models_sizes_is_not_used() {
        let with = |find, replace| move |gpu: SoftwareGpu| gpu.with_edit(Edit::new(find, replace));
        let at_its_sizes = "wrong at the model's own sizes";
        let bias = "if (HAS_BIAS) sum += bias[n];";
        let product = with(bias, "if (HAS_BIAS) sum += bias[n];\nif (K == 96) sum *= 1.01f;");
        is_not_used(product, "llama", &["matmul", at_its_sizes, "64 x 96"]);
        let block = "cache.blocks[position / BLOCK_SIZE]";
        let attention = with(block, "cache.blocks[HEAD_DIM == 16 ? 0 : position / BLOCK_SIZE]");
        is_not_used(attention, "llama", &["paged_attention", at_its_sizes]);
        let pair = "out_row(rows, m) / PAIRS_PER_ROW : NO_ROW";
        let experts = with(pair, "(K == 24 ? 0 : out_row(rows, m) / PAIRS_PER_ROW) : NO_ROW");
        is_not_used(experts, "qwen3-moe", &["grouped_matmul", at_its_sizes]);
    }

    /// The kernel of products of few rows that makes activations of gates and ups at once.
    fn is_gated(function: &str, c: &[Constant]) -> bool {
        function.starts_with("matmul_8") && c.len() > 8 && c[8].value == Value::U32(1)
    }

    #[test]
    fn what_the_user_has_on_the_host_is_no_reason_not_to_test_the_rest() {
        let without_attention = MetalOptions { attention: false, ..MetalOptions::default() };
        let without_prefill = MetalOptions { prefill: false, ..MetalOptions::default() };
        let started = |gpu, metal| started_with(gpu, metal, DeviceKind::Auto, "llama").unwrap().0;
        for metal in [without_attention.clone(), without_prefill] {
            let gpu = || SoftwareGpu::fast().unwrap();
            assert_eq!(started(gpu(), metal.clone()), "software-metal");
            let of_96 = gpu().with_refusal(|f, c| f.starts_with("matmul_8") && first_is(c, 96));
            assert_eq!(started(of_96, metal), "cpu");
        }
        let gpu = || SoftwareGpu::fast().unwrap();
        let attention = gpu().with_refusal(|f, c| f.starts_with("paged_attention") && first_is(c, 16));
        assert_eq!(started(attention, without_attention), "software-metal");
    }

    #[test]
    fn gates_that_are_not_computed_at_once_are_no_reason_to_leave_the_device() {
        let refused = || SoftwareGpu::fast().unwrap().with_refusal(|f, c| is_gated(f, c) && first_is(c, 64));
        let activation = "T(gated(gate, up, GATED))";
        let edit = Edit::new(activation, "T(gated(gate, up, GATED) * (K == 64 ? 1.01f : 1.0f))");
        let wrong = || SoftwareGpu::fast().unwrap().with_edit(edit);
        let strict = MetalOptions { strict: true, ..MetalOptions::default() };
        for metal in [MetalOptions::default(), strict] {
            for kind in [DeviceKind::Auto, DeviceKind::SoftwareMetal] {
                for (gpu, why) in [(refused(), "a test wants it refused"), (wrong(), "at the model's own sizes")] {
                    let (backend, choices) = started_with(gpu, metal.clone(), kind, "llama").unwrap();
                    assert_eq!(backend, "software-metal");
                    let is_said = |(what, how): &(String, String)| {
                        what.starts_with("gated_matmul") && how.starts_with("in two steps") && how.contains(why)
                    };
                    assert!(choices.iter().any(is_said), "{choices:?}");
                }
            }
        }
    }

    #[test]
    fn what_the_host_can_do_is_no_reason_to_leave_the_device() {
        let gpu = SoftwareGpu::fast().unwrap().with_refusal(|f, c| f.starts_with("rms_norm") && first_is(c, 64));
        assert_eq!(started(gpu, DeviceKind::Auto, "llama").unwrap(), "software-metal");
    }
}
