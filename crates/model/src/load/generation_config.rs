//! `generation_config.json`: the tokens that end a reply and the model's own sampling defaults. It picks no tokens.

use crate::load::error::LoadError;
use crate::load::fields::Fields;
use serde_json::Value;
use vllm_apple_executor::SamplingParams;

/// What a checkpoint recommends for generation. Fields that it does not give are `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end a reply: `generation_config.json`'s, else those of `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// See `SamplingParams`.
    pub temperature: Option<f32>,
    /// See `SamplingParams`.
    pub top_k: Option<u32>,
    /// See `SamplingParams`.
    pub top_p: Option<f32>,
    /// See `SamplingParams`.
    pub min_p: Option<f32>,
    /// See `SamplingParams`.
    pub repetition_penalty: Option<f32>,
    /// Bound of `max_tokens`.
    pub max_new_tokens: Option<u32>,
}

impl GenerationConfig {
    /// Reads `generation` if the checkpoint has that file, and the end tokens from `config` if the former names none.
    pub(crate) fn read(generation: Option<&Fields>, config: &Fields, vocab_size: usize) -> Result<Self, LoadError> {
        let mut eos_token_ids = Vec::new();
        if let Some(g) = generation {
            eos_token_ids = token_ids(g, vocab_size)?;
        }
        if eos_token_ids.is_empty() {
            eos_token_ids = token_ids(config, vocab_size)?;
        }
        let Some(g) = generation else {
            return Ok(Self { eos_token_ids, ..Self::default() });
        };
        warn_of_what_is_not_read(g);
        let number = |name| Ok::<_, LoadError>(g.number(name)?.map(|n| n as f32));
        let count = |name| Ok::<_, LoadError>(g.integer(name)?.map(|n| u32::try_from(n).unwrap_or(u32::MAX)));
        let read = Self {
            eos_token_ids,
            temperature: number("temperature")?,
            // As in vLLM, -1 keeps all tokens, too.
            top_k: if g.number("top_k")? == Some(-1.0) { Some(0) } else { count("top_k")? },
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repetition_penalty: number("repetition_penalty")?,
            max_new_tokens: count("max_new_tokens")?,
        };
        // What is out of range here would be every request's error.
        if read.max_new_tokens == Some(0) {
            return Err(g.error("max_new_tokens", "at least 1"));
        }
        let params = read.over(SamplingParams::default());
        match params.validate(vocab_size) {
            Ok(()) => Ok(read),
            Err(error) => Err(g.error(error.param, &error.expected)),
        }
    }

    /// `params` with the values that the checkpoint gives.
    fn over(&self, params: SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(params.temperature),
            top_k: self.top_k.unwrap_or(params.top_k),
            top_p: self.top_p.unwrap_or(params.top_p),
            min_p: self.min_p.unwrap_or(params.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(params.repetition_penalty),
            ..params
        }
    }
}

/// Asks for the likeliest tokens where it is false: a temperature of 0 does here.
const DO_SAMPLE: &str = "do_sample";

/// Fields that would change which tokens are picked, in transformers: as vLLM, this program does not know them.
const NOT_READ: [&str; 13] = [
    "bad_words_ids",
    "begin_suppress_tokens",
    DO_SAMPLE,
    "forced_bos_token_id",
    "forced_eos_token_id",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "num_beams",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
    "typical_p",
];

fn warn_of_what_is_not_read(generation: &Fields) {
    for (name, value) in not_read(generation) {
        let value: String = value.to_string().chars().take(100).collect();
        tracing::warn!("{}: {name} is {value}, which is not honoured", generation.path().display());
    }
}

/// The fields that are not read, and ask for something.
fn not_read(generation: &Fields) -> Vec<(&str, &Value)> {
    let is_greedy = generation.get("temperature").and_then(Value::as_f64) == Some(0.0);
    // What asks for nothing.
    let is_neutral = |name: &str, value: &Value| match value {
        Value::Bool(samples) if name == DO_SAMPLE => *samples || is_greedy,
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => matches!(number.as_f64(), Some(0.0 | 1.0)),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) => false,
    };
    let given = NOT_READ.iter().filter_map(|&name| Some((name, generation.get(name)?)));
    given.filter(|&(name, value)| !is_neutral(name, value)).collect()
}

/// `eos_token_id`: one or a list.
fn token_ids(f: &Fields, vocab_size: usize) -> Result<Vec<u32>, LoadError> {
    const FIELD: &str = "eos_token_id";
    let ids = match f.get(FIELD) {
        Some(v) if v.is_array() => f.integers(FIELD)?.unwrap_or_default(),
        _ => f.integer(FIELD)?.into_iter().collect(),
    };
    match ids.iter().all(|&id| id < vocab_size as u64) {
        true => Ok(ids.into_iter().map(|id| id as u32).collect()),
        false => Err(f.error(FIELD, &format!("below vocab_size ({vocab_size})"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn what_is_not_read_and_asks_for_something_is_told() {
        let told = |value: Value| {
            let fields = Fields::parse(Path::new("generation_config.json"), value.to_string().as_bytes()).unwrap();
            not_read(&fields).into_iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(told(json!({"do_sample": false, "top_k": 1})), ["do_sample"]);
        assert_eq!(told(json!({"do_sample": false, "temperature": 0.6, "num_beams": 4})), ["do_sample", "num_beams"]);
        for nothing in [
            json!({"do_sample": true, "num_beams": 1, "suppress_tokens": []}),
            json!({"do_sample": false, "temperature": 0.0}),
            json!({"do_sample": null}),
        ] {
            assert!(told(nothing).is_empty());
        }
    }
}
