//! What the environment says of the log: `RUST_LOG`, else vLLM's `VLLM_LOGGING_LEVEL`. Knows no line of it.

use tracing_subscriber::EnvFilter;

/// A variable that says nothing of a log.
#[derive(Debug, thiserror::Error)]
pub enum LogLevelError {
    #[error(
        "RUST_LOG={value} cannot be read: {reason}; write a level ({LEVELS}), or directives such as warn,vllm_apple=debug"
    )]
    RustLog { value: String, reason: String },
    #[error("VLLM_LOGGING_LEVEL={0} is no level: write DEBUG, INFO, WARNING, ERROR or CRITICAL")]
    Vllm(String),
}

const LEVELS: &str = "error, warn, info, debug, trace or off";

/// What is logged: `level`, unless the environment says otherwise. `get` gives the value of a variable; one that is empty counts as unset. Of what can
/// be read and is hardly meant there is a warning.
///
/// # Errors
/// A value that cannot be read.
pub fn filter(level: &str, get: impl Fn(&str) -> Option<String>) -> Result<(EnvFilter, Option<String>), LogLevelError> {
    let get = |name| get(name).filter(|value| !value.trim().is_empty());
    let of_vllm = match get("VLLM_LOGGING_LEVEL") {
        Some(value) => Some(python_level(&value).ok_or(LogLevelError::Vllm(value))?),
        None => None,
    };
    match get("RUST_LOG") {
        Some(value) => match EnvFilter::try_new(value.to_lowercase()) {
            Ok(filter) => Ok((filter, warning(&value))),
            Err(error) => Err(LogLevelError::RustLog { value, reason: error.to_string() }),
        },
        None => Ok((EnvFilter::new(of_vllm.unwrap_or(level)), None)),
    }
}

/// A level by the name that Python has for it.
fn python_level(name: &str) -> Option<&'static str> {
    Some(match name.trim().to_ascii_lowercase().as_str() {
        "trace" => "trace",
        "debug" => "debug",
        "info" => "info",
        "warn" | "warning" => "warn",
        "error" | "critical" | "fatal" => "error",
        _ => return None,
    })
}

/// A word alone that is no level is the name of what is to be shown, and as such right. Where this program has nothing of that name, it is more likely
/// a level that is misspelled.
fn warning(value: &str) -> Option<String> {
    let words = value.split(',').map(str::trim).filter(|word| !word.is_empty() && !word.contains(['=', '[', ':']));
    let is_level = |word: &str| word.parse::<tracing::metadata::LevelFilter>().is_ok();
    // As a filter compares them.
    let is_own =
        |word: &str| ["vllm_apple", "progress"].iter().any(|own| own.starts_with(word) || word.starts_with(own));
    let mut foreign = words.filter(|word| !is_level(word) && !is_own(&word.to_lowercase()));
    let word = foreign.next()?;
    Some(format!(
        "warning: RUST_LOG={value}: {word} is no level ({LEVELS}), so that it stands for the log of something of that name, of which this program has \
         nothing"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<(String, Option<String>), String> {
        let get = |asked: &str| variables.iter().find(|(name, _)| *name == asked).map(|(_, value)| (*value).to_owned());
        let filter = filter("info", get).map_err(|error| error.to_string())?;
        Ok((filter.0.to_string(), filter.1))
    }

    #[test]
    fn the_environment_says_what_is_logged() {
        for (variables, expected) in [
            (&[][..], "info"),
            (&[("RUST_LOG", ""), ("VLLM_LOGGING_LEVEL", " ")], "info"),
            (&[("VLLM_LOGGING_LEVEL", "WARNING")], "warn"),
            (&[("VLLM_LOGGING_LEVEL", "critical"), ("RUST_LOG", "Debug")], "debug"),
            (&[("RUST_LOG", "off")], "off"),
            (&[("RUST_LOG", "vllm_apple=debug")], "vllm_apple=debug"),
            (&[("RUST_LOG", "vllm_apple_engine")], "vllm_apple_engine=trace"),
            (&[("RUST_LOG", "hyper=debug")], "hyper=debug"),
        ] {
            assert_eq!(read(variables), Ok((expected.to_owned(), None)), "{variables:?}");
        }
    }

    #[test]
    fn what_is_no_level_is_named() {
        for (variable, value, word) in [
            ("VLLM_LOGGING_LEVEL", "nonsense", "WARNING"),
            ("RUST_LOG", "vllm_apple=dbug", "warn,vllm_apple=debug"),
            ("RUST_LOG", "=,=", "warn,vllm_apple=debug"),
        ] {
            let error = read(&[(variable, value)]).unwrap_err();
            assert!(error.starts_with(&format!("{variable}={value} ")) && error.contains(word), "{error}");
        }
        for value in ["dbug", "info,vlm_apple", "WARNING"] {
            let (_, warning) = read(&[("RUST_LOG", value)]).unwrap();
            let warning = warning.unwrap_or_else(|| panic!("{value}"));
            assert!(warning.contains("is no level (error, warn"), "{warning}");
        }
    }
}
