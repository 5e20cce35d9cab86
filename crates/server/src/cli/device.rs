//! The devices that compute: the only place that names the backends. Each command runs the same code on any of them.

use vllm_apple_cpu::CpuBackend;
use vllm_apple_metal::gpu::GpuError;
#[cfg(target_os = "macos")]
use vllm_apple_metal::gpu::apple::AppleGpu;
use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions, OptionError};
use vllm_apple_ops::{Backend, DeviceInfo};

use super::CliError;
use super::args::{DeviceArg, EngineArgs};

/// A chosen device. Every variant is another type: see [`with_backend`].
#[allow(clippy::large_enum_variant)] // There is one per process.
pub enum Device {
    Cpu(CpuBackend),
    SoftwareMetal(MetalBackend<SoftwareGpu>),
    #[cfg(target_os = "macos")]
    Metal(MetalBackend<AppleGpu>),
}

/// `with_backend!(device, backend => expression)`: the expression, compiled for each kind of backend.
macro_rules! with_backend {
    ($device:expr, $backend:ident => $body:expr) => {
        match $device {
            $crate::cli::device::Device::Cpu($backend) => $body,
            $crate::cli::device::Device::SoftwareMetal($backend) => $body,
            #[cfg(target_os = "macos")]
            $crate::cli::device::Device::Metal($backend) => $body,
        }
    };
}
pub(super) use with_backend;

impl Device {
    /// The device that the flags and the environment ask for, its ops tested.
    pub fn open(args: &EngineArgs) -> Result<Self, CliError> {
        let mut device = Self::open_on(args, SoftwareGpu::fast)?;
        tracing::info!("device: {}", device.info());
        device.self_test()?;
        Ok(device)
    }

    /// The same for an examination: nothing is tested yet, and the software device checks every access.
    pub fn open_checked(args: &EngineArgs) -> Result<Self, CliError> {
        Self::open_on(args, SoftwareGpu::checked)
    }

    fn open_on(args: &EngineArgs, software: fn() -> Result<SoftwareGpu, GpuError>) -> Result<Self, CliError> {
        let options = MetalOptions::from_env()?;
        let variable = std::env::var_os(USE_ENGINE).map(|value| value.to_string_lossy().into_owned());
        let use_engine = use_engine(variable.as_deref())?;
        if !use_engine && matches!(args.device, DeviceArg::Metal | DeviceArg::SoftwareMetal) {
            tracing::warn!("{USE_ENGINE}=0 is ignored: --device asks for the Metal kernels");
        }
        Ok(match args.device {
            DeviceArg::Cpu => Self::cpu(args),
            DeviceArg::Auto if !use_engine => {
                tracing::info!("{USE_ENGINE}=0: computing on the CPU");
                Self::cpu(args)
            }
            DeviceArg::Auto => Self::best(args, options)?,
            DeviceArg::Metal => Self::metal(options)?,
            DeviceArg::SoftwareMetal => Self::SoftwareMetal(MetalBackend::new(software()?, options)?),
        })
    }

    /// What the engine does before it loads a model: what a GPU gets wrong is computed on the host from then on.
    pub fn self_test(&mut self) -> vllm_apple_ops::Result<()> {
        match self {
            Self::Cpu(_) => Ok(()),
            Self::SoftwareMetal(backend) => backend.self_test(),
            #[cfg(target_os = "macos")]
            Self::Metal(backend) => backend.self_test(),
        }
    }

    /// Computes every op itself from now on or fails, whatever the environment says.
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
    pub fn counting(self) -> Result<Self, CliError> {
        match self {
            Self::SoftwareMetal(_) => Ok(Self::SoftwareMetal(MetalBackend::new(SoftwareGpu::counting()?, strict())?)),
            device => Ok(device),
        }
    }

    fn cpu(args: &EngineArgs) -> Self {
        Self::Cpu(CpuBackend::new(args.threads))
    }

    /// What the device is.
    pub fn info(&self) -> DeviceInfo {
        with_backend!(self, backend => backend.device())
    }

    /// The GPU where there is one that can run the kernels.
    fn best(args: &EngineArgs, options: MetalOptions) -> Result<Self, CliError> {
        match Self::metal(options) {
            // Other systems are not expected to have one.
            Err(CliError::Gpu(GpuError::Unavailable(_))) if !cfg!(target_os = "macos") => Ok(Self::cpu(args)),
            Err(CliError::Gpu(GpuError::Unavailable(reason))) => {
                tracing::warn!("computing on the CPU: {reason}");
                Ok(Self::cpu(args))
            }
            device => device,
        }
    }

    #[cfg(target_os = "macos")]
    fn metal(options: MetalOptions) -> Result<Self, CliError> {
        Ok(Self::Metal(MetalBackend::new(AppleGpu::new()?, options)?))
    }

    #[cfg(not(target_os = "macos"))]
    fn metal(_: MetalOptions) -> Result<Self, CliError> {
        let reason = "this system has no Metal: use --device cpu, or --device software-metal to run the Metal kernels on the CPU";
        Err(GpuError::Unavailable(reason.to_owned()).into())
    }
}

fn strict() -> MetalOptions {
    MetalOptions { strict: true, ..MetalOptions::default() }
}

const USE_ENGINE: &str = "VLLM_APPLE_USE_ENGINE";

/// What `VLLM_APPLE_USE_ENGINE` says: `0` makes `--device auto` the CPU.
fn use_engine(value: Option<&str>) -> Result<bool, OptionError> {
    match value {
        None | Some("" | "1") => Ok(true),
        Some("0") => Ok(false),
        Some(got) => Err(OptionError { variable: USE_ENGINE, expected: "0 or 1", got: got.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_may_ask_for_the_cpu() {
        assert_eq!(use_engine(None), Ok(true));
        assert_eq!(use_engine(Some("1")), Ok(true));
        assert_eq!(use_engine(Some("0")), Ok(false));
        let error = use_engine(Some("no")).unwrap_err().to_string();
        assert!(error.contains("VLLM_APPLE_USE_ENGINE") && error.contains("no"), "{error}");
    }
}
