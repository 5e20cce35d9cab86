//! The fields of a JSON request body, taken one by one so that every fault names its field. Knows no endpoint's fields.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::StreamExt;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::App;
use super::error::{ApiError, shown};
use super::field_names::{UNSUPPORTED, Unsupported, WITHOUT_EFFECT, is_neutral, nearest};
pub use super::known::{Known, whole_number};
use super::memory::{Held, PER_BODY_BYTE};

/// In longer fields a fault is named without its path, and not looked for a second time.
const MAX_FOLLOWED: usize = 64 << 10;

/// Bytes that a fault takes at most for each byte of a string that stands where it may not: it is quoted with its escapes, `\u{7f}`.
const PER_QUOTED_BYTE: usize = 6;

/// Most fields of a request: several times as many as any API has.
const MAX_FIELDS: usize = 256;

/// The fields of a request that have not been taken yet.
#[derive(Debug)]
pub struct Fields {
    untaken: BTreeMap<String, Box<RawValue>>,
    /// What the endpoint has asked for.
    known: Vec<Known>,
    /// Of these, the names that only other endpoints know.
    refused: Vec<&'static str>,
    /// Fields that were taken and change nothing.
    pub without_effect: Vec<&'static str>,
    /// What the header [`REQUEST_ID_HEADER`] calls the request.
    pub named: Option<HeaderValue>,
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
            Ok(Object(untaken)) => Ok(Self {
                untaken,
                known: Vec::new(),
                refused: Vec::new(),
                without_effect: Vec::new(),
                named: None,
                bytes: body.len(),
                held,
            }),
            Err(error) => Err(ApiError::body(format!("the body is not a JSON object: {}", shown(&error)))),
        }
    }

    /// Takes a field that may be missing; `null` counts as missing.
    pub fn optional<T: DeserializeOwned + 'static>(&mut self, name: &'static str) -> Result<Option<T>, ApiError> {
        self.known.push(Known::of::<T>(name));
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
        let meant = self.known.last().and_then(|known| known.meant(raw.get()));
        match meant.and_then(|meant| serde_json::from_str(&meant).ok()) {
            Some(value) => Ok(value),
            None => Err(fault::<T>(name, &raw, &error)),
        }
    }

    /// Takes a field that must be there.
    pub fn required<T: DeserializeOwned + 'static>(&mut self, name: &'static str) -> Result<T, ApiError> {
        let missing = || ApiError::param(name, format!("`{name}` is required"));
        self.optional(name)?.ok_or_else(missing)
    }

    /// Takes a field that may be missing as the text that it is.
    pub fn raw(&mut self, name: &'static str) -> Option<Box<RawValue>> {
        self.known.push(Known { name, kind: None });
        self.untaken.remove(name).filter(|raw| raw.get() != "null")
    }

    /// Takes a switch that is off unless the request says otherwise.
    pub fn flag(&mut self, name: &'static str) -> Result<bool, ApiError> {
        Ok(self.optional(name)?.unwrap_or(false))
    }

    /// Adds a field that the request has under another name, or in another form.
    pub fn set(&mut self, name: &'static str, raw: Box<RawValue>) {
        self.untaken.insert(name.to_owned(), raw);
    }

    /// Refuses fields of which this endpoint has others, unless they ask for nothing: name, neutral value, advice.
    pub fn refuse(&mut self, rows: &'static [Unsupported]) -> Result<(), ApiError> {
        for (name, neutral, advice) in rows {
            if let Some(raw) = self.untaken.remove(*name)
                && !asks_for_nothing(&raw, neutral)
            {
                return Err(ApiError::unsupported(name, advice));
            }
        }
        self.refused.extend(rows.iter().map(|row| row.0));
        Ok(())
    }

    /// Whether the field is there and not `null`.
    pub fn has(&self, name: &str) -> bool {
        self.untaken.get(name).is_some_and(|raw| raw.get() != "null")
    }

    /// Refuses what is left, unless it asks for nothing or has no effect.
    /// `elsewhere` are fields that only other endpoints know: name, neutral value, advice.
    pub fn finish(mut self, elsewhere: &[Unsupported]) -> Result<Rest, ApiError> {
        self.known.retain(|known| !self.refused.contains(&known.name));
        let names = self.known.iter().map(|known| known.name);
        let known: Vec<&str> = names.chain(WITHOUT_EFFECT.iter().copied()).collect();
        let mut without_effect = self.without_effect;
        let said = std::mem::take(&mut self.untaken).into_iter().filter(|(_, raw)| raw.get() != "null");
        for (name, raw) in said {
            if let Some(name) = WITHOUT_EFFECT.iter().find(|known| **known == name) {
                without_effect.push(*name);
                continue;
            }
            let mut rows = elsewhere.iter().chain(UNSUPPORTED).filter(|row| row.0 == name);
            if rows.clone().any(|row| asks_for_nothing(&raw, row.1)) {
                continue;
            }
            return Err(match rows.next() {
                Some((_, _, advice)) => ApiError::unsupported(&name, advice),
                None => ApiError::unknown_field(&name, nearest(&name, known.iter().copied())),
            });
        }
        Ok(Rest { held: self.held, without_effect, known: self.known })
    }
}

/// Whether a field is `null` or equal to the value that asks for nothing.
pub(super) fn asks_for_nothing(raw: &RawValue, neutral: &str) -> bool {
    // Longer than anything that asks for nothing, with room for spaces.
    const LONG: usize = 200;
    let value = Some(raw.get()).filter(|text| text.len() <= LONG).map(serde_json::from_str);
    raw.get() == "null" || value.is_some_and(|value| value.is_ok_and(|value| is_neutral(&value, neutral)))
}

/// What is left of a request's fields when all have been read.
pub struct Rest {
    /// The memory that the request holds.
    pub held: Held,
    /// Fields that change nothing.
    pub without_effect: Vec<&'static str>,
    /// What was asked for.
    pub known: Vec<Known>,
}

/// The header of a request that names it.
pub const REQUEST_ID_HEADER: &str = "X-Request-Id";

/// The header of an answer that names the request's fields without effect.
pub const WITHOUT_EFFECT_HEADER: &str = "x-fields-without-effect";

/// The answer, which names these fields.
pub fn naming(mut response: Response, without_effect: &[&'static str]) -> Response {
    if let Ok(names) = HeaderValue::from_str(&without_effect.join(", "))
        && !without_effect.is_empty()
    {
        response.headers_mut().insert(WITHOUT_EFFECT_HEADER, names);
    }
    response
}

/// What is wrong with a field that could not be read for this reason, with the path to it.
pub(super) fn fault<T: DeserializeOwned>(name: &str, raw: &RawValue, reason: &serde_json::Error) -> ApiError {
    // To follow the path to a fault takes several times as long as to read.
    if raw.get().len() > MAX_FOLLOWED {
        return invalid(name, reason);
    }
    let mut json = serde_json::Deserializer::from_str(raw.get());
    let Err(error) = serde_path_to_error::deserialize::<_, T>(&mut json) else { return invalid(name, reason) };
    let inner = error.path().to_string();
    let param = match inner.as_str() {
        "." => name.to_owned(),
        path if path.starts_with('[') => format!("{name}{path}"),
        path => format!("{name}.{path}"),
    };
    invalid(&param, &error.into_inner())
}

/// What a reader expected and got, in JSON's words. What it quotes stays as it is.
fn in_json(reason: &str) -> String {
    match (reason.find('"'), reason.rfind('"')) {
        (Some(first), Some(last)) if first < last => {
            format!("{}{}{}", worded(&reason[..=first]), &reason[first + 1..last], worded(&reason[last..]))
        }
        _ => worded(reason),
    }
}

fn worded(reason: &str) -> String {
    const WORDS: [(&str, &str); 22] = [
        ("invalid type: ", "got "),
        ("invalid value: ", "got "),
        ("floating point `", "the number `"),
        ("integer `", "the number `"),
        ("boolean `", "`"),
        ("string \"", "the string \""),
        ("a sequence", "a list"),
        ("sequence", "a list"),
        ("a map", "an object"),
        ("map,", "an object,"),
        ("unit", "null"),
        ("null value", "null"),
        ("expected u32", "expected a whole number from 0 to 4294967295"),
        ("expected u64", "expected a whole number of at least 0"),
        ("expected usize", "expected a whole number of at least 0"),
        ("expected i64", "expected a whole number"),
        ("expected i32", "expected a whole number"),
        ("expected f32", "expected a number"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected null, got", "got"),
        ("struct ", "an object "),
    ];
    WORDS.iter().fold(reason.to_owned(), |text, (rust, json)| text.replace(rust, json))
}

/// A field that cannot be read, for this reason.
pub(super) fn invalid(param: &str, reason: &serde_json::Error) -> ApiError {
    let reason = shown(reason);
    // The position is one within the field, which would mislead.
    let reason = reason.rfind(" at line ").map_or(&*reason, |end| &reason[..end]);
    ApiError::param(param, format!("`{param}` is not valid: {}", in_json(reason)))
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
        let encoding = request.headers().get(header::CONTENT_ENCODING);
        if encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return Err(ApiError::encoded());
        }
        let named = request.headers().get(REQUEST_ID_HEADER).cloned();
        let mut held = app.memory.hold();
        let body = read(request.into_body(), app.config.max_body_size, &mut held).await?;
        app.text.read(body.len(), move || Ok(Self { named, ..Self::parse(&body, held)? })).await
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
