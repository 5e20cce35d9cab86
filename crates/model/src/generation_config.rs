//! `generation_config.json`: the tokens that end a reply and the model's own sampling defaults. It picks no tokens.

use crate::error::LoadError;
use crate::fields::Fields;

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
        let number = |name| Ok::<_, LoadError>(g.number(name)?.map(|n| n as f32));
        let count = |name| Ok::<_, LoadError>(g.integer(name)?.map(|n| u32::try_from(n).unwrap_or(u32::MAX)));
        Ok(Self {
            eos_token_ids,
            temperature: number("temperature")?,
            top_k: count("top_k")?,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repetition_penalty: number("repetition_penalty")?,
            max_new_tokens: count("max_new_tokens")?,
        })
    }
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
