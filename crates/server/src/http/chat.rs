//! `POST /v1/chat/completions`. Knows the fields and the wording of chat completions.

mod held;

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use vllm_apple_engine::Prompt;

use super::App;
use super::chat_messages::Conversation;
use super::error::ApiError;
use super::field_names::Unsupported;
use super::fields::{Fields, Known, Rest, naming};
use super::logprobs::{self, TokenNames};
use super::memory::Held;
use super::raw::unread;
use super::respond::{Job, Streaming, Wording};
use super::sampling::{self, check_choices, room, stop_reason};
use super::structure::{self, Asked};
use super::told_apart::{PER_CALL, Telling, Told};
use crate::generation::{Delta, Finish, GenerationRequest, PromptLogprobs, SamplingOptions};
use crate::served::ServedModel;

/// The fields of a chat request.
pub struct ChatRequest {
    conversation: Conversation,
    /// Whether the answer goes on with the last message.
    continues: bool,
    options: SamplingOptions,
    asked: Option<Asked>,
    shows_reasoning: bool,
    /// The field that `options.max_tokens` comes from.
    limit: &'static str,
    n: usize,
    streaming: Streaming,
    request_id: Option<String>,
    cache_salt: Option<String>,
    show: Show,
    rest: Rest,
}

/// What a choice shows besides the generated text.
#[derive(Debug, Clone, Copy)]
struct Show {
    logprobs: bool,
    prompt_logprobs: Option<u32>,
    names_as_ids: bool,
    token_ids: bool,
}

/// It is asked for twice: the prompt's end says what the answer begins with.
const CONTINUES: &str = "continue_final_message";

/// Fields that only the completions API knows.
const OF_COMPLETIONS: &[Unsupported] =
    &[("best_of", "1", "use n"), ("prompt", "null", "use `messages`, or /v1/completions")];

/// Answers a chat request.
pub async fn create(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let model = Arc::clone(app.generator(fields.optional::<String>("model")?.as_deref())?);
    let trusts_template = app.config.trust_request_chat_template;
    let request = app.text.read(fields.bytes, move || ChatRequest::take(fields, trusts_template)).await?;
    let (show, streaming, limit) = (request.show, request.streaming, request.limit);
    let request_id = request.request_id.clone();
    let Prepared { request, n, telling, ends_with_calls, held, without_effect } = request.prepare(&app, &model).await?;
    let told = (0..n).map(|_| Told::new(&telling)).collect();
    let prompt = request.prompt.clone();
    let wording = ChatWording { model: Arc::clone(&model), prompt, show, told, ends_with_calls, prompt_logprobs: None };
    let job = Job {
        model,
        requests: vec![request],
        n,
        streaming,
        request_id,
        wording,
        held,
        keep_alive: app.config.keep_alive,
    };
    let answer = job.run(arrived).await.map_err(|error| in_fields(error, limit))?;
    Ok(naming(answer, &without_effect))
}

/// What a request may have.
pub fn known(fields: Fields) -> Result<Vec<Known>, ApiError> {
    Ok(ChatRequest::take(fields, false)?.known())
}

/// An error of the engine, which knows one name of each field.
fn in_fields(error: ApiError, limit: &str) -> ApiError {
    error.renamed("max_tokens", limit).renamed("logprobs", "top_logprobs")
}

/// A request that is ready for the engine, and what its answers are worded with.
pub struct Prepared {
    /// Of each answer.
    pub request: GenerationRequest,
    /// Answers.
    pub n: usize,
    /// How they are told apart.
    pub telling: Telling,
    /// Whether an answer that calls ends for that reason.
    pub ends_with_calls: bool,
    /// The memory of the request.
    pub held: Held,
    /// Fields that change nothing.
    pub without_effect: Vec<&'static str>,
}

impl ChatRequest {
    /// Takes the fields of a request, those of other APIs in chat's names.
    pub fn take(mut fields: Fields, trusts_template: bool) -> Result<Self, ApiError> {
        let continues = fields.flag(CONTINUES)?;
        fields.set(CONTINUES, unread(continues.to_string())?);
        let conversation = Conversation::take(&mut fields, trusts_template)?;
        let mut options = sampling::take(&mut fields)?;
        let n = sampling::take_n(&mut fields)?;
        let streaming = Streaming::take(&mut fields)?;
        // Both are bounds: the lower one holds.
        let bounds = [
            (fields.optional::<u32>("max_completion_tokens")?, "max_completion_tokens"),
            (fields.optional("max_tokens")?, "max_tokens"),
        ];
        let lowest = bounds.into_iter().filter_map(|(bound, name)| Some((bound?, name))).min_by_key(|bound| bound.0);
        let (max_tokens, limit) = lowest.map_or((None, "max_tokens"), |(bound, name)| (Some(bound), name));
        options.max_tokens = max_tokens;
        let show = Show {
            logprobs: fields.flag("logprobs")?,
            prompt_logprobs: sampling::take_prompt_logprobs(&mut fields, &mut options, streaming)?,
            names_as_ids: fields.flag("return_tokens_as_token_ids")?,
            token_ids: fields.flag("return_token_ids")?,
        };
        let top_logprobs: Option<u32> = fields.optional("top_logprobs")?;
        if !show.logprobs && top_logprobs.is_some_and(|top| top > 0) {
            return Err(ApiError::param("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
        }
        options.logprobs = show.logprobs.then(|| top_logprobs.unwrap_or(0));
        if fields.flag("echo")? {
            return Err(ApiError::unsupported("echo", "use the completions API to see the prompt"));
        }
        let request_id = sampling::take_request_id(&mut fields)?;
        let cache_salt = sampling::take_cache_salt(&mut fields)?;
        let (asked, form_without_effect) = structure::take_beside(&mut fields, conversation.tools.asked())?;
        let shows_reasoning = fields.optional("include_reasoning")?.unwrap_or(true);
        let mut rest = fields.finish(OF_COMPLETIONS)?;
        rest.without_effect.extend(form_without_effect);
        Ok(Self {
            conversation,
            continues,
            options,
            asked,
            shows_reasoning,
            limit,
            n,
            streaming,
            request_id,
            cache_salt,
            show,
            rest,
        })
    }

    /// What was asked for.
    pub fn known(self) -> Vec<Known> {
        self.rest.known
    }

    /// Adds fields that change nothing to chat's own, of which another API has some by other names: chat's and its own.
    pub fn note(&mut self, without_effect: &[&'static str], names: &[(&'static str, &'static str)]) {
        let own = self.conversation.variables.iter_mut().map(|variable| &mut variable.field);
        for name in self.rest.without_effect.iter_mut().chain(own).chain([&mut self.limit]) {
            *name = names.iter().find(|(ours, _)| ours == name).map_or(*name, |(_, theirs)| *theirs);
        }
        self.rest.without_effect.extend(without_effect);
    }

    /// The client's name for it.
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// Whether the answer is to be streamed.
    pub fn streams(&self) -> bool {
        self.streaming.is_on()
    }

    /// The prompt's tokens alone, and the memory that is held meanwhile.
    pub async fn tokenize(self, app: &App, model: &Arc<ServedModel>) -> Result<(usize, Rest), ApiError> {
        let mut rest = self.rest;
        rest.without_effect.extend(self.conversation.without_effect(model));
        let tokens = self.conversation.tokenize(&app.text, &rest.held, model).await?;
        Ok((tokens.len(), rest))
    }

    /// Makes of it what the engine takes: the prompt's tokens, parameters and the form of the answer.
    pub async fn prepare(self, app: &App, model: &Arc<ServedModel>) -> Result<Prepared, ApiError> {
        let Self { mut conversation, mut options, asked, shows_reasoning, limit, n, cache_salt, rest, .. } = self;
        let Rest { held, mut without_effect, .. } = rest;
        check_choices(model, 1, n)?;
        let tools = std::mem::take(&mut conversation.tools);
        let idle = conversation.without_effect(model);
        let prompt = Prompt::salted(conversation.tokenize(&app.text, &held, model).await?, cache_salt.as_deref());
        // Who asks for more than there is room for at least is told so by the engine.
        let room = room(model, prompt.len()).max(options.min_tokens.unwrap_or(0));
        without_effect.extend(options.max_tokens.filter(|&most| most > room).map(|_| limit));
        options.max_tokens = options.max_tokens.map(|most| most.min(room));
        let answer =
            held::Answer { app, model, held: &held, tools: &tools, prompt: &prompt, continues: self.continues };
        let held::Formed { telling, grammar, calls } = answer.form(asked, shows_reasoning).await?;
        without_effect.extend(tools.without_effect(calls));
        without_effect.extend(idle);
        options.keep_special_tokens |= held::has_special_tags(model, &telling);
        let request = GenerationRequest { grammar, ..GenerationRequest::new(model, prompt, &options) };
        Ok(Prepared { request, n, telling, ends_with_calls: tools.ends_with_calls(), held, without_effect })
    }
}

struct ChatWording {
    model: Arc<ServedModel>,
    prompt: Prompt,
    show: Show,
    /// Of each choice.
    told: Vec<Told>,
    ends_with_calls: bool,
    prompt_logprobs: Option<PromptLogprobs>,
}

impl ChatWording {
    fn finish_reason(&self, index: usize, finish: &Finish) -> &'static str {
        let told = &self.told[index];
        match finish.reason() {
            // A call that a stop string cut short must not run.
            reason if matches!(finish, Finish::StopString(_)) && told.ends_within_a_call() => reason,
            "stop" if self.ends_with_calls && told.has_called() => "tool_calls",
            reason => reason,
        }
    }

    /// A choice whose text is in `field`: `message` or `delta`.
    fn word(&self, index: usize, field: &str, message: Value, delta: &Delta) -> Value {
        let names = TokenNames { tokenizer: &self.model.tokenizer, as_ids: self.show.names_as_ids };
        let mut choice = json!({
            "index": index,
            field: message,
            "logprobs": self.show.logprobs.then(|| logprobs::chat(&delta.tokens, names)),
            "finish_reason": delta.finish.as_ref().map(|finish| self.finish_reason(index, finish)),
            "stop_reason": stop_reason(delta, &self.model),
        });
        if self.show.token_ids {
            choice["token_ids"] = delta.tokens.iter().map(|sample| sample.token_id).collect();
        }
        choice
    }
}

impl Wording for ChatWording {
    const ID_PREFIX: &'static str = "chatcmpl";
    const OBJECT: &'static str = "chat.completion";
    const CHUNK_OBJECT: &'static str = "chat.completion.chunk";

    fn prompt_field(&self, _index: usize) -> String {
        "messages".to_owned()
    }

    fn opening(&self, index: usize) -> Option<Value> {
        let message = json!({"role": "assistant", "content": ""});
        Some(json!({"index": index, "delta": message, "logprobs": null, "finish_reason": null}))
    }

    fn chunk(&mut self, index: usize, delta: Delta) -> Value {
        let mut delta = delta;
        let text = std::mem::take(&mut delta.text);
        let message = self.told[index].delta(text, delta.tokens.len(), delta.finish.is_some());
        self.word(index, "delta", message, &delta)
    }

    fn take(&mut self, index: usize, delta: &mut Delta) -> usize {
        let text = std::mem::take(&mut delta.text);
        PER_CALL * self.told[index].take(text, delta.tokens.len(), delta.finish.is_some())
    }

    fn choice(&mut self, index: usize, whole: Delta) -> Value {
        self.prompt_logprobs = self.prompt_logprobs.take().or_else(|| whole.prompt_logprobs.clone());
        let message = self.told[index].message();
        self.word(index, "message", message, &whole)
    }

    /// As vLLM's, of models that think.
    fn reasoning_tokens(&self, index: usize) -> Option<usize> {
        self.model.formats.reasoning.map(|_| self.told[index].reasoning_tokens())
    }

    fn extend(&self, answer: &mut Value) {
        if let (Some(samples), Some(top)) = (&self.prompt_logprobs, self.show.prompt_logprobs) {
            answer["prompt_logprobs"] = logprobs::prompt(samples, top, &self.model.tokenizer);
        }
        if self.show.token_ids {
            answer["prompt_token_ids"] = json!(*self.prompt);
        }
    }
}
