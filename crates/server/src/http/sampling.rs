//! The sampling fields that completions and chat share. Knows their names and types; ranges are the engine's to check.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use super::respond::Streaming;
use crate::generation::{Finish, SamplingOptions};
use crate::served::ServedModel;

/// Most answers to one prompt, as OpenAI's.
const MAX_N: usize = 128;

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

/// Takes the fields that mean the same in both endpoints; `logprobs` and the token limits differ and stay.
pub fn take(fields: &mut Fields) -> Result<SamplingOptions, ApiError> {
    let stop = match fields.optional("stop")? {
        None => Vec::new(),
        Some(Stop::One(stop)) => vec![stop],
        Some(Stop::Many(stops)) => stops,
    };
    if stop.iter().any(String::is_empty) {
        return Err(ApiError::param("stop", "`stop` must not contain an empty string"));
    }
    Ok(SamplingOptions {
        temperature: fields.optional("temperature")?,
        top_k: fields.optional("top_k")?,
        top_p: fields.optional("top_p")?,
        min_p: fields.optional("min_p")?,
        repetition_penalty: fields.optional("repetition_penalty")?,
        frequency_penalty: fields.optional("frequency_penalty")?,
        presence_penalty: fields.optional("presence_penalty")?,
        logit_bias: logit_bias(fields)?,
        seed: fields.optional("seed")?,
        stop,
        stop_token_ids: fields.optional("stop_token_ids")?.unwrap_or_default(),
        include_stop_str_in_output: fields.flag("include_stop_str_in_output")?,
        ignore_eos: fields.flag("ignore_eos")?,
        min_tokens: fields.optional("min_tokens")?,
        max_tokens: None,
        logprobs: None,
        prompt_logprobs: None,
        keep_special_tokens: !fields.optional("skip_special_tokens")?.unwrap_or(true),
        join_special_tokens: !fields.optional("spaces_between_special_tokens")?.unwrap_or(true),
    })
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let biases: BTreeMap<String, f32> = fields.optional("logit_bias")?.unwrap_or_default();
    let parse = |(token, bias): (String, f32)| match token.parse() {
        Ok(id) => Ok((id, bias)),
        Err(_) => {
            let message = format!("the keys of `logit_bias` must be token ids, got {token:?}");
            Err(ApiError::param("logit_bias", message))
        }
    };
    biases.into_iter().map(parse).collect()
}

/// Takes `n`, the number of answers to each prompt.
pub fn take_n(fields: &mut Fields) -> Result<usize, ApiError> {
    let n = fields.optional("n")?.unwrap_or(1);
    if (1..=MAX_N).contains(&n) {
        return Ok(n);
    }
    Err(ApiError::param("n", format!("`n` must be from 1 to {MAX_N}, got {n}")))
}

/// Takes `prompt_logprobs` into the options and says whether they were asked for. As in vLLM they cannot be streamed.
pub fn take_prompt_logprobs(
    fields: &mut Fields,
    options: &mut SamplingOptions,
    streaming: Streaming,
) -> Result<bool, ApiError> {
    options.prompt_logprobs = fields.optional("prompt_logprobs")?;
    if options.prompt_logprobs.is_some() && streaming.is_on() {
        return Err(ApiError::param("prompt_logprobs", "`prompt_logprobs` cannot be streamed: set `stream` to false"));
    }
    Ok(options.prompt_logprobs.is_some())
}

/// Tokens that the model's length leaves for the output, at least 1.
///
/// # Errors
/// If `max_tokens` asks for more, as in vLLM. A prompt that leaves none is the engine's to refuse.
pub fn room(model: &ServedModel, num_prompt_tokens: usize, max_tokens: Option<u32>) -> Result<u32, ApiError> {
    let max_model_len = model.max_model_len;
    let room = max_model_len.saturating_sub(num_prompt_tokens).max(1);
    if let Some(max_tokens) = max_tokens
        && max_tokens as usize > room
        && num_prompt_tokens < max_model_len
    {
        let message = format!(
            "the prompt has {num_prompt_tokens} tokens and `max_tokens` asks for {max_tokens} more, but the model's \
             length is {max_model_len} tokens: shorten the prompt or ask for at most {room}"
        );
        return Err(ApiError { code: Some("context_length_exceeded"), ..ApiError::param("max_tokens", message) });
    }
    Ok(u32::try_from(room).unwrap_or(u32::MAX))
}

/// vLLM's `stop_reason`: the stop token or stop string, `null` for the model's own end token and for lengths.
pub fn stop_reason(finish: &Finish) -> Option<Value> {
    match finish {
        Finish::StopToken(token) => Some((*token).into()),
        Finish::StopString(stop) => Some(stop.as_str().into()),
        Finish::EndToken | Finish::Length | Finish::Abort => None,
    }
}
