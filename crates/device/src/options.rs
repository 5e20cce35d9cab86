//! Which device, and what the user decides about it. It opens none.

use std::str::FromStr;

use vllm_apple_cpu::Isa;
use vllm_apple_metal::MetalOptions;

/// Where to compute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// Metal where there is one, else the CPU.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// Apple's GPU.
    Metal,
    /// The Metal kernels, run on the CPU: slow, for checking them.
    SoftwareMetal,
}

impl DeviceKind {
    /// All kinds, and what they are called.
    pub const NAMES: [(&'static str, Self); 4] =
        [("auto", Self::Auto), ("cpu", Self::Cpu), ("metal", Self::Metal), ("software-metal", Self::SoftwareMetal)];
}

impl FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|&(_, kind)| kind).ok_or_else(|| {
            let names = Self::NAMES.map(|(name, _)| name).join(", ");
            format!("unknown device {text:?}: expected one of {names}")
        })
    }
}

/// How to open a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Which.
    pub kind: DeviceKind,
    /// Threads that compute, on the CPU; by default one per core.
    pub threads: Option<usize>,
    /// Instructions of the CPU backend; by default the machine's fastest.
    pub isa: Option<Isa>,
    /// For the Metal kernels, wherever they run.
    pub metal: MetalOptions,
}

impl DeviceOptions {
    /// Whether the CPU will do where the chosen device does not: no device is named, and strictness is not asked for.
    pub fn is_free(&self) -> bool {
        self.kind == DeviceKind::Auto && !self.metal.strict
    }
}
