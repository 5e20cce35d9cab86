//! What the user decides about the Metal backend, from environment variables. It knows no device.

/// Choices of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetalOptions {
    /// `VLLM_METAL_ATTENTION`: attention on the device; `0` computes it on the host.
    pub attention: bool,
    /// `VLLM_APPLE_ENGINE_PREFILL`: steps with more than one new token of a request on the device; `0` computes them by the
    /// ops' reference formulas on the host, slowly. Prefill and decode may then differ in the last bits.
    pub prefill: bool,
    /// `VLLM_METAL_STRICT`: `1` makes what would be computed on the host an error, unless the two above put it there.
    pub strict: bool,
    /// `VLLM_METAL_SCRATCH_POOL_MB`: most bytes of the ops' scratch; `None` is without limit.
    pub scratch_pool: Option<usize>,
    /// `VLLM_METAL_MAX_BATCH_SIZE`: most tokens of a step. A command buffer that runs for seconds is ended by the system.
    pub max_batch_size: usize,
}

impl Default for MetalOptions {
    fn default() -> Self {
        Self { attention: true, prefill: true, strict: false, scratch_pool: None, max_batch_size: 16384 }
    }
}

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

impl MetalOptions {
    /// The options that the environment asks for. A variable that is empty counts as unset.
    ///
    /// # Errors
    /// A variable that is set to something else than it may be.
    pub fn from_env() -> Result<Self, OptionError> {
        Self::from_variables(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, OptionError> {
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
        let defaults = Self::default();
        let megabytes = number("VLLM_METAL_SCRATCH_POOL_MB", "a number of MiB from 1 on", usize::MAX >> 20)?;
        let tokens = number("VLLM_METAL_MAX_BATCH_SIZE", "a number of tokens from 1 on", usize::MAX)?;
        Ok(Self {
            attention: flag("VLLM_METAL_ATTENTION", defaults.attention)?,
            prefill: flag("VLLM_APPLE_ENGINE_PREFILL", defaults.prefill)?,
            strict: flag("VLLM_METAL_STRICT", defaults.strict)?,
            scratch_pool: megabytes.map(|n| n << 20),
            max_batch_size: tokens.unwrap_or(defaults.max_batch_size),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<MetalOptions, OptionError> {
        let find = |name: &str| variables.iter().find(|v| v.0 == name).map(|v| v.1.to_owned());
        MetalOptions::from_variables(find)
    }

    #[test]
    fn variables_change_what_they_name() {
        assert_eq!(read(&[]), Ok(MetalOptions::default()));
        assert_eq!(read(&[("VLLM_METAL_ATTENTION", ""), ("VLLM_METAL_STRICT", "0")]), Ok(MetalOptions::default()));
        let all = [
            ("VLLM_METAL_ATTENTION", "0"),
            ("VLLM_APPLE_ENGINE_PREFILL", "0"),
            ("VLLM_METAL_STRICT", "1"),
            ("VLLM_METAL_SCRATCH_POOL_MB", "3"),
            ("VLLM_METAL_MAX_BATCH_SIZE", "77"),
        ];
        let scratch_pool = Some(3 << 20);
        let changed = MetalOptions { attention: false, prefill: false, strict: true, scratch_pool, max_batch_size: 77 };
        assert_eq!(read(&all), Ok(changed));
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
