//! The deltas of a streamed answer, on their way from the engine to a reader that may be slow: they count as memory of requests until
//! they are taken. Knows no wording.

use futures_util::stream::{BoxStream, SelectAll, StreamExt, select_all, unfold};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use vllm_apple_executor::Sample;

use super::error::ApiError;
use super::memory::{Held, PER_UNREAD_CHOICE, RequestMemory};
use crate::generation::{Delta, Generation, GenerationError};

/// Bytes of an arrival besides its text and tokens: its own, its memory's count, and what allocators add to its blocks and lose between
/// them, as measured.
const PER_ARRIVAL: usize = size_of::<Arrival>() + 256;

/// A delta and what is known with it.
pub struct Arrival {
    /// Of the choice.
    pub index: usize,
    /// The delta.
    pub delta: Delta,
    /// Tokens generated so far.
    pub num_tokens: usize,
    /// The prompt's tokens from the cache.
    pub num_cached_tokens: usize,
    /// Given back with the arrival.
    _held: Held,
}

/// The deltas of all generations in the order in which they arrive, up to the first error. Dropping the receiver aborts the generations.
///
/// They are counted against what the request holds for them, [`PER_UNREAD_CHOICE`], before they take more: where others leave no memory,
/// a stream that is read goes on, and one that is not ends.
pub fn arrivals(generations: Vec<Generation>, held: &Held) -> UnboundedReceiver<Result<Arrival, ApiError>> {
    let (sender, receiver) = unbounded_channel();
    let (own, shared) = (RequestMemory::new(generations.len() * PER_UNREAD_CHOICE), held.beside());
    tokio::spawn(async move {
        let mut deltas = merge(generations);
        loop {
            let next = tokio::select! {
                () = sender.closed() => return,
                next = deltas.next() => next,
            };
            let Some((index, delta)) = next else { return };
            let arrival = delta.map_err(ApiError::from).and_then(|(mut delta, num_tokens, num_cached_tokens)| {
                delta.tokens.shrink_to_fit();
                let (bytes, mut held) = (bytes(&delta), own.hold());
                if held.grow(bytes).is_err() {
                    held = shared.beside();
                    held.grow(bytes)?;
                }
                Ok(Arrival { index, delta, num_tokens, num_cached_tokens, _held: held })
            });
            let is_last = arrival.is_err();
            if sender.send(arrival).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// What a delta holds until it is taken. The prompt's log-probabilities are counted with the prompt.
fn bytes(delta: &Delta) -> usize {
    let logprobs = delta.tokens.iter().filter_map(|sample| sample.logprobs.as_ref());
    let tops: usize = logprobs.map(|logprobs| logprobs.top.capacity() * size_of::<(u32, f32)>()).sum();
    PER_ARRIVAL + delta.text.capacity() + delta.tokens.capacity() * size_of::<Sample>() + tops
}

/// A delta with the tokens generated so far and the prompt's tokens from the cache.
type Counted = Result<(Delta, usize, usize), GenerationError>;

/// The deltas of all generations as they arrive, with the index of the choice.
fn merge(generations: Vec<Generation>) -> SelectAll<BoxStream<'static, (usize, Counted)>> {
    select_all(generations.into_iter().enumerate().map(|(index, generation)| {
        unfold(generation, move |mut generation| async move {
            let delta = generation.next().await?;
            let delta = delta.map(|delta| (delta, generation.num_tokens(), generation.num_cached_tokens()));
            Some(((index, delta), generation))
        })
        .boxed()
    }))
}
