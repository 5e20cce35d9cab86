//! `POST /v1/embeddings`. Knows the fields and the wording of OpenAI's embeddings.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use vllm_apple_model::Pooler;
use vllm_apple_model::load::pooler::Matryoshka;

use super::App;
use super::error::ApiError;
use super::field_names::Unsupported;
use super::fields::{Fields, Known, Rest, naming};
use super::pooled::{self, Answered, Common};
use super::prompt::{Places, PromptInput, Tokenizing};
use super::respond::held_until_sent;
use crate::embedding::Shape;
use crate::served::ServedModel;

/// Bytes of an element of an answer at most: `-1.2345678e-10,`, or four thirds of four.
const PER_NUMBER: usize = 16;
const PER_ENCODED: usize = 6;

/// Fields of vLLM's that have one value here.
const OF_ENCODINGS: &[Unsupported] = &[
    ("embed_dtype", "\"float32\"", "elements are float32"),
    ("endianness", "\"little\"", "elements are little-endian"),
];

/// How elements are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// As numbers.
    Float,
    /// As the base64 of little-endian float32.
    Base64,
}

/// The fields of a request.
struct EmbeddingRequest {
    input: PromptInput,
    add_special_tokens: bool,
    dimensions: Option<usize>,
    encoding: Encoding,
    common: Common,
    rest: Rest,
}

/// What a request may have.
pub fn known(fields: Fields) -> Result<Vec<Known>, ApiError> {
    Ok(EmbeddingRequest::take(fields)?.rest.known)
}

/// Answers a request for embeddings.
pub async fn create(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let name = fields.optional::<String>("model")?;
    let (model, pooler) = app.embedder(name.as_deref())?;
    let EmbeddingRequest { input, add_special_tokens, dimensions, encoding, common, rest } =
        app.text.read(fields.bytes, move || EmbeddingRequest::take(fields)).await?;
    let Rest { mut held, mut without_effect, .. } = rest;
    without_effect.extend(&common.without_effect);
    check_dimensions(model, pooler, dimensions)?;
    let shape = Shape { dimensions, normalize: common.use_activation.unwrap_or(pooler.normalize) };
    let how = Tokenizing {
        places: Places(vec![("input", input.len())]),
        add_special_tokens,
        keep_text: false,
        cache_salt: common.cache_salt.clone(),
        min_output_tokens: 0,
        truncation: common.truncation(model)?,
    };
    let Answered { vectors, usage } = pooled::answer(&app, (model, pooler), input, how, &mut held, arrived).await?;
    let per_element = if encoding == Encoding::Float { PER_NUMBER } else { PER_ENCODED };
    let elements = vectors.iter().map(|vector| dimensions.unwrap_or(vector.len())).sum::<usize>();
    held.grow(elements * per_element)?;
    let mut answer = json!({
        "id": pooled::id("embd", common.request_id),
        "object": "list",
        "created": pooled::now(),
        "model": model.name(),
        "usage": usage,
    });
    let write = move || {
        let mut pieces = vec![Bytes::from_static(b"{\"data\":[")];
        for (index, vector) in vectors.into_iter().enumerate() {
            pieces.push(word(index, &shape.of(vector), encoding)?);
        }
        let rest = pooled::written(&answer.take())?;
        pieces.extend([Bytes::from_static(b"],"), rest.slice(1..)]);
        Ok(pieces)
    };
    let pieces = app.text.convert(elements, &held, write).await?;
    Ok(naming(held_until_sent(pieces, held), &without_effect))
}

/// An embedding as JSON, and a comma before it unless it is the first.
fn word(index: usize, vector: &[f32], encoding: Encoding) -> Result<Bytes, ApiError> {
    if let Some(value) = vector.iter().find(|value| !value.is_finite()) {
        return Err(ApiError::internal(format!("an element of embedding {index} is {value}")));
    }
    let embedding = match encoding {
        Encoding::Float => serde_json::to_string(vector).map_err(|error| ApiError::internal(error.to_string()))?,
        Encoding::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
            format!("\"{}\"", STANDARD.encode(bytes))
        }
    };
    let separator = if index == 0 { "" } else { "," };
    Ok(format!("{separator}{{\"object\":\"embedding\",\"index\":{index},\"embedding\":{embedding}}}").into())
}

/// Refuses a number of elements that the model's embeddings are not meant to be cut to, as vLLM does.
fn check_dimensions(model: &ServedModel, pooler: &Pooler, dimensions: Option<usize>) -> Result<(), ApiError> {
    let Some(asked) = dimensions else { return Ok(()) };
    let size = model.engine.info().embedding_size.unwrap_or(0);
    let message = match &pooler.matryoshka {
        Matryoshka::No => format!(
            "the model is no Matryoshka model (its config.json has neither `is_matryoshka` nor `matryoshka_dimensions`), so that a part of \
             its {size} elements is no embedding: leave `dimensions` out"
        ),
        Matryoshka::Of(sizes) if !sizes.contains(&asked) => {
            format!("`dimensions` must be one of {sizes:?}, got {asked}")
        }
        _ if !(1..=size).contains(&asked) => format!("`dimensions` must be from 1 to {size}, got {asked}"),
        _ => return Ok(()),
    };
    Err(ApiError::param("dimensions", message))
}

impl EmbeddingRequest {
    fn take(mut fields: Fields) -> Result<Self, ApiError> {
        let common = Common::take(&mut fields)?;
        let encoding = match fields.optional::<String>("encoding_format")?.as_deref() {
            None | Some("float") => Encoding::Float,
            Some("base64") => Encoding::Base64,
            Some(_) => return Err(ApiError::param("encoding_format", "`encoding_format` must be float or base64")),
        };
        Ok(Self {
            input: fields.required("input")?,
            add_special_tokens: fields.optional("add_special_tokens")?.unwrap_or(true),
            dimensions: fields.optional("dimensions")?,
            encoding,
            common,
            rest: fields.finish(OF_ENCODINGS)?,
        })
    }
}
