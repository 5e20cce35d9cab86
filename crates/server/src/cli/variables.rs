//! The environment variables that choose a device and say what the Metal kernels may do. It opens no device.

use vllm_apple_device::{DeviceKind, DeviceOptions, MetalOptions};

const USE_ENGINE: &str = "VLLM_APPLE_USE_ENGINE";

/// Metal's own checks, with which archives of machine code do not go together: Apple documents that of shader validation, and the checks of the API
/// were seen to end a program that writes one (metal-rs #207). The last is an older name of the second.
const CHECKS: [&str; 3] = ["MTL_SHADER_VALIDATION", "MTL_DEBUG_LAYER", "METAL_DEVICE_WRAPPER_TYPE"];

/// An environment variable that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} must be {expected}, got {got:?}")]
pub struct OptionError {
    /// Its name.
    pub variable: &'static str,
    /// What it may be.
    pub expected: &'static str,
    /// What it is.
    pub got: String,
}

/// Options with what the variables of an environment ask for: `VLLM_METAL_ATTENTION`, `VLLM_APPLE_ENGINE_PREFILL`,
/// `VLLM_METAL_STRICT` and `VLLM_METAL_ALLOW_VM` of `0` or `1`, `VLLM_METAL_SCRATCH_POOL_MB`, `VLLM_METAL_MAX_BATCH_SIZE`, and `VLLM_APPLE_USE_ENGINE`, of
/// which `0` makes [`DeviceKind::Auto`] the CPU. With one of [`CHECKS`], compiled kernels are not kept. `get` gives a variable's value; one that is empty counts as unset.
///
/// # Errors
/// A variable that is set to something else than it may be.
pub fn device_options(
    kind: DeviceKind,
    threads: Option<usize>,
    get: impl Fn(&str) -> Option<String>,
) -> Result<DeviceOptions, OptionError> {
    let get = |name: &str| get(name).filter(|value| !value.is_empty());
    let flag = |variable, default| match get(variable) {
        None => Ok(default),
        Some(value) if value == "0" => Ok(false),
        Some(value) if value == "1" => Ok(true),
        Some(got) => Err(OptionError { variable, expected: "0 or 1", got }),
    };
    let number = |variable, expected, max: usize| match get(variable) {
        None => Ok(None),
        Some(value) => match value.parse() {
            Ok(number) if (1..=max).contains(&number) => Ok(Some(number)),
            _ => Err(OptionError { variable, expected, got: value }),
        },
    };
    let defaults = MetalOptions::default();
    let megabytes = number("VLLM_METAL_SCRATCH_POOL_MB", "a number of MiB from 1 on", usize::MAX >> 20)?;
    let tokens = number("VLLM_METAL_MAX_BATCH_SIZE", "a number of tokens from 1 on", usize::MAX)?;
    let is_validated = CHECKS.iter().any(|name| get(name).is_some_and(|value| value != "0"));
    let cache = dirs::cache_dir().filter(|_| !is_validated).map(|cache| cache.join("vllm-apple"));
    let metal = MetalOptions {
        attention: flag("VLLM_METAL_ATTENTION", defaults.attention)?,
        prefill: flag("VLLM_APPLE_ENGINE_PREFILL", defaults.prefill)?,
        strict: flag("VLLM_METAL_STRICT", defaults.strict)?,
        scratch_pool: megabytes.map(|n| n << 20),
        max_batch_size: tokens.unwrap_or(defaults.max_batch_size),
        allow_vm: flag("VLLM_METAL_ALLOW_VM", defaults.allow_vm)?,
        cache,
    };
    let kind = match (kind, flag(USE_ENGINE, true)?) {
        (DeviceKind::Auto, false) => {
            tracing::info!("{USE_ENGINE}=0: computing on the CPU");
            DeviceKind::Cpu
        }
        (DeviceKind::Metal | DeviceKind::SoftwareMetal, false) => {
            tracing::warn!("{USE_ENGINE}=0 is ignored: the Metal kernels are asked for");
            kind
        }
        _ => kind,
    };
    Ok(DeviceOptions { kind, threads, isa: None, metal })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_for(kind: DeviceKind, variables: &[(&str, &str)]) -> Result<DeviceOptions, OptionError> {
        let find = |name: &str| variables.iter().find(|v| v.0 == name).map(|v| v.1.to_owned());
        device_options(kind, Some(2), find)
    }

    fn read(variables: &[(&str, &str)]) -> Result<MetalOptions, OptionError> {
        read_for(DeviceKind::Auto, variables).map(|options| options.metal)
    }

    #[test]
    fn the_environment_may_ask_for_the_cpu() {
        let kind = |kind, value| read_for(kind, &[(USE_ENGINE, value)]).map(|options| options.kind);
        assert_eq!(kind(DeviceKind::Auto, ""), Ok(DeviceKind::Auto));
        assert_eq!(kind(DeviceKind::Auto, "1"), Ok(DeviceKind::Auto));
        assert_eq!(kind(DeviceKind::Auto, "0"), Ok(DeviceKind::Cpu));
        assert_eq!(kind(DeviceKind::SoftwareMetal, "0"), Ok(DeviceKind::SoftwareMetal));
        let error = kind(DeviceKind::Auto, "no").unwrap_err().to_string();
        assert!(error.contains("VLLM_APPLE_USE_ENGINE") && error.contains("no"), "{error}");
    }

    #[test]
    fn variables_change_what_they_name() {
        let cache = dirs::cache_dir().map(|cache| cache.join("vllm-apple"));
        let unchanged = MetalOptions { cache: cache.clone(), ..MetalOptions::default() };
        assert_eq!(read(&[]), Ok(unchanged.clone()));
        assert_eq!(read(&[("VLLM_METAL_ATTENTION", ""), ("VLLM_METAL_STRICT", "0")]), Ok(unchanged));
        let all = [
            ("VLLM_METAL_ATTENTION", "0"),
            ("VLLM_APPLE_ENGINE_PREFILL", "0"),
            ("VLLM_METAL_STRICT", "1"),
            ("VLLM_METAL_SCRATCH_POOL_MB", "3"),
            ("VLLM_METAL_MAX_BATCH_SIZE", "77"),
            ("VLLM_METAL_ALLOW_VM", "1"),
        ];
        let scratch_pool = Some(3 << 20);
        let changed = MetalOptions {
            attention: false,
            prefill: false,
            strict: true,
            scratch_pool,
            max_batch_size: 77,
            allow_vm: true,
            cache,
        };
        assert_eq!(read(&all), Ok(changed));
    }

    #[test]
    fn kernels_under_metals_own_checks_are_neither_kept_nor_found() {
        for name in CHECKS {
            let kept = |value| read(&[(name, value)]).map(|options| options.cache);
            assert_eq!(kept("1"), Ok(None), "{name}");
            assert_eq!(kept("2"), Ok(None), "{name}");
            let cache = dirs::cache_dir().map(|cache| cache.join("vllm-apple"));
            assert_eq!(kept("0"), Ok(cache.clone()), "{name}");
            assert_eq!(kept(""), Ok(cache), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for (name, value) in [
            ("VLLM_METAL_ATTENTION", "yes"),
            ("VLLM_APPLE_ENGINE_PREFILL", "2"),
            ("VLLM_METAL_STRICT", "true"),
            ("VLLM_METAL_SCRATCH_POOL_MB", "0"),
            ("VLLM_METAL_SCRATCH_POOL_MB", "99999999999999999"),
            ("VLLM_METAL_MAX_BATCH_SIZE", "-1"),
        ] {
            let error = read(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
