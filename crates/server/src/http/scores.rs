//! `POST /score` and `POST /rerank`: how near texts are to each other, by the cosines of their embeddings. Knows the fields and the wording of
//! vLLM's scores, and of Jina's and Cohere's ranks.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use super::App;
use super::error::ApiError;
use super::field_names::Unsupported;
use super::fields::{Fields, Known, Rest, naming};
use super::lists::Strings;
use super::pooled::{self, Answered, Common, MAX_INPUTS};
use super::prompt::{Places, PromptInput, Tokenizing};
use super::respond::held_until_sent;
use crate::embedding::cosine;

/// By what names the two sides of a score come.
const SIDES: [[&str; 2]; 4] =
    [["queries", "documents"], ["queries", "items"], ["data_1", "data_2"], ["text_1", "text_2"]];

/// Fields of models that read both texts at once.
const OF_CROSS_ENCODERS: &[Unsupported] = &[
    ("instruction", "null", "write it into the query: the model makes an embedding of each text"),
    ("max_tokens_per_doc", "0", "use `truncate_prompt_tokens`"),
    ("max_tokens_per_query", "0", "use `truncate_prompt_tokens`"),
];

/// Bytes of a score or rank in an answer, besides its text.
const PER_SCORE: usize = 1024;

type Texts = Strings<MAX_INPUTS>;

/// Texts to compare: one with each of several, or two lists one by one.
struct Pairs {
    names: [&'static str; 2],
    texts: [Vec<String>; 2],
    common: Common,
}

impl Pairs {
    /// Takes the lists of these names.
    fn new(names: [&'static str; 2], texts: [Texts; 2], common: Common) -> Result<Self, ApiError> {
        let texts = texts.map(|Strings(texts)| texts);
        if let Some(at) = texts.iter().position(Vec::is_empty) {
            return Err(ApiError::param(names[at], format!("`{}` has no texts", names[at])));
        }
        let [first, second] = [&texts[0], &texts[1]].map(Vec::len);
        if first != 1 && first != second {
            let [one, other] = names;
            let message = format!("`{one}` has {first} texts and `{other}` {second}: expected one, or as many");
            return Err(ApiError::param(one, message));
        }
        Ok(Self { names, texts, common })
    }

    /// The scores of all pairs, and what they cost.
    async fn scores(
        self,
        app: &App,
        name: Option<&str>,
        rest: &mut Rest,
        arrived: Instant,
    ) -> Result<Scores, ApiError> {
        let (model, pooler) = app.embedder(name)?;
        let Self { names, texts: [first, second], common } = self;
        rest.without_effect.extend(&common.without_effect);
        // A cosine is the same of vectors of any length.
        rest.without_effect.extend(common.use_activation.map(|_| "use_activation"));
        let how = Tokenizing {
            places: Places(vec![(names[0], first.len()), (names[1], second.len())]),
            add_special_tokens: true,
            keep_text: false,
            truncation: common.truncation(model)?,
            cache_salt: common.cache_salt,
            min_output_tokens: 0,
        };
        let (num_first, num_second) = (first.len(), second.len());
        let input = PromptInput::Texts(first.into_iter().chain(second).collect());
        rest.held.grow(num_second * PER_SCORE)?;
        let Answered { vectors, usage } =
            pooled::answer(app, (model, pooler), input, how, &mut rest.held, arrived).await?;
        let (first, second) = vectors.split_at(num_first);
        let scores = first.iter().cycle().zip(second).map(|(a, b)| cosine(a, b)).collect();
        Ok(Scores { scores, usage, id: pooled::id("score", common.request_id), model: model.name().to_owned() })
    }
}

/// What an answer is made of.
struct Scores {
    scores: Vec<f32>,
    usage: serde_json::Value,
    id: String,
    model: String,
}

/// What a request for scores may have.
pub fn known(fields: Fields) -> Result<Vec<Known>, ApiError> {
    Ok(take_pairs(fields)?.1.known)
}

fn take_pairs(mut fields: Fields) -> Result<(Pairs, Rest), ApiError> {
    let common = Common::take(&mut fields)?;
    let Some(&names) = SIDES.iter().find(|sides| sides.iter().all(|name| fields.has(name))) else {
        let message = "`queries` and `documents` are required, or `text_1` and `text_2`";
        return Err(ApiError::param("queries", message));
    };
    let texts = [fields.required::<Texts>(names[0])?, fields.required::<Texts>(names[1])?];
    let pairs = Pairs::new(names, texts, common)?;
    Ok((pairs, fields.finish(OF_CROSS_ENCODERS)?))
}

/// `POST /score`
pub async fn score(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let name = fields.optional::<String>("model")?;
    app.embedder(name.as_deref())?;
    let (pairs, mut rest) = app.text.read(fields.bytes, move || take_pairs(fields)).await?;
    let Scores { scores, usage, id, model } = pairs.scores(&app, name.as_deref(), &mut rest, arrived).await?;
    let word = |(index, score): (usize, &f32)| json!({"index": index, "object": "score", "score": score});
    let data: Vec<_> = scores.iter().enumerate().map(word).collect();
    let created = pooled::now();
    let answer = json!({"id": id, "object": "list", "created": created, "model": model, "data": data, "usage": usage});
    Ok(naming(held_until_sent(vec![pooled::written(&answer)?], rest.held), &rest.without_effect))
}

/// The fields of a request for a rank.
struct RerankRequest {
    pairs: Pairs,
    top_n: usize,
    return_documents: bool,
}

/// What a request for a rank may have.
pub fn known_to_rerank(fields: Fields) -> Result<Vec<Known>, ApiError> {
    Ok(take_rerank(fields)?.1.known)
}

fn take_rerank(mut fields: Fields) -> Result<(RerankRequest, Rest), ApiError> {
    let common = Common::take(&mut fields)?;
    let query = Strings(vec![fields.required("query")?]);
    let documents = fields.required::<Texts>("documents")?;
    let top_n = fields.optional("top_n")?.unwrap_or(0);
    let return_documents = fields.optional("return_documents")?.unwrap_or(true);
    let pairs = Pairs::new(["query", "documents"], [query, documents], common)?;
    Ok((RerankRequest { pairs, top_n, return_documents }, fields.finish(OF_CROSS_ENCODERS)?))
}

/// `POST /rerank`
pub async fn rerank(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let name = fields.optional::<String>("model")?;
    app.embedder(name.as_deref())?;
    let (request, mut rest) = app.text.read(fields.bytes, move || take_rerank(fields)).await?;
    let RerankRequest { pairs, top_n, return_documents } = request;
    let documents = if return_documents { pairs.texts[1].clone() } else { Vec::new() };
    let Scores { scores, usage, id, model } = pairs.scores(&app, name.as_deref(), &mut rest, arrived).await?;
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // Of equal scores the first document comes first.
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order.truncate(if top_n == 0 { usize::MAX } else { top_n });
    let bytes = documents.iter().map(String::len).sum();
    let write = move || {
        let word = |&index: &usize| {
            let mut result = json!({"index": index, "relevance_score": scores[index]});
            if let Some(text) = documents.get(index) {
                result["document"] = json!({"text": text, "multi_modal": null});
            }
            result
        };
        let results: Vec<_> = order.iter().map(word).collect();
        pooled::written(&json!({"id": id, "model": model, "usage": usage, "results": results}))
    };
    let answer = app.text.convert(bytes, &rest.held, write).await?;
    Ok(naming(held_until_sent(vec![answer], rest.held), &rest.without_effect))
}
