//! From generations to an HTTP answer, whole or streamed: the one path of completions and chat. Knows the order of things
//! on the wire; what a choice looks like is the endpoint's.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_stream::stream;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use futures_util::stream::StreamExt;
use serde_json::{Map, Value, json};
use vllm_apple_executor::Sample;

use super::arrivals::{Arrival, arrivals};
use super::error::ApiError;
use super::fields::Fields;
use super::lists::Entries;
use super::memory::{Held, PER_CHOICE, PER_FORM, PER_LOGPROB, PER_UNREAD_CHOICE, PER_WORDED_LOGPROB};
use super::usage::Usage;
use crate::generation::{Delta, Generation, GenerationRequest};
use crate::served::ServedModel;

/// Most entries of `stream_options`: several times as many as any API has.
const MAX_STREAM_OPTIONS: usize = 16;

/// How an endpoint words its answers.
pub trait Wording: Send + 'static {
    /// The first letters of an answer's id.
    const ID_PREFIX: &'static str;
    /// `object` of a whole answer.
    const OBJECT: &'static str;
    /// `object` of a streamed chunk.
    const CHUNK_OBJECT: &'static str;

    /// Where the `index`-th prompt stands in a body, for errors.
    fn prompt_field(&self, index: usize) -> String;

    /// The choice that opens a stream before its first token, if there is one.
    fn opening(&self, _index: usize) -> Option<Value> {
        None
    }

    /// A choice of a streamed chunk. Called with the deltas of each choice in order.
    fn chunk(&mut self, index: usize, delta: Delta) -> Value;

    /// Takes in the next delta of a whole choice, and maybe out of it what [`Self::choice`] then has; says what it holds of it beyond the
    /// text. Called with the deltas of each choice in order.
    fn take(&mut self, _index: usize, _delta: &mut Delta) -> usize {
        0
    }

    /// Fields that all whole choices of a prompt share: worded once, however many there are.
    fn of_prompt(&self, _whole: &Delta) -> Map<String, Value> {
        Map::new()
    }

    /// A whole choice, without these.
    fn choice(&mut self, index: usize, whole: Delta) -> Value;

    /// Of the tokens of a choice so far, those that were thought. `None`: this is not counted.
    fn reasoning_tokens(&self, _index: usize) -> Option<usize> {
        None
    }

    /// Further fields of a whole answer, and of the first chunk of a stream that has an opening.
    fn extend(&self, _answer: &mut Value) {}
}

/// Whether and how to stream.
#[derive(Debug, Clone, Copy, Default)]
pub struct Streaming {
    stream: bool,
    include_usage: bool,
    continuous_usage: bool,
}

impl Streaming {
    /// Takes `stream` and `stream_options`.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let stream = fields.flag("stream")?;
        let options = fields.optional::<Entries<Option<bool>, MAX_STREAM_OPTIONS>>("stream_options")?;
        if options.as_ref().is_some_and(|Entries(options)| !options.is_empty()) && !stream {
            return Err(ApiError::param("stream_options", "`stream_options` needs `stream` to be true"));
        }
        let mut options: BTreeMap<_, _> =
            options.map(|Entries(options)| options).unwrap_or_default().into_iter().collect();
        let mut take = |name: &str| options.remove(name).flatten().unwrap_or(false);
        let include_usage = take("include_usage");
        let continuous_usage = take("continuous_usage_stats") && include_usage;
        if let Some((name, _)) = options.iter().find(|(_, wanted)| **wanted == Some(true)) {
            let param = format!("stream_options.{name}");
            let message = format!("`{param}` is not available: only `include_usage` and `continuous_usage_stats` are");
            return Err(ApiError::param(param, message));
        }
        Ok(Self { stream, include_usage, continuous_usage })
    }

    /// Whether the answer is a stream.
    pub fn is_on(self) -> bool {
        self.stream
    }
}

/// The prompts of a request and how many answers each gets.
pub struct Job<W> {
    /// The model that answers.
    pub model: Arc<ServedModel>,
    /// One generation request per prompt.
    pub requests: Vec<GenerationRequest>,
    /// Answers to each prompt.
    pub n: usize,
    /// Whether and how to stream.
    pub streaming: Streaming,
    /// The name of the request, if the client gave it one.
    pub request_id: Option<String>,
    /// How answers are worded.
    pub wording: W,
    /// The memory of the request.
    pub held: Held,
    /// How long a stream is silent before a comment is sent.
    pub keep_alive: Duration,
}

impl<W: Wording> Job<W> {
    /// Starts every generation, or none, and answers as they go. The request came in at `arrived`.
    pub async fn run(mut self, arrived: Instant) -> Result<Response, ApiError> {
        let prompt_tokens = self.requests.iter().map(|request| request.prompt.len()).collect();
        let field = |index| self.wording.prompt_field(index);
        let generations =
            start(&self.model, &self.requests, self.n, self.streaming.stream, &mut self.held, field, arrived)?;
        let id = self.request_id.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
        let answer = Answer {
            id: format!("{}-{id}", W::ID_PREFIX),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            model: self.model.name().to_owned(),
            usage: Usage::new(prompt_tokens, self.n, self.wording.reasoning_tokens(0)),
            wording: self.wording,
        };
        match self.streaming.stream {
            true => Ok(answer.stream(generations, self.streaming, self.held, self.keep_alive)),
            false => answer.whole(generations, self.held).await,
        }
    }
}

/// Starts `n` generations of each request, which came in at `arrived`, or none, and takes the memory for them. `field` says where a prompt
/// stands in the body.
pub fn start(
    model: &Arc<ServedModel>,
    requests: &[GenerationRequest],
    n: usize,
    streams: bool,
    held: &mut Held,
    field: impl Fn(usize) -> String,
    arrived: Instant,
) -> Result<Vec<Generation>, ApiError> {
    let unread = if streams { PER_UNREAD_CHOICE } else { 0 };
    held.grow(requests.len() * n * (PER_CHOICE + unread))?;
    held.grow(requests.iter().map(|request| prompt_bytes(request, n)).sum())?;
    let held_to_a_form = requests.iter().filter(|request| request.grammar.is_some()).count();
    held.grow(held_to_a_form * n * PER_FORM)?;
    let mut generations = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        // Where one is refused the others are dropped, which aborts them.
        let started = Generation::start_all(model, request, n, arrived);
        generations.extend(started.map_err(|error| ApiError::refused(error, &field(index)))?);
    }
    Ok(generations)
}

/// What is kept of a prompt until its `n` answers end: tokens for each, log-probabilities once.
fn prompt_bytes(request: &GenerationRequest, n: usize) -> usize {
    let scores = request.params.prompt_logprobs.map_or(0, |num_top| logprob_bytes(num_top as usize, PER_LOGPROB));
    request.prompt.len() * (size_of::<u32>() * n + scores)
}

/// Of a token with `num_top` alternatives.
fn logprob_bytes(num_top: usize, each: usize) -> usize {
    (1 + num_top) * each
}

/// The same of tokens as they came.
fn bytes_of(samples: &[Sample], each: usize) -> usize {
    let logprobs = samples.iter().filter_map(|sample| sample.logprobs.as_ref());
    logprobs.map(|logprobs| logprob_bytes(logprobs.top.len(), each)).sum()
}

/// What a prompt's log-probabilities take while they are put into words.
fn worded_prompt_bytes(delta: &Delta) -> usize {
    bytes_of(delta.prompt_logprobs.as_deref().unwrap_or_default(), PER_WORDED_LOGPROB)
}

/// An answer in the making.
struct Answer<W> {
    id: String,
    created: u64,
    model: String,
    usage: Usage,
    wording: W,
}

impl<W: Wording> Answer<W> {
    async fn whole(mut self, mut generations: Vec<Generation>, mut held: Held) -> Result<Response, ApiError> {
        let collecting = Mutex::new((&mut self.wording, &mut held));
        let each = generations.iter_mut().enumerate();
        let wholes = try_join_all(each.map(|(index, generation)| collect(index, generation, &collecting))).await?;
        let (mut choices, mut of_prompt) = (Vec::new(), Bytes::new());
        // For what [`Wording::extend`] words of the first prompt.
        let mut extension = 0;
        for (index, (whole, generation)) in wholes.into_iter().zip(&generations).enumerate() {
            let reasoning = self.wording.reasoning_tokens(index);
            self.usage.set(index, generation.num_tokens(), generation.num_cached_tokens(), reasoning);
            // Each choice is written before the next is worded: a tree of values takes ten times the memory of its text.
            let of_its_prompt = worded_prompt_bytes(&whole);
            let worded = bytes_of(&whole.tokens, PER_WORDED_LOGPROB) + of_its_prompt;
            held.grow(worded)?;
            extension = of_its_prompt.max(extension);
            if index % self.usage.n == 0 {
                of_prompt = tail(&self.wording.of_prompt(&whole))?;
                held.grow(of_prompt.len())?;
            }
            let choice = open(&self.wording.choice(index, whole))?;
            held.shrink(worded);
            held.grow(choice.len())?;
            let separator = if index == 0 { "" } else { "," };
            choices.extend([Bytes::from_static(separator.as_bytes()), choice, of_prompt.clone()]);
            // Long answers are written on a thread that others need.
            tokio::task::yield_now().await;
        }
        let mut answer = json!({
            "id": self.id, "object": W::OBJECT, "created": self.created, "model": self.model, "usage": self.usage.total(),
        });
        held.grow(extension)?;
        self.wording.extend(&mut answer);
        let opened = open(&answer)?;
        drop(answer);
        held.shrink(extension);
        held.grow(opened.len())?;
        let head = [opened, Bytes::from_static(b",\"choices\":[")];
        let pieces = head.into_iter().chain(choices).chain([Bytes::from_static(b"]}")]);
        Ok(held_until_sent(pieces.collect(), held))
    }

    fn stream(
        mut self,
        generations: Vec<Generation>,
        streaming: Streaming,
        mut held: Held,
        keep_alive: Duration,
    ) -> Response {
        let num_choices = generations.len();
        let mut arrivals = arrivals(generations, &held);
        let events = stream! {
            for index in 0..num_choices {
                if let Some(choice) = self.wording.opening(index) {
                    let mut chunk = self.chunk(index, choice, streaming);
                    if index == 0 {
                        self.wording.extend(&mut chunk);
                    }
                    yield chunk.to_string();
                }
            }
            let mut num_unfinished = num_choices;
            while let Some(arrival) = arrivals.recv().await {
                let worded = match arrival {
                    Ok(arrival) => {
                        num_unfinished -= usize::from(arrival.delta.finish.is_some());
                        self.word_chunk(arrival, streaming, &mut held)
                    }
                    Err(error) => Err(error),
                };
                match worded {
                    Ok((chunk, bytes)) => {
                        yield chunk;
                        held.shrink(bytes);
                    }
                    // The status has been sent; OpenAI's clients raise an error for an event like this.
                    Err(error) => {
                        yield error.to_json().to_string();
                        return;
                    }
                }
            }
            if num_unfinished > 0 {
                yield ApiError::internal("the answer was cut off: the server ends").to_json().to_string();
                return;
            }
            if streaming.include_usage {
                let mut chunk = self.envelope(W::CHUNK_OBJECT, Vec::new());
                chunk["usage"] = self.usage.total();
                yield chunk.to_string();
            }
        };
        let done = futures_util::stream::once(async { Event::default().data("[DONE]") });
        let events = events.map(|event: String| Event::default().data(event)).chain(done);
        Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(KeepAlive::new().interval(keep_alive)).into_response()
    }

    /// The text of a chunk, and what it takes of `held` until the next one is asked for.
    fn word_chunk(
        &mut self,
        arrival: Arrival,
        streaming: Streaming,
        held: &mut Held,
    ) -> Result<(String, usize), ApiError> {
        let Arrival { index, delta, num_tokens, num_cached_tokens, .. } = arrival;
        // The few tokens of a delta are gone when the next is worded; a prompt may be long.
        let bytes = worded_prompt_bytes(&delta);
        held.grow(bytes)?;
        let choice = self.wording.chunk(index, delta);
        self.usage.set(index, num_tokens, num_cached_tokens, self.wording.reasoning_tokens(index));
        // A tree of values takes many times the memory of its text, and goes before anybody reads that.
        let chunk = self.chunk(index, choice, streaming).to_string();
        held.shrink(bytes);
        let kept = if bytes > 0 { chunk.len() } else { 0 };
        held.grow(kept)?;
        Ok((chunk, kept))
    }

    fn chunk(&self, index: usize, choice: Value, streaming: Streaming) -> Value {
        let mut chunk = self.envelope(W::CHUNK_OBJECT, vec![choice]);
        if streaming.continuous_usage {
            chunk["usage"] = self.usage.of_choice(index);
        } else if streaming.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn envelope(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices})
    }
}

/// The text of an object without its last brace, so that more can follow.
fn open(object: &Value) -> Result<Bytes, ApiError> {
    let mut text = serde_json::to_vec(object).map_err(unwritable)?;
    text.pop();
    Ok(text.into())
}

/// The text of fields that follow others, and the last brace.
fn tail(fields: &Map<String, Value>) -> Result<Bytes, ApiError> {
    let mut text = serde_json::to_vec(fields).map_err(unwritable)?;
    if !fields.is_empty() {
        text[0] = b',';
        return Ok(text.into());
    }
    Ok(Bytes::from_static(b"}"))
}

fn unwritable(error: serde_json::Error) -> ApiError {
    ApiError::internal(format!("the answer cannot be written as JSON: {error}"))
}

/// The whole generation as one delta, without what the wording takes of it; what it adds up to is taken from the memory as it comes.
async fn collect<W: Wording>(
    index: usize,
    generation: &mut Generation,
    into: &Mutex<(&mut W, &mut Held)>,
) -> Result<Delta, ApiError> {
    let mut whole = Delta::default();
    while let Some(delta) = generation.next().await {
        let mut delta = delta?;
        // Lists and texts that grow double.
        let plain = 2 * (delta.text.len() + size_of_val(&delta.tokens[..]));
        let bytes = plain + bytes_of(&delta.tokens, PER_LOGPROB);
        let (wording, held) = &mut *into.lock().unwrap_or_else(PoisonError::into_inner);
        held.grow(bytes)?;
        held.grow(wording.take(index, &mut delta))?;
        whole.append(delta);
    }
    Ok(whole)
}

/// A JSON answer in pieces, so that what a slow reader has not taken counts until it has.
pub(super) fn held_until_sent(answer: Vec<Bytes>, held: Held) -> Response {
    const PIECE: usize = 64 << 10;
    let length: usize = answer.iter().map(Bytes::len).sum();
    let pieces = stream! {
        let _held = held;
        for mut rest in answer {
            while !rest.is_empty() {
                yield Ok::<_, Infallible>(rest.split_to(rest.len().min(PIECE)));
            }
        }
    };
    let headers = [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_LENGTH, length.to_string())];
    (headers, Body::from_stream(pieces)).into_response()
}
