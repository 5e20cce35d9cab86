//! `--speculative-config`, as vLLM has it: JSON. It knows the one method that there is.

use serde::Deserialize;
use serde_json::Value;
use vllm_apple_engine::Speculation;

/// The fields of vLLM's that mean something here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    method: Option<String>,
    /// vLLM takes the method's name here, too.
    model: Option<String>,
    num_speculative_tokens: Option<usize>,
    prompt_lookup_min: Option<usize>,
    prompt_lookup_max: Option<usize>,
}

/// More are a mistake. Of these a step takes as many as it has room for: 7.
const MOST: usize = 15;

/// What vLLM looks for where neither bound is given.
const LOOKUP: usize = 5;

/// Reads it.
pub fn parse(text: &str) -> Result<Speculation, String> {
    const EXAMPLE: &str = r#"{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}"#;
    let value: Value =
        serde_json::from_str(text).map_err(|error| format!("{error}; expected JSON such as {EXAMPLE}"))?;
    let is_ngram = |name: &Value| name.as_str().is_some_and(|name| ["ngram", "[ngram]"].contains(&name));
    // Before other fields, which are those of another method.
    if let Some(other) = [&value["method"], &value["model"]].into_iter().find(|name| !name.is_null() && !is_ngram(name))
    {
        return Err(format!(
            "the method or model is {other}, expected \"ngram\": there are no models for drafts; such as {EXAMPLE}"
        ));
    }
    let config: Config = serde_json::from_value(value).map_err(|error| format!("{error}; expected {EXAMPLE}"))?;
    if config.method.or(config.model).is_none() {
        return Err(format!("there is no method, expected \"ngram\": such as {EXAMPLE}"));
    }
    let num_speculative_tokens = match config.num_speculative_tokens {
        Some(number @ 1..=MOST) => number,
        Some(number) => return Err(format!("num_speculative_tokens is {number}, expected 1 to {MOST}")),
        None => return Err(format!("there is no num_speculative_tokens, expected 1 to {MOST}")),
    };
    let (min, max) = (config.prompt_lookup_min, config.prompt_lookup_max);
    let (prompt_lookup_min, prompt_lookup_max) = (min.or(max).unwrap_or(LOOKUP), max.or(min).unwrap_or(LOOKUP));
    if prompt_lookup_min == 0 || prompt_lookup_min > prompt_lookup_max {
        return Err(format!(
            "prompt_lookup_min is {prompt_lookup_min} and prompt_lookup_max {prompt_lookup_max}, expected at least 1 and no less"
        ));
    }
    Ok(Speculation { num_speculative_tokens, prompt_lookup_min, prompt_lookup_max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_vllms() {
        let read = |text: &str| {
            let Speculation { num_speculative_tokens, prompt_lookup_min, prompt_lookup_max } = parse(text).unwrap();
            (num_speculative_tokens, prompt_lookup_min, prompt_lookup_max)
        };
        assert_eq!(read(r#"{"method": "ngram", "num_speculative_tokens": 3}"#), (3, 5, 5));
        assert_eq!(read(r#"{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}"#), (3, 4, 4));
        assert_eq!(read(r#"{"model": "[ngram]", "num_speculative_tokens": 3, "prompt_lookup_min": 2}"#), (3, 2, 2));
        let both =
            r#"{"method": "ngram", "num_speculative_tokens": 15, "prompt_lookup_min": 2, "prompt_lookup_max": 4}"#;
        assert_eq!(read(both), (15, 2, 4));
    }

    #[test]
    fn what_is_not_there_is_named() {
        for (text, names) in [
            ("ngram", "expected JSON such as"),
            ("[]", "expected {"),
            ("{}", "no method"),
            (r#"{"method": "eagle3", "model": "a/b", "num_speculative_tokens": 2}"#, "\"eagle3\", expected \"ngram\""),
            (r#"{"model": "a/b", "draft_tensor_parallel_size": 1}"#, "\"a/b\", expected \"ngram\""),
            (r#"{"method": "ngram"}"#, "no num_speculative_tokens"),
            (r#"{"method": "ngram", "num_speculative_tokens": 16}"#, "is 16, expected 1 to 15"),
            (r#"{"method": "ngram", "num_speculative_tokens": 0}"#, "is 0"),
            (r#"{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 0}"#, "prompt_lookup_max 0"),
            (
                r#"{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 3, "prompt_lookup_max": 2}"#,
                "is 3",
            ),
            (
                r#"{"method": "ngram", "num_speculative_tokens": 2, "disable_by_batch_size": 4}"#,
                "disable_by_batch_size",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(names), "{text}: {error}");
        }
    }
}
