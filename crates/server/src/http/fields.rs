//! The fields of a JSON request body, taken one by one so that every fault names its field. Knows no endpoint's fields
//! except those that no endpoint supports.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::error::ApiError;

/// Fields of vLLM's and OpenAI's requests that this server cannot honour: name, the value that asks for nothing, advice.
/// Ignoring one silently would give a wrong answer, so that any other value is refused.
const UNSUPPORTED: &[(&str, &str, &str)] = &[
    ("allowed_token_ids", "[]", "use logit_bias to steer tokens"),
    ("audio", "{}", "only text is generated"),
    ("bad_words", "[]", "use logit_bias to steer tokens"),
    ("cache_salt", "\"\"", "the prefix cache is shared by all clients; --no-enable-prefix-caching turns it off"),
    ("chat_template", "\"\"", "only the chat API renders a template"),
    ("function_call", "\"none\"", "use `tools`"),
    ("functions", "[]", "use `tools`"),
    ("guided_choice", "[]", "structured output is not available yet"),
    ("guided_grammar", "\"\"", "structured output is not available yet"),
    ("guided_json", "{}", "structured output is not available yet"),
    ("guided_regex", "\"\"", "structured output is not available yet"),
    ("kv_transfer_params", "{}", "the KV cache stays in this process"),
    ("length_penalty", "1.0", "beam search is not available"),
    ("logits_processors", "[]", "use logit_bias to steer tokens"),
    ("logprob_token_ids", "[]", "use `logprobs`"),
    ("mm_processor_kwargs", "{}", "only text is read"),
    ("modalities", "[\"text\"]", "only text is generated"),
    ("priority", "0", "requests are served first come, first served"),
    ("prompt_embeds", "[]", "send text or token ids"),
    ("repetition_detection", "{}", "use repetition_penalty"),
    ("response_format", "{\"type\":\"text\"}", "structured output is not available yet; only the type `text` is"),
    ("structured_outputs", "{}", "structured output is not available yet"),
    ("suffix", "\"\"", "models served here continue a prompt, they do not fill in"),
    ("thinking_token_budget", "-1", "use max_tokens"),
    ("truncate_prompt_tokens", "-1", "shorten the prompt before sending it"),
    ("use_beam_search", "false", "use n with sampling"),
    ("watermarking", "false", "tokens are not marked"),
];

/// Fields that change nothing in an answer, whatever they hold.
const WITHOUT_EFFECT: &[&str] =
    &["user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "session_id"];

/// The fields of a request that have not been taken yet.
#[derive(Debug, Default)]
pub struct Fields(BTreeMap<String, Box<RawValue>>);

impl Fields {
    /// Reads the body's object; its values stay unread.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(fields) => Ok(Self(fields)),
            Err(error) => Err(ApiError::body(format!("the body is not a JSON object: {error}"))),
        }
    }

    /// Takes a field that may be missing; `null` counts as missing.
    pub fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.0.remove(name) else { return Ok(None) };
        let mut json = serde_json::Deserializer::from_str(raw.get());
        serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let inner = error.path().to_string();
            let param = match inner.as_str() {
                "." => name.to_owned(),
                path if path.starts_with('[') => format!("{name}{path}"),
                path => format!("{name}.{path}"),
            };
            let reason = error.into_inner().to_string();
            // The position is one within the field, which would mislead.
            let reason = reason.rfind(" at line ").map_or(reason.as_str(), |end| &reason[..end]);
            let message = format!("`{param}` is not valid: {reason}");
            ApiError::param(param, message)
        })
    }

    /// Takes a field that must be there.
    pub fn required<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        let missing = || ApiError::param(name, format!("`{name}` is required"));
        self.optional(name)?.ok_or_else(missing)
    }

    /// Takes a field that may be missing as the text that it is.
    pub fn raw(&mut self, name: &str) -> Option<Box<RawValue>> {
        self.0.remove(name).filter(|raw| raw.get() != "null")
    }

    /// Takes a switch that is off unless the request says otherwise.
    pub fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        Ok(self.optional(name)?.unwrap_or(false))
    }

    /// Whether the field is there and not `null`.
    pub fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|raw| raw.get() != "null")
    }

    /// Refuses what is left and known to be unsupported; what nobody knows is ignored with a warning, as in vLLM.
    pub fn finish(mut self) -> Result<(), ApiError> {
        for &(name, neutral, advice) in UNSUPPORTED {
            if let Some(value) = self.optional::<serde_json::Value>(name)?
                && serde_json::from_str(neutral).ok().as_ref() != Some(&value)
            {
                return Err(ApiError::unsupported(name, advice));
            }
        }
        for name in WITHOUT_EFFECT {
            self.0.remove(*name);
        }
        if !self.0.is_empty() {
            let names: Vec<_> = self.0.keys().collect();
            tracing::warn!(?names, "ignored unknown fields of a request");
        }
        Ok(())
    }
}

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = content_type.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
        // A browser sends other types across origins without asking; JSON it must ask for.
        if !media_type.eq_ignore_ascii_case("application/json") {
            return Err(ApiError::not_json());
        }
        let body = Bytes::from_request(request, state).await.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large(super::MAX_BODY_BYTES),
            _ => ApiError::body(format!("the body could not be read: {rejection}")),
        })?;
        Self::parse(&body)
    }
}
