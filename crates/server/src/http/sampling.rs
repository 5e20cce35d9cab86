//! The sampling fields that completions and chat share. Knows their names and types; ranges are the engine's to check.

use std::sync::Arc;

use serde_json::Value;
use vllm_apple_executor::check_number;

use super::error::ApiError;
use super::fields::{Fields, REQUEST_ID_HEADER};
use super::lists::{Bounded, Entries, Strings, TokenId, ids};
use super::respond::Streaming;
use crate::generation::{Delta, Finish, SamplingOptions};
use crate::served::ServedModel;

/// Most answers to one prompt, as OpenAI's.
const MAX_N: usize = 128;

/// Most stop strings of a request, and most bytes of all of them: each token's text is searched for all, on a thread that others need.
const MAX_STOPS: usize = 128;
const MAX_STOP_BYTES: usize = 16 << 10;

/// Most tokens of `logit_bias` and of `stop_token_ids`: each step looks at all of them, beside those of others.
const MAX_TOKENS: usize = 8192;

/// Most characters of what a client may call a request or its prefixes.
const MAX_NAME: usize = 256;

/// Takes the fields that mean the same in both endpoints; `logprobs` and the token limits differ and stay.
pub fn take(fields: &mut Fields) -> Result<SamplingOptions, ApiError> {
    let stop = fields.optional("stop")?.map_or(Vec::new(), |Strings::<MAX_STOPS>(stops)| stops);
    if stop.iter().any(String::is_empty) {
        return Err(ApiError::param("stop", "`stop` must not contain an empty string"));
    }
    let stop_bytes: usize = stop.iter().map(String::len).sum();
    if stop_bytes > MAX_STOP_BYTES {
        let message =
            format!("the strings of `stop` have {stop_bytes} bytes, at most {MAX_STOP_BYTES} are taken: shorten them");
        return Err(ApiError::param("stop", message));
    }
    let stop_token_ids = fields.optional::<Bounded<TokenId, MAX_TOKENS>>("stop_token_ids")?;
    let top_k: Option<i64> = fields.optional("top_k")?;
    if let Some(top_k @ ..-1) = top_k {
        return Err(ApiError::param(
            "top_k",
            format!("`top_k` must be at least 1, or 0 or -1 for all tokens, got {top_k}"),
        ));
    }
    Ok(SamplingOptions {
        temperature: number(fields, "temperature")?,
        top_k,
        top_p: number(fields, "top_p")?,
        min_p: number(fields, "min_p")?,
        repetition_penalty: number(fields, "repetition_penalty")?,
        frequency_penalty: number(fields, "frequency_penalty")?,
        presence_penalty: number(fields, "presence_penalty")?,
        logit_bias: logit_bias(fields)?,
        seed: fields.optional("seed")?,
        stop: stop.into(),
        stop_token_ids: stop_token_ids.map(|Bounded(tokens)| ids(tokens)).unwrap_or_default().into(),
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

/// Takes a number that may be missing. The engine checks what it is rounded to; an error is to say what was sent.
fn number(fields: &mut Fields, name: &'static str) -> Result<Option<f32>, ApiError> {
    fields.optional(name)?.map(|sent| rounded(name, sent)).transpose()
}

fn rounded(name: &'static str, sent: f64) -> Result<f32, ApiError> {
    check_number(name, sent).map_err(|error| ApiError::param(name, error.to_string()))?;
    Ok(sent as f32)
}

/// The biases by token, each token once.
fn logit_bias(fields: &mut Fields) -> Result<Arc<[(u32, f32)]>, ApiError> {
    let Some(Entries(biases)) = fields.optional::<Entries<f64, MAX_TOKENS>>("logit_bias")? else {
        return Ok(Arc::default());
    };
    let parse = |(token, bias): (String, f64)| match token.parse() {
        Ok(id) => Ok((id, rounded("logit_bias", bias)?)),
        Err(_) => {
            let message = format!("the keys of `logit_bias` must be token ids, got {token:?}");
            Err(ApiError::param("logit_bias", message))
        }
    };
    let mut biases: Vec<(u32, f32)> = biases.into_iter().map(parse).collect::<Result<_, _>>()?;
    // Of equal names the last counts, as everywhere in a body.
    biases.reverse();
    biases.sort_by_key(|bias| bias.0);
    biases.dedup_by_key(|bias| bias.0);
    Ok(biases.into())
}

/// Takes a string that the server repeats or keeps, and does not let grow.
fn take_name(fields: &mut Fields, name: &'static str) -> Result<Option<String>, ApiError> {
    fields.optional(name)?.map(|text| bounded_name(name, text)).transpose()
}

fn bounded_name(name: &str, text: String) -> Result<String, ApiError> {
    if text.is_empty() || text.chars().count() > MAX_NAME {
        return Err(ApiError::param(name, format!("`{name}` must have 1 to {MAX_NAME} characters")));
    }
    Ok(text)
}

/// Takes the client's name for the request: as in vLLM that of the header, or else `request_id`.
pub fn take_request_id(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let own = take_name(fields, "request_id")?;
    let Some(header) = fields.named.take() else { return Ok(own) };
    fields.without_effect.extend(own.map(|_| "request_id"));
    match header.to_str() {
        Ok(text) => bounded_name(REQUEST_ID_HEADER, text.to_owned()).map(Some),
        Err(_) => {
            Err(ApiError::param(REQUEST_ID_HEADER, format!("`{REQUEST_ID_HEADER}` must have ASCII characters alone")))
        }
    }
}

/// Takes `cache_salt`: prompts share the prefix cache with prompts of the same salt alone.
pub fn take_cache_salt(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    take_name(fields, "cache_salt")
}

/// Checks that the answers asked for can be in the engine at once.
pub fn check_choices(model: &ServedModel, num_prompts: usize, n: usize) -> Result<(), ApiError> {
    let (choices, capacity) = (num_prompts.saturating_mul(n), model.engine.capacity());
    if choices <= capacity {
        return Ok(());
    }
    let message = format!(
        "{num_prompts} prompts with {n} answers each are {choices} answers, more than the {capacity} that this server holds at once: \
         send several requests, or start the server with a larger --max-waiting"
    );
    Err(ApiError::param(if n > num_prompts { "n" } else { "prompt" }, message))
}

/// Takes `n`, the number of answers to each prompt.
pub fn take_n(fields: &mut Fields) -> Result<usize, ApiError> {
    let n = fields.optional("n")?.unwrap_or(1);
    if (1..=MAX_N).contains(&n) {
        return Ok(n);
    }
    Err(ApiError::param("n", format!("`n` must be from 1 to {MAX_N}, got {n}")))
}

/// Takes `prompt_logprobs` into the options and says how many were asked for. As in vLLM they cannot be streamed.
pub fn take_prompt_logprobs(
    fields: &mut Fields,
    options: &mut SamplingOptions,
    streaming: Streaming,
) -> Result<Option<u32>, ApiError> {
    options.prompt_logprobs = fields.optional("prompt_logprobs")?;
    if options.prompt_logprobs.is_some() && streaming.is_on() {
        return Err(ApiError::param("prompt_logprobs", "`prompt_logprobs` cannot be streamed: set `stream` to false"));
    }
    Ok(options.prompt_logprobs)
}

/// Tokens that the model's length leaves for the output, at least 1: a prompt that leaves none is the engine's to refuse. An answer that may have more
/// ends there: agents ask for tens of thousands, whatever the model's length.
pub fn room(model: &ServedModel, num_prompt_tokens: usize) -> u32 {
    u32::try_from(model.max_model_len.saturating_sub(num_prompt_tokens).max(1)).unwrap_or(u32::MAX)
}

/// vLLM's `stop_reason`: the stop string or stop token, `null` for the tokenizer's own end token and for lengths. Further end tokens of
/// generation_config.json are stop tokens to vLLM.
pub fn stop_reason(delta: &Delta, model: &ServedModel) -> Option<Value> {
    match delta.finish.as_ref()? {
        Finish::StopToken(token) => Some((*token).into()),
        Finish::StopString(stop) => Some(stop.as_str().into()),
        Finish::EndToken => {
            let token = delta.tokens.last()?.token_id;
            (model.tokenizer.eos_token_id() != Some(token)).then(|| token.into())
        }
        Finish::Length | Finish::Abort => None,
    }
}
