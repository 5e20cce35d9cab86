//! The devices that compute: the only place that names the backends. Each command runs the same code on any of them.

use vllm_apple_cpu::CpuBackend;
#[cfg(target_os = "macos")]
use vllm_apple_metal::gpu::apple::AppleGpu;
use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::{Backend, DeviceInfo};

use super::CliError;
use super::args::{DeviceArg, EngineArgs};

/// A chosen device. Every variant is another type: see [`with_backend`].
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
    /// The device that the flags and the environment ask for.
    pub fn open(args: &EngineArgs) -> Result<Self, CliError> {
        let device = match args.device {
            DeviceArg::Cpu => Self::cpu(args),
            DeviceArg::Auto => Self::best(args)?,
            DeviceArg::Metal => Self::metal()?,
            DeviceArg::SoftwareMetal => Self::SoftwareMetal(MetalBackend::new(SoftwareGpu::fast()?, options()?)?),
        };
        tracing::info!("device: {}", device.info());
        Ok(device)
    }

    /// As [`Device::open`], for tests of the kernels: the software device checks every access.
    pub fn open_checked(args: &EngineArgs) -> Result<Self, CliError> {
        match args.device {
            DeviceArg::SoftwareMetal => {
                Ok(Self::SoftwareMetal(MetalBackend::new(SoftwareGpu::checked()?, options()?)?))
            }
            _ => Self::open(args),
        }
    }

    fn cpu(args: &EngineArgs) -> Self {
        Self::Cpu(CpuBackend::new(args.threads))
    }

    /// What the device is.
    pub fn info(&self) -> DeviceInfo {
        with_backend!(self, backend => backend.device())
    }

    /// The GPU where there is one, unless `VLLM_APPLE_USE_ENGINE=0` asks for the CPU.
    #[cfg(target_os = "macos")]
    fn best(args: &EngineArgs) -> Result<Self, CliError> {
        match environment::flag("VLLM_APPLE_USE_ENGINE")? {
            Some(false) => {
                tracing::info!("VLLM_APPLE_USE_ENGINE=0: computing on the CPU");
                Ok(Self::cpu(args))
            }
            _ => Self::metal(),
        }
    }

    /// The CPU: this system has no Metal.
    #[cfg(not(target_os = "macos"))]
    fn best(args: &EngineArgs) -> Result<Self, CliError> {
        Ok(Self::cpu(args))
    }

    #[cfg(target_os = "macos")]
    fn metal() -> Result<Self, CliError> {
        Ok(Self::Metal(MetalBackend::new(AppleGpu::new()?, options()?)?))
    }

    #[cfg(not(target_os = "macos"))]
    fn metal() -> Result<Self, CliError> {
        Err(CliError::NoMetal)
    }
}
