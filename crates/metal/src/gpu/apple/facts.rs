//! The default device and what it is. It knows no command.

use objc2::available;
use objc2::rc::Retained;
use objc2_metal::{MTLCreateSystemDefaultDevice, MTLDevice, MTLGPUFamily};

use super::Device;
use crate::gpu::{Facts, GpuError, host_memory};

// MTLCreateSystemDefaultDevice finds no device in a command-line program that is not linked with CoreGraphics: see its documentation.
#[cfg_attr(target_os = "macos", link(name = "CoreGraphics", kind = "framework"))]
unsafe extern "C" {}

const FAMILIES: [(MTLGPUFamily, &str); 10] = [
    (MTLGPUFamily::Apple4, "Apple4"),
    (MTLGPUFamily::Apple5, "Apple5"),
    (MTLGPUFamily::Apple6, "Apple6"),
    (MTLGPUFamily::Apple7, "Apple7"),
    (MTLGPUFamily::Apple8, "Apple8"),
    (MTLGPUFamily::Apple9, "Apple9"),
    (MTLGPUFamily::Apple10, "Apple10"),
    (MTLGPUFamily::Mac2, "Mac2"),
    (MTLGPUFamily::Metal3, "Metal3"),
    (MTLGPUFamily::Metal4, "Metal4"),
];

/// simdgroup reductions and matrices: Metal Feature Set Tables. Apple7 is the M1.
const NEEDED: MTLGPUFamily = MTLGPUFamily::Apple7;

/// The M3 is the first with bfloat16 arithmetic in hardware: on M1 and M2 the compiler replaces it by integer operations.
const FIRST_WITH_BF16: MTLGPUFamily = MTLGPUFamily::Apple9;

/// The system's default device, if the kernels can run on it.
pub(super) fn default_device(allow_vm: bool) -> Result<Retained<Device>, GpuError> {
    let unavailable = |reason: String| Err(GpuError::Unavailable(reason));
    // `..`: what is not macOS is the tests' Metal (crates/objc-sim), which is of the newest.
    if !available!(macos = 14.0, ..) {
        return unavailable(
            "macOS 14 or later is needed: earlier ones have no bfloat16 in Metal; use `device` cpu".into(),
        );
    }
    let Some(device) = MTLCreateSystemDefaultDevice() else {
        return unavailable("macOS offers no Metal device to this process; use `device` cpu".into());
    };
    if !device.supportsFamily(NEEDED) {
        let (name, families) = (device.name(), families(&device).join(", "));
        if allow_vm {
            tracing::warn!("{name} is of the families {families}, and may compute anything: `metal_allow_vm`=1");
            return Ok(device);
        }
        return unavailable(format!(
            "{name} is of the families {families}; Apple7 (M1) or later is needed. GPUs of virtual machines are older; use `device` cpu, or `metal_allow_vm`=1 to try it nevertheless"
        ));
    }
    Ok(device)
}

pub(super) fn of(device: &Device) -> Result<Facts, GpuError> {
    Ok(Facts {
        backend: "metal",
        name: device.name().to_string(),
        memory: host_memory()?,
        max_working_set: device.recommendedMaxWorkingSetSize(),
        max_buffer: device.maxBufferLength() as u64,
        native_bf16: device.supportsFamily(FIRST_WITH_BF16),
        families: families(device),
    })
}

/// Systems that do not know a family yet say no.
fn families(device: &Device) -> Vec<String> {
    let supported = FAMILIES.iter().filter(|(family, _)| device.supportsFamily(*family));
    supported.map(|(_, name)| (*name).to_owned()).collect()
}
