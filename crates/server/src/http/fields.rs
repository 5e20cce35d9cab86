//! The fields of a JSON request body, taken one by one so that every fault names its field. Knows no endpoint's fields
//! except those that no endpoint supports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use futures_util::StreamExt;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::App;
use super::error::{ApiError, shown};
use super::memory::{Held, PER_BODY_BYTE};

/// In longer fields a fault is named without its path, and not looked for a second time.
const MAX_FOLLOWED: usize = 64 << 10;

/// Bytes that a fault takes at most for each byte of a string that stands where it may not: it is quoted with its escapes, `\u{7f}`.
const PER_QUOTED_BYTE: usize = 6;

/// A field that cannot be honoured: name, the value that asks for nothing, advice. Ignoring it silently would give a wrong answer, so that
/// any other value is refused.
pub type Unsupported = (&'static str, &'static str, &'static str);

/// Fields of vLLM's and OpenAI's requests, and of other servers' that mean a constraint, that no endpoint honours.
const UNSUPPORTED: &[Unsupported] = &[
    ("allowed_token_ids", "[]", "use logit_bias to steer tokens"),
    ("allowed_tokens", "[]", "use logit_bias to steer tokens"),
    ("audio", "{}", "only text is generated"),
    ("bad_words", "[]", "use logit_bias to steer tokens"),
    ("bad_words_ids", "[]", "use logit_bias to steer tokens"),
    ("begin_suppress_tokens", "[]", "use logit_bias to steer tokens"),
    ("chat_template", "\"\"", "only the chat API renders a template"),
    ("detokenize", "true", "answers are text; `return_token_ids` brings the tokens beside it"),
    ("do_sample", "true", "set temperature to 0 for the most likely token"),
    ("ebnf", "\"\"", "use `structured_outputs.grammar`, in llguidance's variant of Lark"),
    ("eos_token_id", "[]", "use `stop_token_ids`"),
    ("extra_body", "{}", "it is an argument of OpenAI's client, which puts its fields beside the others"),
    ("force_words_ids", "[]", "use logit_bias to steer tokens"),
    ("forced_bos_token_id", "null", "use logit_bias to steer tokens"),
    ("forced_eos_token_id", "null", "use `stop_token_ids`"),
    ("function_call", "\"none\"", "use `tools`"),
    ("functions", "[]", "use `tools`"),
    ("grammar", "\"\"", "use `structured_outputs.grammar`, in llguidance's variant of Lark"),
    ("guided_decoding", "{}", "use `structured_outputs`"),
    ("kv_transfer_params", "{}", "the KV cache stays in this process"),
    ("length_penalty", "1.0", "beam search is not available"),
    ("logits_processors", "[]", "use logit_bias to steer tokens"),
    ("logprob_token_ids", "[]", "use `logprobs`"),
    ("max_length", "null", "use max_tokens"),
    ("max_new_tokens", "null", "use max_tokens"),
    ("max_output_tokens", "null", "use max_tokens"),
    ("max_time", "null", "use max_tokens"),
    ("min_length", "0", "use min_tokens"),
    ("min_new_tokens", "0", "use min_tokens"),
    ("mm_processor_kwargs", "{}", "only text is read"),
    ("modalities", "[\"text\"]", "only text is generated"),
    ("n_predict", "-1", "use max_tokens"),
    ("no_repeat_ngram_size", "0", "use repetition_penalty"),
    ("num_beams", "1", "use n with sampling"),
    ("num_predict", "-1", "use max_tokens"),
    ("num_return_sequences", "1", "use n"),
    ("priority", "0", "requests are served first come, first served"),
    ("prompt_embeds", "[]", "send text or token ids"),
    ("repeat_penalty", "1.0", "use repetition_penalty"),
    ("repetition_detection", "{}", "use repetition_penalty"),
    ("sequence_bias", "{}", "use logit_bias to steer tokens"),
    ("stop_regex", "[]", "use `stop`"),
    ("stop_sequences", "[]", "use `stop`"),
    ("stop_words", "[]", "use `stop`"),
    ("structural_tag", "\"\"", "use `structured_outputs`"),
    ("structured_output", "{}", "use `structured_outputs`"),
    ("suffix", "\"\"", "models served here continue a prompt, they do not fill in"),
    ("suppress_tokens", "[]", "use logit_bias to steer tokens"),
    ("thinking_token_budget", "-1", "use max_tokens"),
    ("truncate_prompt_tokens", "-1", "shorten the prompt before sending it"),
    ("typical_p", "1.0", "use top_p or min_p"),
    ("use_beam_search", "false", "use n with sampling"),
    ("watermarking", "false", "tokens are not marked"),
];

/// Fields that change nothing in an answer, whatever they hold.
const WITHOUT_EFFECT: &[&str] =
    &["user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "session_id"];

/// Most fields of a request: several times as many as any API has.
const MAX_FIELDS: usize = 256;

/// The fields of a request that have not been taken yet.
#[derive(Debug)]
pub struct Fields {
    untaken: BTreeMap<String, Box<RawValue>>,
    /// Of the body.
    pub bytes: usize,
    /// The memory of the request, to be held for as long as it lives.
    pub held: Held,
}

/// An object with at most [`MAX_FIELDS`] fields, whose values stay unread. Of equal names the last counts, as in Python.
#[derive(Default)]
pub struct Object(pub BTreeMap<String, Box<RawValue>>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Object, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((name, value)) = entries.next_entry()? {
                    fields.insert(name, value);
                    if fields.len() > MAX_FIELDS {
                        return Err(A::Error::custom(format_args!("more than {MAX_FIELDS} fields")));
                    }
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl Fields {
    /// Reads the body's object; its values stay unread.
    pub fn parse(body: &[u8], held: Held) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Object(untaken)) => Ok(Self { untaken, bytes: body.len(), held }),
            Err(error) => Err(ApiError::body(format!("the body is not a JSON object: {}", shown(&error)))),
        }
    }

    /// Takes a field that may be missing; `null` counts as missing.
    pub fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.untaken.remove(name) else { return Ok(None) };
        let is_long = raw.get().len() > MAX_FOLLOWED;
        let quoted = if is_long { raw.get().len() * PER_QUOTED_BYTE } else { 0 };
        self.held.grow(quoted)?;
        let read = serde_json::from_str(raw.get());
        self.held.shrink(quoted);
        let error = match read {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        // To follow the path to a fault takes several times as long as to read.
        if is_long {
            return Err(invalid(name, &error));
        }
        let mut json = serde_json::Deserializer::from_str(raw.get());
        serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let inner = error.path().to_string();
            let param = match inner.as_str() {
                "." => name.to_owned(),
                path if path.starts_with('[') => format!("{name}{path}"),
                path => format!("{name}.{path}"),
            };
            invalid(&param, &error.into_inner())
        })
    }

    /// Takes a field that must be there.
    pub fn required<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        let missing = || ApiError::param(name, format!("`{name}` is required"));
        self.optional(name)?.ok_or_else(missing)
    }

    /// Takes a field that may be missing as the text that it is.
    pub fn raw(&mut self, name: &str) -> Option<Box<RawValue>> {
        self.untaken.remove(name).filter(|raw| raw.get() != "null")
    }

    /// Takes a switch that is off unless the request says otherwise.
    pub fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        Ok(self.optional(name)?.unwrap_or(false))
    }

    /// Whether the field is there and not `null`.
    pub fn has(&self, name: &str) -> bool {
        self.untaken.get(name).is_some_and(|raw| raw.get() != "null")
    }

    /// Refuses what is left and known to be unsupported; what nobody knows is ignored with a warning, as in vLLM.
    /// What is left is the memory that the request holds.
    /// `elsewhere` are fields that only other endpoints know, in the same way: name, neutral value, advice.
    pub fn finish(mut self, elsewhere: &[Unsupported]) -> Result<Held, ApiError> {
        // Longer than anything that asks for nothing, with room for spaces.
        const LONG: usize = 200;
        for &(name, neutral, advice) in UNSUPPORTED.iter().chain(elsewhere) {
            let is_long = self.untaken.get(name).is_some_and(|raw| raw.get().len() > LONG);
            if is_long
                || self
                    .optional::<serde_json::Value>(name)?
                    .is_some_and(|value| serde_json::from_str::<serde_json::Value>(neutral).ok() != Some(value))
            {
                return Err(ApiError::unsupported(name, advice));
            }
        }
        for name in WITHOUT_EFFECT {
            self.untaken.remove(*name);
        }
        if !self.untaken.is_empty() {
            warn_of_unknown(self.untaken.keys());
        }
        Ok(self.held)
    }
}

/// Says once of each field that nobody knows it; of so many, that is: a log is not for clients to fill.
fn warn_of_unknown<'a>(names: impl Iterator<Item = &'a String>) {
    const MOST: usize = 200;
    static KNOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let new: Vec<String> = names
        .map(|name| name.chars().take(64).collect())
        .filter(|name| !known.contains(name))
        .take(MOST - known.len())
        .collect();
    if !new.is_empty() {
        known.extend(new.iter().cloned());
        let last = if known.len() == MOST { "; further ones are not named" } else { "" };
        tracing::warn!(names = ?new, "ignored unknown fields of a request{last}");
    }
}

/// A field that cannot be read, for this reason.
fn invalid(param: &str, reason: &serde_json::Error) -> ApiError {
    let reason = shown(reason);
    // The position is one within the field, which would mislead.
    let reason = reason.rfind(" at line ").map_or(&*reason, |end| &reason[..end]);
    ApiError::param(param, format!("`{param}` is not valid: {reason}"))
}

impl FromRequest<Arc<App>> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = content_type.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
        // A browser sends other types across origins without asking; JSON it must ask for.
        if !media_type.eq_ignore_ascii_case("application/json") {
            return Err(ApiError::not_json());
        }
        let mut held = app.memory.hold();
        let body = read(request.into_body(), app.config.max_body_size, &mut held).await?;
        app.text.read(body.len(), move || Self::parse(&body, held)).await
    }
}

/// The whole body. Its memory is taken as it comes: a client that announces much and sends little holds little.
async fn read(body: Body, limit: usize, held: &mut Held) -> Result<Vec<u8>, ApiError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(ApiError::too_large(limit));
    }
    let mut whole = Vec::new();
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| ApiError::body(format!("the body could not be read: {error}")))?;
        if whole.len() + chunk.len() > limit {
            return Err(ApiError::too_large(limit));
        }
        held.grow(chunk.len() * PER_BODY_BYTE)?;
        whole.extend_from_slice(&chunk);
    }
    Ok(whole)
}
