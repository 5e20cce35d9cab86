//! The devices that compute, opened from options: the only place that names the backends. Every front end runs the same code on any of
//! them. It knows no model.

mod limits;
mod options;

use vllm_apple_cpu::CpuBackend;
use vllm_apple_metal::MetalBackend;
use vllm_apple_metal::gpu::GpuError;
#[cfg(target_os = "macos")]
use vllm_apple_metal::gpu::apple::{AppleGpu, PATIENCE};
use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_ops::{Backend, DeviceInfo, Kind};

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
        match self.self_test(Some(kinds)) {
            Err(error) if options.kind == DeviceKind::Auto && !options.metal.strict => {
                tracing::warn!("computing on the CPU: {error}");
                self = Self::cpu(options)?;
            }
            result => result?,
        }
        tracing::info!("device: {}", self.info());
        self.measure()?;
        Ok(self)
    }

    /// The same for an examination: nothing is tested yet, and the software device checks every access.
    ///
    /// # Errors
    /// There is no such device.
    pub fn open_checked(options: &DeviceOptions) -> Result<Self, DeviceError> {
        Self::open_on(options, SoftwareGpu::checked)
    }

    fn open_on(options: &DeviceOptions, software: fn() -> Result<SoftwareGpu, GpuError>) -> Result<Self, DeviceError> {
        let metal = options.metal.clone();
        Ok(match options.kind {
            DeviceKind::Cpu => Self::cpu(options)?,
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

    /// Measures what a GPU can do: steps are divided by it. The software device is not in anybody's way.
    fn measure(&mut self) -> Result<(), DeviceError> {
        match self {
            Self::Cpu(_) | Self::SoftwareMetal(_) => {}
            #[cfg(target_os = "macos")]
            Self::Metal(backend) => backend.measure()?,
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
        Ok(Self::Cpu(CpuBackend::with_isa(options.threads, isa)))
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
    use vllm_apple_metal::gpu::software::Edit;
    use vllm_apple_ops::{DType, matmul};

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
}
