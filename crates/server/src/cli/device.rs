//! The devices that compute: the only place that names the backends. Each command runs the same code on any of them.

use vllm_apple_cpu::CpuBackend;
#[cfg(target_os = "macos")]
use vllm_apple_metal::gpu::apple::AppleGpu;
use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions, OptionError};
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
            DeviceArg::SoftwareMetal => {
                Self::SoftwareMetal(MetalBackend::new(SoftwareGpu::fast()?, MetalOptions::from_env()?)?)
            }
        };
        tracing::info!("device: {}", device.info());
        Ok(device)
    }

    /// As [`Device::open`], for tests of the kernels: the software device checks every access.
    pub fn open_checked(args: &EngineArgs) -> Result<Self, CliError> {
        match args.device {
            DeviceArg::SoftwareMetal => {
                Ok(Self::SoftwareMetal(MetalBackend::new(SoftwareGpu::checked()?, MetalOptions::from_env()?)?))
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

    /// The GPU where there is one, unless the environment asks for the CPU.
    fn best(args: &EngineArgs) -> Result<Self, CliError> {
        if !use_engine(std::env::var("VLLM_APPLE_USE_ENGINE").ok().as_deref())? {
            tracing::info!("VLLM_APPLE_USE_ENGINE=0: computing on the CPU");
            return Ok(Self::cpu(args));
        }
        match cfg!(target_os = "macos") {
            true => Self::metal(),
            false => Ok(Self::cpu(args)),
        }
    }

    #[cfg(target_os = "macos")]
    fn metal() -> Result<Self, CliError> {
        Ok(Self::Metal(MetalBackend::new(AppleGpu::new()?, MetalOptions::from_env()?)?))
    }

    #[cfg(not(target_os = "macos"))]
    fn metal() -> Result<Self, CliError> {
        Err(CliError::NoMetal)
    }
}

/// What `VLLM_APPLE_USE_ENGINE` says: `0` is the CPU.
fn use_engine(value: Option<&str>) -> Result<bool, OptionError> {
    match value {
        None | Some("" | "1") => Ok(true),
        Some("0") => Ok(false),
        Some(got) => Err(OptionError { variable: "VLLM_APPLE_USE_ENGINE", expected: "0 or 1", got: got.to_owned() }),
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
