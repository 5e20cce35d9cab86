//! From a generation to an answer of items, whole or as named events. Knows the order of things; what they look like is the endpoint's.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_stream::stream;
use axum::body::Bytes;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use tokio::time::{Instant as Time, timeout_at};

use super::arrivals::{Arrival, arrivals};
use super::error::ApiError;
use super::items::{Counts, Item, Items, Step};
use super::memory::Held;
use super::respond::{held_until_sent, start};
use super::told_apart::Telling;
use crate::generation::{Delta, Finish, Generation, GenerationRequest};
use crate::served::ServedModel;

/// Bytes that each of an item takes while it is put into words: several events repeat it, each with escapes, `\u007f`.
const PER_WORDED_BYTE: usize = 32;

/// The same of a whole answer, which has it once.
const PER_WHOLE_BYTE: usize = 10;

/// An event of a stream: its name and its JSON.
pub type Named = (&'static str, String);

/// How an answer ended.
#[derive(Debug)]
pub struct End {
    /// Why.
    pub finish: Finish,
    /// Whether it calls something.
    pub has_called: bool,
    /// Its tokens.
    pub counts: Counts,
}

impl End {
    /// Whether the last item is cut off. A stop string ends a text, but cuts a call short; behind a call that is whole nothing shows.
    pub fn cuts_off(&self, items: &[Item]) -> bool {
        match self.finish {
            Finish::Length => !matches!(items.last(), Some(call @ Item::Call { .. }) if call.is_whole()),
            Finish::StopString(_) => items.last().is_some_and(|last| !last.is_whole()),
            Finish::EndToken | Finish::StopToken(_) | Finish::Abort => false,
        }
    }
}

/// How an endpoint words an answer.
pub trait ItemWording: Send + 'static {
    /// What is sent while nothing comes, so that no proxy and no client gives up: an event, as some do not count comments.
    fn keep_alive(&mut self) -> Named;

    /// What opens a stream at once.
    fn opening(&mut self) -> Vec<Named> {
        Vec::new()
    }

    /// What opens it with the first token.
    fn begin(&mut self, _counts: Counts) -> Vec<Named> {
        Vec::new()
    }

    /// A step of the item `items[index]`, which has it already.
    fn step(&mut self, step: Step, items: &[Item], is_cut_off: bool) -> Vec<Named>;

    /// The end of a stream.
    fn end(&mut self, end: &End, items: &[Item]) -> Vec<Named>;

    /// The end of a stream that failed.
    fn failed(&mut self, error: &ApiError, items: &[Item]) -> Vec<Named>;

    /// A whole answer.
    fn whole(&mut self, end: &End, items: &[Item]) -> String;
}

/// A request that is answered with items.
pub struct ItemJob<W> {
    /// The model that answers.
    pub model: Arc<ServedModel>,
    /// What it is asked.
    pub request: GenerationRequest,
    /// Whether to stream.
    pub streams: bool,
    /// Where the prompt stands in the body, for errors.
    pub prompt_field: &'static str,
    /// How the answer is told apart.
    pub telling: Telling,
    /// How it is worded.
    pub wording: W,
    /// The memory of the request.
    pub held: Held,
    /// How long a stream is silent before [`ItemWording::keep_alive`] is sent.
    pub keep_alive: Duration,
}

impl<W: ItemWording> ItemJob<W> {
    /// Answers. The request came in at `arrived`.
    pub async fn run(self, arrived: Instant) -> Result<Response, ApiError> {
        let Self { model, request, streams, prompt_field, telling, wording, mut held, keep_alive } = self;
        let prompt = request.prompt.len();
        let field = |_| prompt_field.to_owned();
        let generations = start(&model, &[request], 1, streams, &mut held, field, arrived)?;
        let answer =
            Answer { items: Items::new(&telling), counts: Counts { prompt, ..Counts::default() }, wording, held };
        match streams {
            true => Ok(answer.stream(generations, keep_alive)),
            false => answer.whole(generations).await,
        }
    }
}

/// An answer in the making.
struct Answer<W> {
    items: Items,
    counts: Counts,
    wording: W,
    held: Held,
}

impl<W: ItemWording> Answer<W> {
    async fn whole(mut self, generations: Vec<Generation>) -> Result<Response, ApiError> {
        let mut finish = None;
        for mut generation in generations {
            while let Some(delta) = generation.next().await {
                let (_, ended) = self.take(delta?, generation.num_tokens(), generation.num_cached_tokens())?;
                finish = ended.or(finish);
            }
        }
        let end = self.ended(finish.ok_or_else(cut_off)?)?;
        self.held.grow(PER_WHOLE_BYTE * self.items.bytes())?;
        let whole = Bytes::from(self.wording.whole(&end, self.items.list()));
        Ok(held_until_sent(vec![whole], self.held))
    }

    fn stream(mut self, generations: Vec<Generation>, keep_alive: Duration) -> Response {
        let mut arrivals = arrivals(generations, &self.held);
        let events = stream! {
            for event in self.wording.opening() {
                yield event;
            }
            let (mut has_begun, mut has_ended) = (false, false);
            let mut last_event = Time::now();
            loop {
                let Ok(arrival) = timeout_at(last_event + keep_alive, arrivals.recv()).await else {
                    yield self.wording.keep_alive();
                    last_event = Time::now();
                    continue;
                };
                let Some(arrival) = arrival else { break };
                let worded = arrival.and_then(|arrival| self.word(arrival, &mut has_begun, &mut has_ended));
                match worded {
                    Ok((events, bytes)) => {
                        for event in events {
                            yield event;
                            last_event = Time::now();
                        }
                        self.held.shrink(bytes);
                    }
                    Err(error) => {
                        for event in self.wording.failed(&error, self.items.list()) {
                            yield event;
                        }
                        return;
                    }
                }
            }
            if !has_ended {
                for event in self.wording.failed(&cut_off(), self.items.list()) {
                    yield event;
                }
            }
        };
        let events = events.map(|(name, data): Named| Ok::<_, Infallible>(Event::default().event(name).data(data)));
        Sse::new(events).into_response()
    }

    /// The events of an arrival, and what they take until the next one is asked for.
    fn word(
        &mut self,
        arrival: Arrival,
        has_begun: &mut bool,
        has_ended: &mut bool,
    ) -> Result<(Vec<Named>, usize), ApiError> {
        let Arrival { delta, num_tokens, num_cached_tokens, .. } = arrival;
        let (steps, finish) = self.take(delta, num_tokens, num_cached_tokens)?;
        let is_whole = finish.is_some() || steps.iter().any(|step| matches!(step, Step::End(_)));
        let bytes = if is_whole { PER_WORDED_BYTE * self.items.bytes() } else { 0 };
        self.held.grow(bytes)?;
        let mut events = Vec::new();
        if !std::mem::replace(has_begun, true) {
            events.extend(self.wording.begin(self.counts));
        }
        let end = finish.map(|finish| self.ended(finish)).transpose()?;
        // Only what comes last can be cut off.
        let items = self.items.list();
        let (is_cut_off, last) = (end.as_ref().is_some_and(|end| end.cuts_off(items)), items.len());
        for step in steps {
            let ends_last = step == Step::End(last - 1);
            events.extend(self.wording.step(step, self.items.list(), is_cut_off && ends_last));
        }
        if let Some(end) = end {
            *has_ended = true;
            events.extend(self.wording.end(&end, self.items.list()));
        }
        Ok((events, bytes))
    }

    /// Takes in what came.
    fn take(
        &mut self,
        delta: Delta,
        num_tokens: usize,
        num_cached_tokens: usize,
    ) -> Result<(Vec<Step>, Option<Finish>), ApiError> {
        // Texts that grow double.
        self.held.grow(2 * delta.text.len())?;
        self.counts = Counts { cached: num_cached_tokens, output: num_tokens, ..self.counts };
        let finish = delta.finish.clone();
        let steps = self.items.push(delta);
        self.counts.reasoning = self.items.reasoning_tokens();
        Ok((steps, finish))
    }

    fn ended(&self, finish: Finish) -> Result<End, ApiError> {
        if finish == Finish::Abort {
            return Err(cut_off());
        }
        Ok(End { finish, has_called: self.items.has_called(), counts: self.counts })
    }
}

fn cut_off() -> ApiError {
    ApiError::internal("the answer was cut off: the server ends")
}
