//! One generation as a stream of text: what completions, chat and the command line share. Knows tokens, text and why a
//! generation ended, but no protocol.

mod options;

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use vllm_apple_engine::{EngineRequest, FinishReason, Grammar, Prompt, RequestOutput, RequestStream, SubmitError};
use vllm_apple_executor::{Sample, SamplingParams};

pub use options::SamplingOptions;

use crate::metrics::RequestTimer;
use crate::served::ServedModel;
use crate::text::{DetokenizeOptions, Detokenizer, StopChecker};

/// What to generate. A clone shares the prompt and all lists.
#[derive(Debug, Clone)]
pub struct GenerationRequest {
    /// The prompt.
    pub prompt: Prompt,
    /// How tokens are picked.
    pub params: SamplingParams,
    /// What the text is held to.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// Strings that end the text.
    pub stop: Arc<[String]>,
    /// Keep the stop string, or the text of a stop token.
    pub include_stop_str_in_output: bool,
    /// Which tokens show.
    pub detokenize: DetokenizeOptions,
}

impl GenerationRequest {
    /// The request for a prompt with these options and the model's defaults.
    pub fn new(model: &ServedModel, prompt: Prompt, options: &SamplingOptions) -> Self {
        let room = model.max_model_len.saturating_sub(prompt.len());
        Self {
            params: options.params(&model.defaults, room),
            prompt,
            grammar: None,
            stop: Arc::clone(&options.stop),
            include_stop_str_in_output: options.include_stop_str_in_output,
            detokenize: DetokenizeOptions {
                skip_special_tokens: !options.keep_special_tokens,
                spaces_between_special_tokens: !options.join_special_tokens,
            },
        }
    }

    /// The request for the `index`-th of several answers: a given seed moves on by one for each, as in vLLM, and only the first has
    /// the prompt scored.
    fn nth(&self, index: usize) -> Self {
        let mut request = self.clone();
        request.params.seed = request.params.seed.map(|seed| seed.wrapping_add(index as u64));
        request.params.prompt_logprobs = request.params.prompt_logprobs.filter(|_| index == 0);
        request
    }
}

/// Tokens without text that wait for the next with one, at most: a model may write special tokens without end.
const MAX_UNSHOWN: usize = 16;

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The model's own end token.
    EndToken,
    /// One of the request's stop tokens.
    StopToken(u32),
    /// One of the request's stop strings.
    StopString(String),
    /// `max_tokens` or the model's length was reached.
    Length,
    /// The engine gave the request up.
    Abort,
}

impl Finish {
    /// OpenAI's and vLLM's `finish_reason`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::EndToken | Self::StopToken(_) | Self::StopString(_) => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
}

/// The prompt's tokens from the second on with their log-probabilities.
pub type PromptLogprobs = Arc<[Sample]>;

/// The next piece of a generation.
#[derive(Debug, Clone, Default)]
pub struct Delta {
    /// Its text: whole characters.
    pub text: String,
    /// The tokens that arrived with it, the one that ended the generation included.
    pub tokens: Vec<Sample>,
    /// With the first piece, if asked for: the prompt's tokens from the second on, the same for all answers to it.
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// With the last piece: why it is the last.
    pub finish: Option<Finish>,
}

impl Delta {
    /// Adds the piece that follows.
    pub fn append(&mut self, next: Self) {
        self.text.push_str(&next.text);
        self.tokens.extend(next.tokens);
        self.prompt_logprobs = self.prompt_logprobs.take().or(next.prompt_logprobs);
        self.finish = next.finish;
    }
}

/// A generation that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenerationError {
    /// What the request asks for cannot be done.
    #[error("{0}")]
    Invalid(String),
    /// Other requests hold the memory that it takes to go on.
    #[error("{0}")]
    OutOfMemory(String),
    /// The step that computed it failed.
    #[error("the generation failed: {0}")]
    Engine(String),
    /// The engine is gone.
    #[error("the engine stopped: {0}; restart the server")]
    EngineDied(String),
    /// Its tokens have no text.
    #[error("the generated tokens could not be turned into text: {0}")]
    Text(String),
}

/// How a generation comes by its prompt's log-probabilities.
#[derive(Debug)]
enum Scores {
    /// From the engine, if at all, or they have come.
    Own,
    /// From the engine, and other answers to the prompt wait for them.
    Give(watch::Sender<Option<PromptLogprobs>>),
    /// From the first answer to the prompt.
    Await(watch::Receiver<Option<PromptLogprobs>>),
}

/// A running generation. Dropping it before its end aborts it.
#[derive(Debug)]
pub struct Generation {
    model: Arc<ServedModel>,
    stream: RequestStream,
    detokenizer: Detokenizer,
    stop: StopChecker,
    include_stop_token: bool,
    stop_token_ids: Arc<[u32]>,
    /// The tokenizer's, unless `ignore_eos` is set.
    end_token_id: Option<u32>,
    arrived: Instant,
    /// Of a generation that somebody waits for: one that is dropped before, as another of its request was refused, is no abort.
    timer: Option<RequestTimer>,
    /// What has arrived since the last delta went out.
    pending: Delta,
    scores: Scores,
    num_cached_tokens: usize,
    num_tokens: usize,
    finished: bool,
}

impl Generation {
    /// Submits the request, which came in at `arrived`.
    ///
    /// # Errors
    /// The engine refuses it; the error says why.
    pub fn start(model: Arc<ServedModel>, request: GenerationRequest, arrived: Instant) -> Result<Self, SubmitError> {
        let GenerationRequest { prompt, params, grammar, stop, include_stop_str_in_output, detokenize } = request;
        let stop_token_ids = Arc::clone(&params.stop_token_ids);
        let end_token_id = model.tokenizer.eos_token_id().filter(|_| !params.ignore_eos);
        let stop = StopChecker::new(stop, include_stop_str_in_output, params.min_tokens as usize);
        let detokenizer = Detokenizer::new(Arc::clone(&model.tokenizer), &prompt, detokenize);
        let eos_token_ids = Arc::clone(&model.eos_token_ids);
        let request = EngineRequest { prompt, params, eos_token_ids, grammar, pooling: None };
        let stream = model.engine.submit(request)?;
        Ok(Self {
            model,
            stream,
            detokenizer,
            stop,
            include_stop_token: include_stop_str_in_output,
            stop_token_ids,
            end_token_id,
            arrived,
            timer: None,
            pending: Delta::default(),
            scores: Scores::Own,
            num_cached_tokens: 0,
            num_tokens: 0,
            finished: false,
        })
    }

    /// Submits `n` answers to a request, which came in at `arrived`. The prompt is scored once: the first answer gives the others its
    /// log-probabilities, and they find the prompt in the prefix cache.
    ///
    /// # Errors
    /// The engine refuses one, and all are dropped.
    pub fn start_all(
        model: &Arc<ServedModel>,
        request: &GenerationRequest,
        n: usize,
        arrived: Instant,
    ) -> Result<Vec<Self>, SubmitError> {
        let start = |index| Self::start(Arc::clone(model), request.nth(index), arrived);
        let mut all = (0..n).map(start).collect::<Result<Vec<_>, _>>()?;
        if let Some((first, others)) = all.split_first_mut()
            && request.params.prompt_logprobs.is_some()
        {
            let (give, receiver) = watch::channel(None);
            first.scores = Scores::Give(give);
            for other in others {
                other.scores = Scores::Await(receiver.clone());
            }
        }
        Ok(all)
    }

    /// The prompt's tokens that came from the prefix cache; known with the first delta.
    pub fn num_cached_tokens(&self) -> usize {
        self.num_cached_tokens
    }

    /// The tokens generated so far.
    pub fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    /// Waits for the next delta: one with text or with [`MAX_UNSHOWN`] tokens, or the last. `None` after the last one. The first has the prompt's
    /// log-probabilities.
    pub async fn next(&mut self) -> Option<Result<Delta, GenerationError>> {
        self.timer();
        while !self.finished {
            let output = self.stream.recv().await?;
            if let Err(error) = self.take(output) {
                self.finished = true;
                self.scores = Scores::Own;
                let times = self.stream.times();
                self.timer().finish("error", &times);
                return Some(Err(error));
            }
            let Delta { text, tokens, .. } = &self.pending;
            if self.finished || !text.is_empty() || tokens.len() >= MAX_UNSHOWN {
                self.share_scores().await;
                return Some(Ok(std::mem::take(&mut self.pending)));
            }
        }
        None
    }

    fn timer(&mut self) -> &mut RequestTimer {
        let new = || RequestTimer::new(Arc::clone(&self.model.metrics), self.arrived);
        self.timer.get_or_insert_with(new)
    }

    /// Gives the prompt's log-probabilities to the other answers, or waits for them, with the first delta.
    async fn share_scores(&mut self) {
        match std::mem::replace(&mut self.scores, Scores::Own) {
            Scores::Own => (),
            Scores::Give(others) => {
                others.send_replace(self.pending.prompt_logprobs.clone());
            }
            // There are none if the first answer failed or was aborted: its own end tells the client.
            Scores::Await(mut first) => {
                let scores = first.wait_for(Option::is_some).await;
                self.pending.prompt_logprobs = scores.ok().and_then(|scores| scores.clone());
            }
        }
    }

    /// The whole generation as one delta.
    pub async fn collect(&mut self) -> Result<Delta, GenerationError> {
        let mut whole = Delta::default();
        while let Some(delta) = self.next().await {
            whole.append(delta?);
        }
        Ok(whole)
    }

    /// Adds the engine's output to what is pending.
    fn take(&mut self, output: RequestOutput) -> Result<(), GenerationError> {
        self.num_cached_tokens = output.num_cached_tokens;
        self.pending.prompt_logprobs = self.pending.prompt_logprobs.take().or(output.prompt_logprobs.map(Arc::from));
        if let Some(sample) = output.sample {
            let id = sample.token_id;
            self.num_tokens += 1;
            let times = self.stream.times();
            self.timer().token(&times);
            self.pending.tokens.push(sample);
            // As in vLLM, the token that ended the generation has no text of its own.
            let stopped = matches!(output.finish, Some(FinishReason::Stop { .. }));
            if !stopped || self.include_stop_token {
                let text = self.detokenizer.push(id).map_err(|error| GenerationError::Text(error.to_string()))?;
                self.show(&text);
            }
        }
        let finish = match output.finish {
            _ if self.finished => return Ok(()),
            None => return Ok(()),
            // As in vLLM, which asks for the end token first.
            Some(FinishReason::Stop { token }) if self.end_token_id == Some(token) => Finish::EndToken,
            Some(FinishReason::Stop { token }) if self.stop_token_ids.contains(&token) => Finish::StopToken(token),
            Some(FinishReason::Stop { .. }) => Finish::EndToken,
            // No generation is asked for a vector.
            Some(FinishReason::Length | FinishReason::Pooled) => Finish::Length,
            Some(FinishReason::Abort) => Finish::Abort,
            Some(FinishReason::Invalid(reason)) => return Err(GenerationError::Invalid(reason)),
            Some(FinishReason::OutOfMemory(reason)) => return Err(GenerationError::OutOfMemory(reason)),
            Some(FinishReason::Error(reason)) => {
                return Err(match self.model.engine.health() {
                    Ok(()) => GenerationError::Engine(reason),
                    Err(dead) => GenerationError::EngineDied(dead),
                });
            }
        };
        let rest = self.detokenizer.finish();
        if !rest.is_empty() {
            self.show(&rest);
        }
        if !self.finished {
            let held = self.stop.finish();
            self.pending.text.push_str(&held);
            self.end(finish);
        }
        Ok(())
    }

    /// Adds text, up to a stop string, which ends the generation.
    fn show(&mut self, text: &str) {
        let checked = self.stop.push(text);
        self.pending.text.push_str(&checked.text);
        if let Some(stop) = checked.stop {
            // The engine knows no strings: without this it would go on as long as the generation is held.
            self.stream.abort();
            self.end(Finish::StopString(stop));
        }
    }

    fn end(&mut self, finish: Finish) {
        self.finished = true;
        let times = self.stream.times();
        self.timer().finish(finish.reason(), &times);
        self.pending.finish = Some(finish);
    }
}
