//! The device that a whole report is about: it is chosen once, as `serve` would, so that no section is computed elsewhere than the others.

use vllm_apple_device::{Device, DeviceKind, DeviceOptions, with_backend};
use vllm_apple_ops::{Backend, DeviceInfo, Kind};

use crate::subject::{Subject, VerifyError};

/// The chosen device.
#[derive(Debug)]
pub struct Pinned {
    /// What it is.
    pub info: DeviceInfo,
    /// What it does because it and the user's wishes are as they are, by name.
    pub choices: Vec<(String, String)>,
    /// Why it is the CPU where a GPU was to be expected.
    pub instead: Option<String>,
}

impl Subject {
    /// Chooses the device where the options leave it open, and names it in them: what it refuses from then on is an error of a section.
    ///
    /// # Errors
    /// There is no such device, or it fails its test and nothing else may be taken.
    pub fn pin_device(&mut self) -> Result<Pinned, VerifyError> {
        let kinds = self.checkpoint.kinds(&self.options)?;
        let mut device = Device::open(&self.device, &kinds)?;
        let instead = match &device {
            Device::Cpu(_) => self.why_no_metal(&kinds),
            device if self.device.is_free() => self.refusal(device),
            _ => None,
        };
        if instead.is_some() && !matches!(device, Device::Cpu(_)) {
            device = Device::open(&DeviceOptions { kind: DeviceKind::Cpu, ..self.device.clone() }, &kinds)?;
        }
        self.device.kind = kind_of(&device);
        let (info, choices) = with_backend!(&device, backend => (backend.device(), backend.choices()));
        self.host_ops.note(&choices);
        Ok(Pinned { info, choices, instead })
    }

    /// What this device says if it does not compute what the model needs. Whatever else is wrong each section says that it concerns.
    fn refusal(&self, device: &Device) -> Option<String> {
        let checked = with_backend!(device, backend => self.checkpoint.check(backend, &self.options));
        checked.err().filter(|error| error.is_refusal()).map(|error| error.to_string())
    }

    /// What Metal says if it was to be taken. Other systems are not expected to have it.
    fn why_no_metal(&self, kinds: &[Kind]) -> Option<String> {
        let expected = cfg!(target_os = "macos") && self.device.kind == DeviceKind::Auto && self.device.isa.is_none();
        expected.then(|| {
            let asked = Device::open(&DeviceOptions { kind: DeviceKind::Metal, ..self.device.clone() }, kinds);
            asked
                .err()
                .map_or_else(|| "it failed, but not when it was asked again".to_owned(), |error| error.to_string())
        })
    }
}

fn kind_of(device: &Device) -> DeviceKind {
    match device {
        Device::Cpu(_) => DeviceKind::Cpu,
        Device::SoftwareMetal(_) => DeviceKind::SoftwareMetal,
        #[cfg(target_os = "macos")]
        Device::Metal(_) => DeviceKind::Metal,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use vllm_apple_device::Isa;
    use vllm_apple_model::{Checkpoint, LoadOptions};

    use super::*;
    use crate::host_ops::HostOps;

    #[test]
    fn a_device_that_was_left_open_is_named_and_the_cpu_that_was_asked_for_stands_for_nothing() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/qwen2");
        let cpu = DeviceOptions { kind: DeviceKind::Cpu, threads: Some(1), ..DeviceOptions::default() };
        let of_isa = DeviceOptions { kind: DeviceKind::Auto, isa: Some(Isa::Portable), ..cpu.clone() };
        for device in [cpu, of_isa] {
            let checkpoint = Checkpoint::open(&golden).unwrap();
            let (options, prompts, host_ops) = (LoadOptions::default(), Vec::new(), HostOps::default());
            let mut subject = Subject { checkpoint, options, device, prompts, host_ops };
            let pinned = subject.pin_device().unwrap();
            assert_eq!((subject.device.kind, pinned.info.backend, pinned.instead), (DeviceKind::Cpu, "cpu", None));
            assert!(!subject.device.is_free());
        }
    }
}
